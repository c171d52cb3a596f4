"""`hookline runs`, on runs in every state."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from tests import python, summaries
from tests.cli.conftest import JOB, trained_in
from tests.terminal import Terminal

import hookline as hl
from hookline import train
from hookline.cli import main
from hookline.summary import FileWriter


def listed(capsys, folder):
    assert main(["runs", str(folder), "--json"]) == 0
    return {os.path.relpath(run["run"], folder): run for run in json.loads(capsys.readouterr().out)}


def test_list_shows_step_state_and_best_of_each_run(resumed_run, killed_run, shared_run, tmp_path, capsys):
    shutil.copytree(shared_run, tmp_path / "group" / "old")
    shutil.copytree(resumed_run, tmp_path / "group" / "new")
    shutil.copytree(killed_run, tmp_path / "killed")
    found = listed(capsys, tmp_path)
    assert {name: run["state"] for name, run in found.items()} == {
        "group/old": "finished", "group/new": "finished", "killed": "killed",
    }  # fmt: skip
    assert (found["group/old"]["step"], found["group/new"]["step"]) == (6, 40)
    best = found["group/new"]["best"]
    assert (best["metric"], best["step"]) == ("eval/loss", 40)
    assert 0 < best["value"] < 0.3
    assert found["group/old"]["best"] is None
    assert found["group/old"]["bytes"] == sum(
        file.stat().st_size for checkpoint in shared_run.glob("model*") for file in checkpoint.rglob("*")
        if file.is_file()
    )  # fmt: skip
    times = [run["time"] for run in found.values()]
    assert times == sorted(times, reverse=True)
    assert main(["runs", str(tmp_path)]) == 0
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["run", "step", "steps/s", "state", "age", "best", "size"]
    assert {line[0] for line in lines} == set(found)


def test_running_and_stopped_run_are_distinguished(tmp_path, capsys, environment):
    with python.Python("-u", JOB, tmp_path / "a", "going", env=environment()) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 6:
            pass
        assert listed(capsys, tmp_path)["a"]["state"] == "running"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert listed(capsys, tmp_path)["a"]["state"] == "stopped"


def test_heartbeats_show_whether_a_run_on_another_host_is_running(killed_run, tmp_path, capsys):
    owner = shutil.copytree(killed_run, tmp_path / "a") / ".hookline-owner"
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"boot_id": "other", "host": "other"}))
    assert listed(capsys, tmp_path)["a"]["state"] == "running"
    os.utime(owner, (0, 0))
    assert listed(capsys, tmp_path)["a"]["state"] == "killed"


def test_failed_run_is_stopped_until_it_finishes(tmp_path, capsys):
    class Fails(train.SessionRunHook):
        trigger = hl.train.at_steps(3)

        def on_trigger(self, firing):
            raise RuntimeError("no more")

    loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
    with pytest.raises(RuntimeError, match="no more"):
        loop.run(str(tmp_path / "a"), hooks=[Fails()], progress=False)
    assert listed(capsys, tmp_path)["a"]["state"] == "stopped"
    loop.run(str(tmp_path / "a"), progress=False)  # To the end of the data, without a last step.
    assert listed(capsys, tmp_path)["a"]["state"] == "finished"


@pytest.mark.parametrize(("stop", "state"), [("limit", "stopped"), ("hook", "stopped"), ("final", "finished")])
def test_run_is_finished_only_if_a_restart_would_not_continue_it(stop, state, tmp_path, capsys):
    def act(firing):
        firing.context.request_stop(**({"final": "good enough"} if stop == "final" else {}))

    hooks = [train.TimeLimitHook(0.001)] if stop == "limit" else [train.FunctionHook(act, every=2)]
    loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
    loop.run(str(tmp_path / "a"), 9, hooks=hooks, progress=False)
    assert listed(capsys, tmp_path)["a"]["state"] == state


def test_lines_below_the_table_give_the_reasons_of_stops(tmp_path, capsys):
    def fail(firing):
        raise RuntimeError("no more\nof this")

    reasons = {
        "failed": (fail, "RuntimeError: no more"),
        "preempted": (lambda firing: os.kill(os.getpid(), signal.SIGTERM), "SIGTERM was received"),
        "ended": (lambda firing: None, ""),
    }
    for folder, (act, reason) in reasons.items():
        loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
        with pytest.raises((RuntimeError, train.Preempted)) if reason else contextlib.nullcontext():
            loop.run(str(tmp_path / folder), hooks=[train.FunctionHook(act, every=4)], progress=False)
    assert main(["runs", str(tmp_path)]) == 0
    *_, preempted, failed = capsys.readouterr().out.splitlines()
    assert (preempted, failed) == (
        "preempted: stopped at step 4: SIGTERM was received.", "failed: stopped at step 4: RuntimeError: no more.",
    )  # fmt: skip
    assert {run: facts["stop_reason"] for run, facts in listed(capsys, tmp_path).items()} == {
        "ended": "the data have ended", "preempted": "SIGTERM was received", "failed": "RuntimeError: no more",
    }  # fmt: skip
    assert main(["report", str(tmp_path / "failed")]) == 0
    page = (tmp_path / "failed" / "report.html").read_text(encoding="utf-8")
    assert "it continues when it is started again. It stopped at step 4: RuntimeError: no more.<" in page


def test_speed_includes_evaluations_and_is_that_of_more_than_a_second(tmp_path, capsys):
    def held_out(secs):
        time.sleep(secs)
        yield np.ones(1)

    for folder, secs in ("long", 1.0), ("short", 0.0):
        evaluate = train.Evaluate(lambda w, _: {"loss": w}, functools.partial(held_out, secs), every=9)
        loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
        loop.run(str(tmp_path / folder), hooks=[evaluate], progress=False)
    found = listed(capsys, tmp_path)
    assert 0 < found["long"]["steps_per_sec"] < 9
    assert found["short"]["steps_per_sec"] is None


def test_restart_after_a_final_stop_leaves_the_run_finished(tmp_path, capsys):
    def act(firing):
        firing.context.request_stop(final="good enough")

    at_start = {"on_start": True, "on_result": lambda result: result.request_stop(final="good enough")}
    evaluate = train.Evaluate(lambda w: {"loss": w}, None, 9, **at_start)
    for folder, hook in ("in a run", train.FunctionHook(act, every=2)), ("before the first", evaluate):
        for _ in range(3):
            loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
            loop.run(str(tmp_path / folder), 9, hooks=[hook], progress=False)
            assert listed(capsys, tmp_path)[folder]["state"] == "finished"


def test_unreadable_run_does_not_hide_the_others(own_run, capsys):
    shutil.copytree(own_run, own_run.parent / "lost")
    shutil.copytree(own_run, own_run.parent / "whole")
    (own_run / "model.ckpt-6" / "hookline.json").write_text("{")
    state = own_run.parent / "lost" / "checkpoint"
    state.write_text(state.read_text().replace('"model_checkpoint_path": "', '"model_checkpoint_path": "/'))
    found = listed(capsys, own_run.parent)
    assert {name: run["state"] for name, run in found.items()} == {
        "own": "broken", "lost": "unreadable", "whole": "finished",
    }  # fmt: skip
    assert (found["own"]["step"], found["lost"]["step"]) == (4, 6)
    assert main(["runs", str(own_run.parent)]) == 0
    out = capsys.readouterr().out
    assert "\nown: model.ckpt-6 is broken: its hookline.json is damaged: " in out
    assert "\nlost: " in out


def test_run_without_checkpoints_has_the_step_of_its_last_event(tmp_path, capsys):
    for step in (3, 900):
        with FileWriter(str(tmp_path / "a"), filename_suffix=f".{step}") as writer:
            writer.add_summary(summaries.scalar("loss", 1), step)
    with FileWriter(str(tmp_path / "a" / "eval")) as writer:
        writer.add_summary(summaries.scalar("loss", 1), 5)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "events.out.tfevents.1.torn").write_bytes(b"torn")
    found = listed(capsys, tmp_path)
    assert {name: (run["state"], run["step"]) for name, run in found.items()} == {
        "a": ("unknown", 900), "b": ("unknown", None),
    }  # fmt: skip


def test_run_in_the_folder_of_another_is_one_of_its_own(shared_run, own_run, capsys):
    shutil.copytree(shared_run, own_run / "more")
    assert listed(capsys, own_run).keys() == {".", "more"}


def test_list_fits_the_terminal(shared_run, tmp_path):
    name = "a-long-name-of-an-experiment/" * 5
    shutil.copytree(shared_run, tmp_path / name / "run")
    terminal = Terminal(columns=100)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with python.Python(
        "-m", "hookline.cli", "runs", tmp_path, stdout=terminal.file.fileno(), env=environment
    ) as process:
        assert process.wait(60) == 0
    lines = [line.rstrip() for line in terminal.screen if line.strip()]
    assert max(map(len, lines)) <= 100
    assert [line.split()[-2:] for line in lines[:1]] == [["best", "size"]]
    assert lines[1].split()[1:3] == ["6", "finished"]
    assert "".join(line.split()[0] for line in lines[1:]) == f"{name}run"


def test_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"hookline runs: there is no run in '{tmp_path}' or below it.\n"
    assert main(["runs", str(tmp_path / "none")]) == 1


def test_folder_that_may_not_be_listed_is_named(shared_run, tmp_path, capsys, monkeypatch):
    shutil.copytree(shared_run, tmp_path / "a")
    (tmp_path / "private").mkdir()
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("private"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = listed(capsys, tmp_path)
    assert (found["a"]["state"], found["private"]["state"]) == ("finished", "unreadable")
    assert found["private"]["why"] == "Permission denied"


def test_state_of_another_program_is_no_evaluation(tmp_path, capsys):
    class Evaluate(train.SessionRunHook):
        """Has a state of another form, under the name of `hookline.Evaluate`."""

        state_key = "eval"
        trigger = hl.train.every(1)

        def get_state(self):
            return {"best": {"accuracy": ["x", "y"], "loss": ["x"], "error": 1, "mse": [0.5, 3]}, "kept": "loss"}

        def set_state(self, state):
            pass

    Evaluate.__module__, Evaluate.__qualname__ = "hookline", "Evaluate"
    loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(4), 1))
    loop.run(str(tmp_path / "a"), hooks=[Evaluate()], progress=False)
    assert listed(capsys, tmp_path)["a"]["best"] == {"metric": "eval/mse", "value": 0.5, "step": 3}


def test_new_run_appears_beside_the_others(tmp_path, capsys):
    trained_in(tmp_path / "a", 2)
    trained_in(tmp_path / "b", 4)
    assert [*listed(capsys, tmp_path)] == ["b", "a"]
