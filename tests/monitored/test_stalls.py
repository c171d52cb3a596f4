"""Trainings that hang are ended, and slow ones are not: real processes, in one and under `hookline launch --spmd`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.python import Python, run

from hookline.cli import main
from hookline.summary import account
from hookline.train import RecoveryPolicy

JOB = Path(__file__).with_name("stall_job.py")
STALL_SECS = 2.0


def run_alone(place, logdir, *, stall_secs=STALL_SECS, unit_secs=0.5, timeout_secs=100):
    """Returns the exit status and the error output of one process with a watchdog."""
    process = Python(str(JOB), place, "0", str(stall_secs), str(unit_secs), str(logdir))
    try:
        out, err = process.communicate(timeout=timeout_secs)
    finally:
        process.kill()
    return process.returncode, out, err


def run_two(place, logdir, *options, hanging=1, processes=2):
    """Returns the exit status of a job whose script has no watchdog."""
    job = [str(JOB), place, str(hanging), "0", "0", str(logdir)]
    return main(["launch", "--spmd", "--processes", str(processes), "--stall-secs", str(STALL_SECS), *options, *job])


def stalls(logdir, process=0):
    lines = map(json.loads, (logdir / f"account-{process}.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "stall"]


@pytest.mark.parametrize(
    ("place", "under_way"),
    [
        ("callback", "steps"),
        *(
            pytest.param(place, under_way, marks=pytest.mark.campaign)
            for place, under_way in {
                "hook": "steps",
                "input": "data",
                "save": "save",
                "evaluation": "evaluation",
            }.items()
        ),
    ],
)
def test_hang_ends_the_process_with_its_stacks_and_a_mark(tmp_path, place, under_way):
    status, out, err = run_alone(place, tmp_path / "run")
    assert (status, out) == (79, "")
    sentence = re.search(r"WatchdogHook: (The process hangs .*?)\. There was no progress for 2 s\.", err)
    assert sentence
    assert "The process ends with status 79." in err
    assert "in hang_here" in err
    (stall,) = stalls(tmp_path / "run")
    assert stall["reason"] == sentence[1]
    assert stall["under_way"] == under_way
    assert stall["step"] >= 10


def test_hang_that_holds_the_lock_of_python_is_ended_by_faulthandler(tmp_path):
    status, out, err = run_alone("lock", tmp_path / "run")
    assert (status, out) == (1, "")
    assert "Timeout (0:00:02.2" in err
    assert "in on_trigger" in err


@pytest.mark.campaign
def test_log_that_does_not_answer_keeps_no_process_alive(tmp_path):
    status, _, err = run_alone("log", tmp_path / "run")
    assert status == 79
    assert "in hang_here" in err


def test_slow_input_compilation_evaluation_and_saves_are_no_stall(tmp_path):
    status, out, err = run_alone("slow", tmp_path / "run", stall_secs=1.4)
    assert (status, out) == (0, "ended at step 30\n")
    assert "no progress" not in err
    assert stalls(tmp_path / "run") == []


@pytest.mark.campaign
def test_slow_training_of_minutes_is_no_stall(tmp_path):
    status, out, _ = run_alone("slow", tmp_path / "run", stall_secs=30, unit_secs=15, timeout_secs=1500)
    assert (status, out) == (0, "ended at step 30\n")


@pytest.mark.parametrize(
    ("place", "how"), [("stop", "it is killed"), pytest.param("lock", "it has ended", marks=pytest.mark.campaign)]
)
def test_launcher_names_and_marks_a_process_whose_threads_do_not_run(tmp_path, capsys, place, how):
    assert run_two(place, tmp_path / "run", hanging=0, processes=1) == 79
    err = capsys.readouterr().err
    assert f"hookline launch: process 0 has stalled: none of its threads has run for a while, and {how}." in err
    (stall,) = stalls(tmp_path / "run")
    assert how in stall["reason"]
    assert account.read(str(tmp_path / "run"))[0].secs["stall"] >= STALL_SECS


@pytest.mark.parametrize(("place", "doing"), [("hook", "hangs"), ("input", "hangs reading a batch")])
def test_process_that_lets_the_others_wait_is_named_before_all_end(tmp_path, capsys, place, doing):
    assert run_two(place, tmp_path / "run") == 79
    err = capsys.readouterr().err.splitlines()
    for process in (0, 1):
        said = [line for line in err if line.startswith(f"{process} | ")]
        place_of_1 = rf"Process 1 {doing} at stall_job\.py:\d+ in hang_here; the others wait for it\."
        assert re.search(
            rf"WatchdogHook: {place_of_1} Process 0 is at stall_job\.py:\d+ in <module>\. There was", said[0]
        )
        if process == 0:  # It only waits.
            assert len(said) == 1
        else:
            assert said[1].startswith("1 | Thread MainThread (")
            others = [number for number, line in enumerate(said) if "| Thread " in line][1:]
            assert ", in hang_here" in said[others[0] - 2]  # And its line of code is the last one of the stack.
            assert others == list(range(others[0], len(said)))
        (stall,) = stalls(tmp_path / "run", process)
        assert stall["elsewhere"] == [1]
    ended = next(number for number, line in enumerate(err) if line.startswith("hookline launch"))
    assert all("WatchdogHook" not in line for line in err[ended:])
    assert main(["account", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^stalled +2\.\d\d s", out, re.MULTILINE)) == 2
    assert re.search(rf"^The last stall: {place_of_1}$", out, re.MULTILINE)


@pytest.mark.campaign
def test_processes_that_wait_for_a_busy_one_are_not_stalled(tmp_path, capsys):
    assert run_two("busy", tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["0 | ended at step 30", "1 | ended at step 30"]
    assert "no progress" not in err


@pytest.mark.campaign
@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_process_of_two_ends_both(tmp_path, capsys, stopped):
    assert run_two("stop", tmp_path / "run", hanging=stopped) == 79
    assert f"hookline launch: process {stopped} has stalled: none of its threads" in capsys.readouterr().err


@pytest.mark.campaign
def test_job_that_hangs_once_is_started_again_and_completes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(RecoveryPolicy, "backoff_secs", lambda self, attempt, generator: 0.0)
    assert run_two("once", tmp_path / "run", "--restart", "on-failure") == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["0 | ended at step 30", "1 | ended at step 30"]
    assert err.count("all processes are restarted") == 1


def test_limit_without_spmd_is_refused(capsys):
    assert main(["launch", "--stall-secs", "5", str(JOB)]) == 2
    assert "--stall-secs requires --spmd" in capsys.readouterr().err


RESUMED = """
import sys, time
import numpy as np
import hookline as hl

class Batches:
    n = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        return np.ones(2, "float32")

    def get_state(self):
        return {"n": self.n}

    def set_state(self, state):
        time.sleep(600)

loop = hl.train.Loop(lambda w, batch: (w + batch.sum(), {"loss": w}), np.float32(0), Batches())
loop.run("run", int(sys.argv[1]), progress=False, hooks=[hl.train.WatchdogHook(3, end=True)])
"""


@pytest.mark.campaign
def test_hang_while_the_position_in_the_data_is_restored_ends(tmp_path):
    assert run("-c", RESUMED, "20", cwd=tmp_path).returncode == 0
    resumed = run("-c", RESUMED, "40", cwd=tmp_path, timeout=100)
    assert resumed.returncode == 79
    assert "The process hangs reading a batch at <string>:20 in Batches.set_state." in resumed.stderr
