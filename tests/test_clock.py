from __future__ import annotations

import threading

import pytest

from hookline import clock


class RecordingClock(clock.Clock):
    """Answers each question with its name."""

    def __init__(self):
        self.calls = []

    def monotonic(self):
        return 1.5

    def time(self):
        return 2.5

    def sleep(self, secs):
        self.calls.append(("sleep", secs))

    def wait(self, event, timeout_secs):
        self.calls.append(("wait", event, timeout_secs))
        return True

    def wait_for(self, condition, predicate, timeout_secs):
        self.calls.append(("wait_for", condition, predicate, timeout_secs))
        return True


def test_every_function_uses_the_installed_clock():
    recording, event, condition = RecordingClock(), threading.Event(), threading.Condition()
    previous = clock.install(recording)
    try:
        assert (clock.monotonic(), clock.time()) == (1.5, 2.5)
        assert (clock.is_past(1.5), clock.is_past(1.6)) == (True, False)
        clock.sleep(3)
        assert clock.wait(event, 4)
        assert clock.wait_for(condition, bool, 5)
    finally:
        assert clock.install(previous) is recording

    assert recording.calls == [("sleep", 3), ("wait", event, 4), ("wait_for", condition, bool, 5)]


def test_real_time_advances_during_a_sleep():
    start, wall = clock.monotonic(), clock.time()

    clock.sleep(0.002)

    assert clock.monotonic() - start >= 0.002
    assert clock.time() > wall


def test_negative_timeout_ends_at_once():
    condition = threading.Condition()

    clock.sleep(-1)
    assert clock.wait(threading.Event(), -1) is False
    with condition:
        assert clock.wait_for(condition, lambda: False, -1) is False


@pytest.mark.parametrize("timeout_secs", [None, float("inf"), 1e300])
def test_timeout_may_be_infinite(timeout_secs):
    event, condition = threading.Event(), threading.Condition()

    def happen():
        event.set()
        with condition:
            condition.notify_all()

    # The first wait must really begin, or a limit that is too large goes unnoticed.
    threading.Timer(0.01, happen).start()

    assert clock.wait(event, timeout_secs) is True
    with condition:
        assert clock.wait_for(condition, event.is_set, timeout_secs) is True


def test_timed_out_wait_returns_the_current_truth():
    condition = threading.Condition()

    assert clock.wait(threading.Event(), 0.001) is False
    with condition:
        assert clock.wait_for(condition, lambda: False, 0.001) is False
