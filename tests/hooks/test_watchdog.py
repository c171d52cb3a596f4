from __future__ import annotations

import logging
import re
import threading

import jax
import pytest

from hookline import host_op
from hookline.errors import AbortedError
from hookline.testing import FakeClock, RecordingHook
from hookline.train import WatchdogHook

REAL_SECS = 20.0


@pytest.fixture
def clock():
    with FakeClock() as fake:
        yield fake


class Said(logging.Handler):
    """The output of the watchdog, and a way to wait for it."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self._more = threading.Condition()

    def emit(self, record):
        if not record.name.endswith("watchdog"):
            return
        with self._more:
            self.lines.append(record.getMessage())
            self._more.notify_all()

    def after(self, real_secs):
        """Waits at most so long for one more line, and returns how many there are."""
        with self._more:
            self._more.wait(real_secs)
            return len(self.lines)


@pytest.fixture
def said():
    handler, logger = Said(), logging.getLogger("hookline")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def until(count, said, clock):
    """Lets time pass until so many lines are there."""
    for _ in range(2000):
        if len(said.lines) >= count:
            return
        clock.advance(5)
        said.after(0.01)
    raise AssertionError(said.lines)


def watchdogs():
    return [thread for thread in threading.enumerate() if thread.name == "hookline-watchdog"]


def test_stall_is_logged_once_with_all_stacks_and_the_sessions_state(model, clock, said):
    with model.session(WatchdogHook(stall_secs=60)) as session:
        session.run(model.train)
        session.run(model.train)
        until(1, said, clock)
        for _ in range(20):
            clock.advance(60)
            assert said.after(0.005) == 1
        assert not session.should_stop()
        session.run(model.train)
        until(3, said, clock)
    first, over, second = said.lines
    sentence, main, *_ = first.splitlines()
    assert re.match(
        r"WatchdogHook: The process hangs at test_watchdog.py:\d+ in Said.after. There was no pro", sentence
    )
    assert "started: 2; stop requested: no; checkpoints being written: none." in sentence
    assert main.startswith("Thread MainThread (")
    assert re.search(r"^Thread hookline-sizes: fake_clock.py:\d+ in ", first, re.MULTILINE)
    assert "the stall is over" in over
    assert "Newest step that it has started: 3;" in second


def test_hanging_run_is_shown_with_its_stack(model, clock, said):
    release = threading.Event()

    def hang_here():
        release.wait(REAL_SECS)
        return 0.0

    hang = host_op(hang_here).node()
    with model.session(WatchdogHook(stall_secs=60)) as session:
        thread = threading.Thread(target=lambda: session.run((model.train, hang)), name="runs")
        thread.start()
        until(1, said, clock)
        release.set()
        thread.join(REAL_SECS)
    assert "Thread runs" in said.lines[0]
    assert "in hang_here" in said.lines[0]


def test_nothing_is_logged_while_steps_advance(model, clock, said):
    with model.session(WatchdogHook(stall_secs=60)) as session:
        for _ in range(5):
            session.run(model.train)
            clock.advance(50)
            said.after(0.005)
    assert said.lines == []


@pytest.mark.parametrize("limit", [None, 600])
def test_compilation_counts_only_after_a_limit_of_its_own(model, clock, said, limit):
    release = threading.Event()

    def slow_to_trace(x):
        release.wait(REAL_SECS)
        return x

    compiled = threading.Thread(target=jax.jit(slow_to_trace), args=(1.0,))
    with model.session(WatchdogHook(stall_secs=60, compilation_secs=limit)) as session:
        session.run(model.train)
        compiled.start()
        try:
            if limit is not None:
                until(1, said, clock)
            for _ in range(100):
                clock.advance(10)
                said.after(0.005)
        finally:
            release.set()
            compiled.join(REAL_SECS)
    told = "The process hangs compiling a program at "
    assert [told in line for line in said.lines[:1]] == ([] if limit is None else [True])


def test_thread_ends_with_the_session(model, clock):
    before = len(watchdogs())
    with model.session(WatchdogHook(stall_secs=60)) as session:
        session.run(model.train)
        assert len(watchdogs()) == before + 1
    assert len(watchdogs()) == before
    with pytest.raises(KeyError), model.session(WatchdogHook(stall_secs=60)):
        raise KeyError("fails")
    assert len(watchdogs()) == before


def test_watchdog_watches_the_new_session_after_a_recovery(model, clock, said):
    before = len(watchdogs())
    lose = RecordingHook(failures={"after_run": [None, AbortedError(None, None, "lost")]})
    with model.session(WatchdogHook(stall_secs=60), lose) as session:
        session.run(model.train)
        session.run(model.train)
        assert len(watchdogs()) == before + 1
        until(1, said, clock)
    assert "Newest step that it has started: 1;" in said.lines[0]


@pytest.mark.parametrize("wrong", [0, -1])
def test_timeout_must_be_positive(wrong):
    with pytest.raises(ValueError, match="WatchdogHook requires stall_secs > 0"):
        WatchdogHook(stall_secs=wrong)
    with pytest.raises(ValueError, match="WatchdogHook requires compilation_secs > 0"):
        WatchdogHook(stall_secs=1, compilation_secs=wrong)


def test_end_is_a_flag():
    with pytest.raises(TypeError, match="WatchdogHook requires a bool as end, got 'yes'"):
        WatchdogHook(stall_secs=1, end="yes")
