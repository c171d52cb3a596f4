"""Each built-in hook in two processes in step: the same training in both, and the chief alone writes and logs."""

import json
import math
from pathlib import Path

import pytest
from tests import in_step

JOB = Path(__file__).parent / "hooks_in_step_job.py"
FULL, SKIPPED = [20, 4898.0], [20, 4705.0]
WRITES = {"step_counter", "summary_saver", "sinks", "summary_at_end", "profiler", "checkpoint_saver"}
LOGS = {"logging_tensor", "step_counter", "profiler", "checkpoint_saver", "nan_stop", "nan_skip"}
TELLS = {
    "feed_fn": [6.0, 6.0],
    "final_ops": FULL[1],
    "bound_to_an_operation": [5, 10, 15, 20],
    "checkpoint_saver": "20",
}


@pytest.fixture(scope="module")
def found():
    """What each process has found, by the name of the case."""
    ended = in_step.run(JOB, timeout_secs=200)
    assert [each.status for each in ended] == [0, 0], "\n".join(each.err[-3000:] for each in ended)
    every = [[json.loads(line) for line in each.out.splitlines() if line.startswith('["')] for each in ended]
    return [{name: told for name, told, _ in each} for each in every]


def said(of):
    """Returns what was logged, but for what each process says of itself."""
    own = ("Compil", "This is process")
    return [line for line in of["logged"] if not line.startswith(own)]


def test_there_is_a_case_for_each_hook(found):
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 16


@pytest.mark.parametrize(
    "name", sorted(["stop_at_step", "progress", "watchdog", *WRITES, *LOGS - {"nan_stop"}, *TELLS])
)
def test_both_train_alike_and_the_chief_alone_writes_and_logs(found, name):
    chief, other = (each[name] for each in found)
    assert chief["ended"] == other["ended"] == (SKIPPED if name == "nan_skip" else FULL)
    assert bool(chief["files"]) == (name in WRITES)
    assert bool(said(chief)) == (name in LOGS)
    assert (other["files"], said(other)) == ([], [])
    if name in TELLS:
        assert chief["told"] == other["told"] == TELLS[name]


def test_progress_is_shown_by_the_chief_alone(found):
    assert [each["progress"]["told"] for each in found] == [True, False]


def test_a_sink_gets_what_was_written_from_the_chief_alone(found):
    assert [each["sinks"]["told"] for each in found] == [5, 0], "a header and four rows"


def test_a_nan_ends_both_at_the_same_step(found):
    one, other = (each["nan_raise"]["error"] for each in found)
    assert one == other
    assert "global step 13" in one
    stopped = [each["nan_stop"]["ended"] for each in found]
    assert stopped[0][0] == stopped[1][0]
    assert all(math.isnan(weight) for _, weight in stopped)
