"""The account of a run survives kills, counts steps that were made again, and stays small."""

from __future__ import annotations

import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import python

import hookline as hl
from hookline.cli.main import main
from hookline.summary import account
from hookline.summary.account import AccountWriter, path_of, read, read_file
from hookline.testing import read_events

JOB = """
import os, signal, sys
import jax.numpy as jnp, numpy as np
import hookline as hl

def kill(firing):
    os.kill(os.getpid(), signal.SIGKILL)

loop = hl.train.Loop(
    lambda state, batch: ({"w": state["w"] + batch.sum()}, {"loss": state["w"]}),
    {"w": jnp.zeros(())},
    hl.data.from_arrays(np.ones(100, np.float32), 10, epochs=None),
)
held_out = hl.data.from_arrays(np.ones(10), 5)
hooks = [hl.train.Evaluate(lambda state, batch: {"loss": state["w"] - batch.mean()}, held_out, every=20)]
if len(sys.argv) > 1:
    hooks.append(hl.train.FunctionHook(kill, every=hl.train.at_steps(int(sys.argv[1]))))
loop.run("runs/a", 100, hooks=hooks, checkpoints=hl.train.CheckpointOptions(save_steps=30), progress=False)
"""


def line(event, at, step=None, steps=0.0, pid=1, **more):
    found = {"event": event, "at": at, "monotonic": at, "pid": pid, **more}
    if event != "start":
        found |= {"step": step, "secs": {"steps": steps, "start": 2.0}}
    return found


def start(at, pid=1, boot="a", age=0.0):
    return line("start", at, pid=pid, boot=boot, host=f"host-{boot}", age=age)


def account_of(tmp_path, *lines, tail=""):
    path = tmp_path / "account-0.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines) + tail)
    return read_file(str(path))


