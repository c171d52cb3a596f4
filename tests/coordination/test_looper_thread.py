from __future__ import annotations

import threading

import pytest

from hookline.testing import FakeClock
from hookline.train import Coordinator, LooperThread


@pytest.fixture
def coord():
    return Coordinator()


class Recorder(LooperThread):
    """Notes its calls and stops after the third loop."""

    def __init__(self, coord, fail_in=None):
        super().__init__(coord, None)
        self.coord, self.calls, self.fail_in = coord, [], fail_in

    def note(self, call):
        self.calls.append(call)
        if call == self.fail_in:
            raise ValueError(call)

    def start_loop(self):
        self.note("start")

    def run_loop(self):
        self.note("run")
        if len(self.calls) == 4:
            self.coord.request_stop()

    def stop_loop(self):
        self.note("stop")


def test_subclass_starts_runs_until_the_stop_and_stops(coord):
    looper = Recorder(coord)
    looper.start()
    coord.join()

    assert looper.calls == ["start", "run", "run", "run", "stop"]


@pytest.mark.parametrize(("fail_in", "calls"), [("start", ["start"]), ("run", ["start", "run"])])
def test_an_exception_is_reported_and_ends_the_thread_without_stop_loop(coord, fail_in, calls):
    looper = Recorder(coord, fail_in)
    looper.start()

    with pytest.raises(ValueError, match=fail_in):
        coord.join()
    assert looper.calls == calls


def test_stop_before_the_start_runs_nothing(coord):
    coord.request_stop()
    looper = Recorder(coord)
    looper.start()
    coord.join()

    assert looper.calls == ["start", "stop"]


@pytest.mark.parametrize("timer_interval_secs", [None, 0, 60])
def test_the_target_gets_its_arguments(coord, timer_interval_secs):
    calls = []

    def target(*args, **kwargs):
        calls.append((args, kwargs))
        coord.request_stop()

    looper = LooperThread.loop(coord, timer_interval_secs, target, args=(1, 2), kwargs={"c": 3})
    coord.join()

    assert calls == [((1, 2), {"c": 3})]
    assert looper.daemon


def test_loop_runs_at_once_and_then_at_each_timer_interval(coord):
    called = threading.Semaphore(0)
    times = []

    def target():
        times.append(fake.monotonic())
        called.release()

    def wait_for_calls(count):
        assert all(called.acquire(timeout=10) for _ in range(count))
        fake.await_waiters()

    with FakeClock(start=0.0) as fake:
        LooperThread.loop(coord, 10, target)
        wait_for_calls(1)
        fake.advance(9)
        fake.advance(1)
        wait_for_calls(1)
        fake.advance(25)
        wait_for_calls(2)
        fake.advance(5)
        wait_for_calls(1)
        coord.request_stop()
        coord.join()

    assert times == [0.0, 10.0, 35.0, 35.0, 40.0]


def test_loop_without_a_target_waits_for_the_stop(coord):
    with FakeClock():
        looper = LooperThread(coord, 60)
        looper.start()
        coord.request_stop()
        coord.join()

    assert not looper.is_alive()


def test_the_first_argument_must_be_a_coordinator():
    with pytest.raises(ValueError, match="requires a Coordinator as coord, got None"):
        LooperThread(None, 1)


@pytest.mark.parametrize("arguments", [{"args": (1,)}, {"kwargs": {"a": 1}}])
def test_arguments_need_a_target(coord, arguments):
    with pytest.raises(ValueError, match="requires a target for its arguments"):
        LooperThread(coord, 1, **arguments)
