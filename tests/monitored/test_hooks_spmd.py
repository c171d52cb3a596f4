"""Each built-in hook in two SPMD processes: the same training in both, and only the chief writes and logs."""

import json
import math
from pathlib import Path

import pytest
from tests import spmd

JOB = Path(__file__).parent / "hooks_spmd_job.py"
FULL, SKIPPED = [20, 4898.0], [20, 4705.0]
WRITES = {"step_counter", "summary_saver", "summary_at_end", "profiler", "checkpoint_saver"}
WHY = "The training stops"
LOGS = {"logging_tensor", "step_counter", "profiler", "checkpoint_saver", WHY}
TELLS = {
    "feed_fn": [6.0, 6.0],
    "final_ops": FULL[1],
    "bound_to_an_operation": [5, 10, 15, 20],
    "checkpoint_saver": "20",
}


@pytest.fixture(scope="module")
def found():
    """The trainings, of each process."""
    ended = spmd.run(JOB, timeout_secs=200)
    assert [each.status for each in ended] == [0, 0], "\n".join(each.err[-3000:] for each in ended)
    return [[json.loads(line) for line in each.out.splitlines() if line.startswith("{")] for each in ended]


def writers(training):
    return {name for name, count in training["files"].items() if count}


def loggers(training):
    """Returns the loggers of the lines, without those that each process logs about itself."""
    own = ("Compil", "This is process")
    lines = [(name.rpartition(".")[2], line) for name, line in training["logged"] if not line.startswith(own)]
    return {WHY if line.startswith(WHY) else name for name, line in lines}


def test_every_hook_has_a_case(found):
    every = [[name for training in each for name in training["files"]] for each in found]
    assert every[0] == every[1]
    assert len(every[0]) == 16


def test_both_processes_train_alike_and_only_the_chief_writes_and_logs(found):
    (chief, *_), (other, *_) = found
    assert chief["ended"] == other["ended"] == FULL
    assert (writers(chief), loggers(chief)) == (WRITES, LOGS)
    assert (writers(other), loggers(other)) == (set(), set())
    for name, told in TELLS.items():
        assert chief["told"][name] == other["told"][name] == told, name


def test_only_the_chief_shows_progress(found):
    assert [each[0]["told"]["progress"] for each in found] == [True, False]


def test_only_the_chief_writes_to_a_sink(found):
    chief, other = (each[1] for each in found)
    assert chief["ended"] == other["ended"] == FULL
    assert (chief["told"], other["told"]) == ({"sinks": 5}, {"sinks": 0}), "a header and four rows"
    assert (writers(chief), writers(other)) == ({"sinks"}, set())
    assert (loggers(chief), loggers(other)) == ({WHY}, set())


def test_nan_acts_in_both_at_the_same_step_and_only_the_chief_logs_it(found):
    (raised, stopped, skipped), others = (each[2:] for each in found)
    assert raised["error"] == others[0]["error"]
    assert "at step 13" in raised["error"]
    assert stopped["ended"][0] == others[1]["ended"][0]
    assert all(math.isnan(each["ended"][1]) for each in (stopped, others[1]))
    assert skipped["ended"] == others[2]["ended"] == SKIPPED
    for mine, other in zip((stopped, skipped), others[1:], strict=True):
        assert (loggers(mine), loggers(other)) == ({"nan_tensor", WHY}, set())
        assert writers(mine) == writers(other) == set()