def test_job_that_was_killed_and_started_again_has_one_account(tmp_path, environment):
    killed = python.run("-c", JOB, "70", cwd=tmp_path, env=environment())
    assert killed.returncode == -9
    folder = tmp_path / "runs" / "a"
    assert read(str(folder))[0].stop_reason == ""
    done = python.run("-c", JOB, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    (found,) = read(str(folder)).values()
    assert (found.starts, found.step, found.stop_reason) == (2, 100, "the last step, 100, is reached")
    restored = {event["step"] for event in events(folder) if event["event"] == "session"}
    assert restored in ({0, 30}, {0, 60})  # The save of step 60 may not be complete.
    assert 0 <= found.repeated_steps <= 40
    assert all(found.secs[state] > 0 for state in ("steps", "compilation", "save", "evaluation", "start", "restore"))
    # The tests start interpreters ahead, so the second process may have begun before the first one was killed.
    assert -0.2 <= found.total_secs - (found.ended_at - found.began_at) <= 5.0
    names = [event["event"] for event in events(folder)]
    assert names[:1] == ["start"]
    assert names[-1] == "stop"
    assert {"first step", "compiled", "evaluated", "save begun", "save copied", "saved"} < set(names)


def test_time_of_queued_steps_counts_neither_for_evaluations_nor_for_saves(tmp_path):
    def step(state, batch):
        work = jax.lax.fori_loop(0, 200, lambda i, value: jnp.tanh(value @ value), jnp.full((200, 200), batch[0]))
        return {"n": state["n"] + 1.0}, {"loss": work.sum()}

    loop = hl.train.Loop(step, {"n": jnp.zeros(())}, [np.ones(1, np.float32)] * 60)
    evaluation = hl.train.Evaluate(lambda state, batch: {"count": state["n"]}, [np.ones(1)], every=15)
    saves = hl.train.CheckpointOptions(save_steps=15)
    loop.run(
        str(tmp_path),
        hooks=[evaluation],
        progress=False,
        checkpoints=saves,
        logging=hl.train.LoggingOptions(summary_steps=None),
    )
    secs = read(str(tmp_path))[0].secs
    # The host dispatches 15 steps ahead, which take most of the time.
    assert secs["evaluation"] + secs["save"] < secs["steps"]


def test_each_long_wait_for_data_has_a_line(tmp_path):
    def batches():
        for number in range(6):
            if number == 3:
                time.sleep(1.3)
            yield np.float32(number)

    loop = hl.train.Loop(lambda w, batch: (w + batch, {"loss": w}), np.float32(0), batches)
    loop.run(str(tmp_path), progress=False)
    (wait,) = [event for event in events(tmp_path) if event["event"] == "waited for data"]
    assert 1.0 <= wait["took"] < 10.0
    assert wait["step"] == 3


def events(folder):
    return [json.loads(text) for text in (folder / "account-0.jsonl").read_text().splitlines()]


def test_steps_after_the_restored_one_are_made_again(tmp_path):
    found = account_of(
        tmp_path,
        start(100.0, age=2.0),
        line("session", 100.0, 0),
        line("progress", 110.0, 100, 10.0),
        line("progress", 120.0, 200, 20.0),
        start(150.0, pid=2, age=2.0),
        line("session", 150.0, 150, pid=2),
        line("stop", 160.0, 250, 10.0, pid=2, reason="done"),
    )
    assert (found.step, found.repeated_steps) == (250, 50)
    assert found.repeated_secs == pytest.approx(5.0)
    assert found.secs["steps"] == pytest.approx(30.0)
    assert found.useful_secs == pytest.approx(25.0)
    assert found.secs["between"] == pytest.approx(28.0)
    assert found.total_secs == pytest.approx(62.0)


@pytest.mark.parametrize("under_way", ["steps", "data"])
def test_time_without_progress_is_a_stall_and_not_steps_or_data(tmp_path, under_way):
    before, secs = line("progress", 6.0, step=10, steps=4.0), {"steps": 4.0, "start": 2.0, "data": 0.5}
    secs[under_way] += 5.0
    stall = line("stall", 11.5, step=10, under_way=under_way, idle_secs=5.0, reason="Process 1 hangs") | {"secs": secs}
    found = account_of(tmp_path, start(0.0), before, stall, start(13.0, pid=2), line("session", 14.0, step=0, pid=2))
    assert found.secs["stall"] == 5.0
    assert (found.secs["steps"], found.secs["data"], found.repeated_secs) == (4.0, 0.5, 4.0)
    assert found.total_secs == 15.0
    assert found.last_stall == "Process 1 hangs"


def test_stall_that_the_launcher_marks_lasts_since_the_line_before(tmp_path):
    mark = {"event": "stall", "at": 16.0, "monotonic": 16.0, "pid": 1, "reason": "none of its threads has run"}
    found = account_of(tmp_path, start(0.0), line("progress", 6.0, step=10, steps=4.0), mark)
    assert (found.secs["stall"], found.secs["steps"], found.total_secs) == (10.0, 4.0, 16.0)


def test_time_of_a_long_compilation_counts_once(tmp_path):
    def compiled(at, step, steps, compilation):
        found = line("progress", at, step, steps)
        return {**found, "secs": {**found["secs"], "compilation": compilation}}

    found = account_of(
        tmp_path,
        start(100.0, age=2.0),
        line("session", 100.0, 0),
        compiled(110.0, 40, 10.0, 0.0),
        compiled(200.0, 40, 100.0, 0.0),  # It compiles since 110, and nobody knows it yet.
        compiled(230.0, 41, 11.0, 119.0),
        compiled(240.0, 60, 21.0, 119.0),
        start(250.0, pid=2, age=2.0),
        line("session", 250.0, 40, pid=2),
    )
    assert found.secs["steps"] == pytest.approx(21.0)
    assert found.secs["compilation"] == pytest.approx(119.0)
    assert found.repeated_secs == pytest.approx(10.0)
    assert found.total_secs == pytest.approx(152.0)


def test_torn_and_foreign_lines_are_left_out(tmp_path):
    lines = [start(100.0), line("session", 100.0, 0), line("progress", 110.0, 50, 10.0)]
    torn = '{"event": "progress", "at": 1'
    found = account_of(tmp_path, *lines, line("progress", 111.0, 900, 11.0, pid=7), tail=f"[1]\nnull\n{torn}")
    assert (found.step, found.starts) == (50, 1)
    writer = AccountWriter(str(tmp_path / "account-0.jsonl"))
    writer.write(**line("stop", 120.0, 60, 20.0, reason="x"))
    writer.close()
    assert read(str(tmp_path))[0].step == 60, "the line after a torn one is read"


def test_clocks_of_two_hosts_never_give_a_negative_time(tmp_path):
    lines = [start(100.0), line("session", 100.0, 0), line("progress", 200.0, 10, 90.0)]
    found = account_of(tmp_path, *lines, start(150.0, pid=2, boot="b"), line("session", 150.0, 0, pid=2))
    assert found.secs["between"] == 0.0
    assert found.has_clock_errors
    main(["account", str(tmp_path)])


def test_file_stays_below_its_limit_and_keeps_the_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(account, "MAX_BYTES", 4000)
    path = path_of(str(tmp_path), 0)
    writer = AccountWriter(path)
    for each in [
        start(0.0),
        line("session", 0.0, 0),
        *(line("progress", 10.0 * n, n, 10.0 * n) for n in range(1, 300)),
    ]:
        writer.write(**each)
    writer.write(**start(3000.0, pid=2))
    writer.write(**line("session", 3000.0, 290, pid=2))
    writer.close()
    assert (tmp_path / "account-0.jsonl").stat().st_size < 8000
    found = read_file(path)
    assert (found.starts, found.repeated_steps) == (2, 9)
    assert found.secs["steps"] == pytest.approx(2990.0)
    assert found.repeated_secs == pytest.approx(90.0)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=1, max_size=8), st.integers(0, 3))
