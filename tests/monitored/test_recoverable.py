from __future__ import annotations

import contextlib
import logging
import random

import pytest
from tests.monitored.conftest import Scripted

from hookline.errors import AbortedError, UnavailableError
from hookline.testing import FakeSession
from hookline.train import MonitoredSession, RecoveryPolicy

LOST = AbortedError(None, None, "preempted")
POLICY = RecoveryPolicy(max_attempts=3, initial_backoff_secs=1, multiplier=2, jitter=0)


opened = []


def recoverable(*raws, policy=POLICY):
    """A session over the given raw sessions, one a creation; exceptions are raised by the creation."""
    opened.append(MonitoredSession(Scripted(*raws), recovery=policy))
    return opened[-1]


@pytest.fixture(autouse=True)
def sessions_are_closed():
    """`LOST` would keep them by its traceback, and they the handler of Ctrl-C."""
    yield
    while opened:
        with contextlib.suppress(Exception):
            opened.pop().close()


def test_lost_run_is_retried_in_a_new_session(clock):
    first, second = FakeSession([LOST]), FakeSession([5])
    session = recoverable(first, second)
    assert session.run("train", {"x:0": 1}) == 5
    assert first.closed
    assert second.requests == first.requests
    assert session.raw_session() is second


def test_waits_grow_with_each_attempt(clock):
    before = clock.monotonic()
    recoverable(FakeSession([LOST]), LOST, LOST, FakeSession()).run("train")
    assert clock.monotonic() - before == 1 + 2 + 4


def test_first_creation_is_retried(clock):
    assert recoverable(LOST, UnavailableError(None, None, "away"), FakeSession([5])).run("train") == 5


def test_failed_attempts_end_with_the_last_error_and_a_note(clock):
    last = UnavailableError(None, None, "still away")
    session = recoverable(FakeSession([LOST]), LOST, LOST, last)
    with pytest.raises(UnavailableError) as caught:
        session.run("train")
    assert caught.value is last
    assert last.__notes__ == ["Recovery gave up after 3 attempts without progress; see RecoveryPolicy."]
    assert session.should_stop()


def test_other_error_of_a_creation_is_raised(clock):
    session = recoverable(FakeSession([LOST]), ValueError("checkpoint does not fit"))
    with pytest.raises(ValueError, match="does not fit"):
        session.run("train")
    with pytest.raises(ValueError, match="does not fit"):
        session.run("train")


def test_attempts_are_reset_once_the_step_passes_the_failure(clock):
    raws = [FakeSession([None, LOST], global_step=step) for step in range(10)]
    session = recoverable(*raws, FakeSession(global_step=10))
    for _ in range(11):
        session.run("train")
    assert session.raw_session().global_step == 11


def test_step_that_always_fails_ends_the_job_although_earlier_steps_succeed(clock):
    # Restored at step 4 each time; step 5 succeeds and step 6 fails: no progress.
    session = recoverable(*[FakeSession([None, AbortedError(None, None, "x")], global_step=4) for _ in range(50)])

    def train():
        while True:
            session.run("train")

    with pytest.raises(AbortedError):
        train()


def test_unreadable_step_does_not_cause_endless_recovery(clock):
    class Unreadable(FakeSession):
        """Loses the step with the session."""

        @property
        def global_step(self):
            if len(self.requests) > 1:
                raise AbortedError(None, None, "gone")
            return super().global_step

    raws = [Unreadable([None, AbortedError(None, None, "x")], global_step=4) for _ in range(50)]
    session = recoverable(*raws)

    def train():
        while True:
            session.run("train")

    with pytest.raises(AbortedError):
        train()
    assert sum(raw.closed for raw in raws) <= 6


def test_without_a_policy_errors_are_raised():
    with pytest.raises(AbortedError):
        recoverable(FakeSession([AbortedError(None, None, "x")]), policy=None).run("train")
    with pytest.raises(AbortedError):
        recoverable(AbortedError(None, None, "x"), policy=None)


@pytest.mark.parametrize(
    ("before", "after", "origin", "said"),
    [
        (7, 5, "", "The global step went from 7 to 5: 2 steps were lost.\n"),
        (7, 5, "restored from a-5", "went from 7 to 5: 2 steps were lost. The model was restored from a-5.\n"),
        (7, 0, "newly initialised", "All 7 steps were lost: there was no checkpoint"),
        (7, 0, "restored from a-0", "went from 7 to 0: 7 steps were lost. The model was restored from a-0.\n"),
        (
            7,
            9,
            "found on the parameter servers",
            "7 to 9: 0 steps were lost. The model was found on the parameter servers.",
        ),
        (0, 0, "newly initialised", "from 0 to 0: 0 steps were lost. The model was newly initialised."),
        (
            None,
            None,
            "newly initialised",
            "The number of lost steps is not known, because there is no global step. The m",
        ),
    ],
)
def test_reason_and_lost_steps_are_logged_at_error(clock, caplog, before, after, origin, said):
    raws = FakeSession([LOST], global_step=before), FakeSession(global_step=after)
    raws[1].origin = origin
    with caplog.at_level(logging.ERROR):
        recoverable(*raws).run("train")
    assert "AbortedError: preempted. Attempt 1 of 3" in caplog.text
    assert said in caplog.text


def test_should_stop_without_a_policy_does_not_raise(clock):
    session = recoverable(FakeSession(), policy=None)
    session.coordinator.request_stop(UnavailableError(None, None, "away"))
    assert session.should_stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_attempts": 0}, "max_attempts >= 1, got 0; recovery=None turns recovery off"),
        ({"initial_backoff_secs": -1}, "waits >= 0"),
        ({"max_backoff_secs": -1}, "waits >= 0"),
        ({"multiplier": 0.5}, "multiplier >= 1"),
        ({"jitter": 2}, "0 <= jitter <= 1"),
    ],
)
def test_policy_checks_its_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecoveryPolicy(**arguments)


def test_jitter_is_bounded_and_seeded_and_waits_have_a_limit():
    policy = RecoveryPolicy(initial_backoff_secs=1, max_backoff_secs=8, jitter=0.5, seed=3)
    waits = [policy.backoff_secs(attempt, policy.generator()) for attempt in range(1, 2000)]
    assert waits == [policy.backoff_secs(attempt, random.Random(3)) for attempt in range(1, 2000)]
    assert 0.5 <= waits[0] <= 1.5
    assert all(4 <= wait <= 12 for wait in waits[3:])
