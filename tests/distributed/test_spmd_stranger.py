"""A stranger who reaches JAX's coordination service writes into the key-value store of an SPMD job."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests import spmd
from tests.coordination.stranger import Stranger

from .targets import until

SCRIPT = Path(__file__).with_name("spmd_stranger.py")
DECISION = {
    "agreement/1/0/decision": json.dumps([100, [[0, "stop", None]]]),
    "agreement/1/0/call": "call",
}


def attacked(entries: dict[str, str], steps: int = 2000, **environment: str) -> list[spmd.Ended]:
    """Runs the training while a stranger writes entries; returns how its processes have ended."""
    job = spmd.Job(SCRIPT, steps, environment=environment)
    try:
        until(lambda: all("begun" in job.printed(index) for index in (0, 1)))
        stranger = Stranger(job.address)
        for key, value in entries.items():
            stranger.set(f"hookline/{key}", value)
        return job.wait(60)
    finally:
        job.kill()


def test_without_a_token_a_stranger_can_stop_a_job_and_a_warning_is_logged():
    ended = attacked(DECISION)
    assert [each.status for each in ended] == [0, 0], ended
    assert int(ended[0].out.split()[-1]) < 2000 * 8 * 31.5, "It has not made all steps."
    assert "The training stops after step 100: process 0 has requested it (None)." in ended[0].err
    assert "The processes of this job have no token: whoever reaches process 0 at 127.0.0.1:" in ended[0].err


@pytest.mark.parametrize(
    "entries",
    [
        DECISION,
        {"liveness/0/call": 'broadcast [1, 0, "out of memory"]'},
        pytest.param({**DECISION, "liveness/0/call": "end"}, marks=pytest.mark.campaign),
    ],
)
def test_with_a_token_all_end_with_an_error_that_names_the_forged_entry(entries):
    ended = attacked(entries, HOOKLINE_TOKEN="secret" * 8)
    for each in told(ended):
        assert any(f"The entry '{key}' in the key-value store of this job" in each.err for key in entries), ended
        assert "no valid signature: somebody other than its processes has written it" in each.err, ended
        assert "no token" not in each.err


def told(ended: list[spmd.Ended]) -> list[spmd.Ended]:
    """Returns the processes that ended with an error; process 0, with JAX's service, may abort the other first."""
    assert ended[0].status == 1, ended
    assert ended[1].status in (1, -signal.SIGABRT), ended
    return [each for each in ended if each.status == 1]


def test_forged_entry_read_only_by_process_0_ends_the_others_with_its_error():
    # The call is one of their own, when the training ends.
    chief, *others = told(attacked({"agreement/1/0/pledge/1": "[3, []]"}, steps=200, HOOKLINE_TOKEN="secret" * 8))
    assert "The entry 'agreement/1/0/pledge/1' in the key-value store of this job has no valid signature" in chief.err
    for other in others:
        assert "Process 0 has failed, and the others end with it: UnauthenticatedError: The entry" in other.err