def test_steps_of_the_history_are_the_last_step(starts, every):
    """Whatever is restored, the steps that count are those up to the last step."""
    found, pid, at = account.Account(), 0, 0.0
    for restored, made in starts:
        pid, at = pid + 1, at + 1
        begin = min(restored, found.step)
        found.add(start(at, pid=pid))
        found.add(line("session", at, begin, pid=pid))
        for number in range(1, made + 1):
            if number == made or (every and number % every == 0):
                found.add(line("progress", at + number, begin + number, float(number), pid=pid))
        at += made
    assert sum(last - first for first, last, _ in found.intervals) == found.step
    assert found.useful_secs + found.repeated_secs == pytest.approx(found.secs.get("steps", 0.0))
    assert sum(secs for *_, secs in found.intervals) == pytest.approx(found.useful_secs, abs=1e-6)


def test_command_prints_shares_of_the_whole(tmp_path, capsys):
    account_of(tmp_path, start(0.0), line("session", 1.0, 0), line("stop", 10.0, 80, 8.0, reason="done"))
    assert main(["account", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 start since 1970-01-01 00:00:00 UTC, 10 s; 80.0% in steps that count." in out
    assert re.search(r"^steps that count +8\.00 s +80\.0%$", out, re.MULTILINE)
    assert main(["account", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["process"], found["useful_share"], found["step"]) == (0, 0.8, 80)
    assert main(["account", str(tmp_path / "none")]) == 1


def test_folder_that_is_no_run_is_answered_as_by_the_other_commands(tmp_path, capsys):
    loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(3), 1))
    loop.run(str(tmp_path / "a"), progress=False, logging=hl.train.LoggingOptions(account=False))
    assert main(["account", str(tmp_path / "a")]) == 1
    assert "a' has no account, account-0.jsonl. Runs with LoggingOptions(account=False)" in capsys.readouterr().err
    errors = []
    for command in ("account", "report"):
        assert main([command, str(tmp_path)]) == 1
        errors.append(capsys.readouterr().err.partition(": ")[2])
    assert errors[0] == errors[1]
    assert errors[0].endswith(f"no checkpoint and no event file of its own. Did you mean {tmp_path}/a?\n")


def test_a_longer_run_has_two_shares_in_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.hooks.reporting.account._EVERY_SECS", 0.02)
    loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(3000), 1))
    loop.run(str(tmp_path), progress=False)
    written = [event for event in read_events(tmp_path / "account") if event.summary.value]
    assert len(written) > 1
    found = read(str(tmp_path))[0]
    assert written[-1].step == found.step == 3000
    last = {value.tag: value.simple_value for value in written[-1].summary.value}
    assert last == {"useful_share": pytest.approx(found.useful_share), "data_share": pytest.approx(found.share("data"))}
    assert main(["runs", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path)]) == 0


def test_account_is_written_by_no_step(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(AccountWriter, "write", lambda self, **line: calls.append(line["event"]))
    loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(500), 1))
    loop.run(str(tmp_path), progress=False, checkpoints=hl.train.CheckpointOptions(save_secs=None))
    assert calls == ["start", "session", "compiled", "first step", "stop"]


def test_account_may_be_turned_off(tmp_path):
    loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(5), 1))
    loop.run(str(tmp_path), progress=False, logging=hl.train.LoggingOptions(account=False))
    assert not list(tmp_path.glob("account*"))
