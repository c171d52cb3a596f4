from __future__ import annotations

import logging
import sys
import threading
import traceback

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hookline import clock, errors
from hookline.testing import FakeClock
from hookline.train import Coordinator

END_OF_INPUT = errors.OutOfRangeError(None, None, "no more records")


@pytest.fixture
def coord():
    return Coordinator()


@pytest.fixture
def start():
    """Starts threads, and lets those that wait for `release` go when the test is over."""
    release, threads = threading.Event(), []

    def start(target=release.wait, name=None):
        threads.append(threading.Thread(target=target, name=name, daemon=True))
        threads[-1].start()
        return threads[-1]

    start.release = release
    yield start
    release.set()
    for thread in threads:
        thread.join(timeout=10)


def raised(error):
    """The exception with the traceback of a function called `raised`."""
    try:
        raise error
    except type(error) as caught:
        return caught


class TestRequestStop:
    def test_the_first_exception_wins_and_a_later_one_is_logged(self, coord, caplog):
        coord.request_stop(ValueError("first"))
        coord.request_stop(KeyError("second"))

        with pytest.raises(ValueError, match="first"):
            coord.raise_requested_exception()
        assert [(r.levelno, "second" in r.getMessage()) for r in caplog.records] == [(logging.WARNING, True)]

    def test_an_exception_after_a_normal_stop_is_logged_and_not_raised(self, coord, caplog):
        coord.request_stop()
        coord.request_stop(ValueError("torn down"))

        coord.join()
        assert "torn down" in caplog.text

    def test_the_same_exception_reported_twice_is_not_logged_as_lost(self, coord, caplog):
        error = ValueError("once")
        coord.request_stop(error)
        coord.request_stop(error)

        assert not caplog.records

    def test_takes_the_tuple_of_exc_info(self, coord):
        try:
            int("seven")
        except ValueError:
            coord.request_stop(sys.exc_info())

        with pytest.raises(ValueError, match="seven"):
            coord.raise_requested_exception()

    @pytest.mark.parametrize("as_tuple", [False, True])
    def test_a_clean_type_stops_without_an_error(self, coord, as_tuple):
        coord.request_stop((type(END_OF_INPUT), END_OF_INPUT, None) if as_tuple else END_OF_INPUT)

        assert coord.should_stop()
        coord.join()

    def test_the_clean_types_are_an_argument(self):
        coord = Coordinator(clean_stop_exception_types=[KeyError])
        coord.request_stop(KeyError("clean"))
        coord.join()

        without_clean_types = Coordinator(clean_stop_exception_types=())
        without_clean_types.request_stop(END_OF_INPUT)
        with pytest.raises(errors.OutOfRangeError):
            without_clean_types.join()

    @pytest.mark.parametrize("wrong", ["text", (None, None, None), ("a", "b", "c"), ValueError, 3])
    def test_anything_else_stops_and_is_reported_by_join(self, coord, wrong):
        coord.request_stop(wrong)

        assert coord.should_stop()
        with pytest.raises(ValueError, match=r"request_stop requires an exception"):
            coord.join()

    def test_from_a_signal_handler_that_interrupts_the_coordinator_does_not_deadlock(self, coord):
        class InterruptedClock(clock.Clock):
            def wait_for(self, condition, predicate, timeout_secs):
                # The action of a signal handler in the main thread while the coordinator holds its lock there.
                coord.request_stop()
                return predicate()

        previous = clock.install(InterruptedClock())
        try:
            assert coord.wait_for_stop()
        finally:
            clock.install(previous)


class TestRaiseRequestedException:
    def test_raises_the_same_object_with_the_traceback_it_was_reported_with(self, coord):
        error = raised(ValueError("bad record"))
        coord.request_stop(error)

        depths = []
        for _ in range(3):
            with pytest.raises(ValueError, match="bad record") as caught:
                coord.raise_requested_exception()
            assert caught.value is error
            names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
            assert names[-1] == "raised"
            depths.append(len(names))
        assert len(set(depths)) == 1


class TestStopOnException:
    def test_reports_the_exception_and_goes_on_after_the_block(self, coord):
        with coord.stop_on_exception():
            raise ValueError("bad record")

        with pytest.raises(ValueError, match="bad record"):
            coord.raise_requested_exception()

    def test_without_an_exception_does_nothing(self, coord):
        with coord.stop_on_exception():
            pass
        assert not coord.should_stop()

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_stops_the_others_and_is_raised_again(self, coord, kind):
        with pytest.raises(kind), coord.stop_on_exception():
            raise kind
        with pytest.raises(kind):
            coord.join()

    def test_closing_a_generator_inside_is_no_error(self, coord):
        def generator():
            with coord.stop_on_exception():
                yield

        suspended = generator()
        next(suspended)
        suspended.close()

        assert not coord.should_stop()

    @pytest.mark.parametrize("kind", [ValueError, StopIteration])
    def test_after_join_the_exception_is_raised_again(self, coord, kind):
        coord.join()
        with pytest.raises(kind), coord.stop_on_exception():
            raise kind


class TestWaitForStop:
    @pytest.mark.parametrize("stops", [True, False])
    def test_ends_at_the_stop_or_the_timeout(self, coord, start, stops):
        answers = []
        with FakeClock() as fake:
            waiter = start(lambda: answers.append(coord.wait_for_stop(timeout=None if stops else 5)))
            fake.await_waiters()
            coord.request_stop() if stops else fake.advance(5)
            waiter.join(timeout=10)
        assert answers == [stops]


class TestJoin:
    def test_waits_for_given_and_registered_threads_without_a_limit(self, coord, start):
        given, registered = start(), start()
        coord.register_thread(registered)
        with FakeClock() as fake:
            joiner = start(lambda: coord.join([given]))
            fake.await_waiters()
            fake.advance(1e6)
            assert joiner.is_alive()
            assert not coord.joined
            start.release.set()
            joiner.join(timeout=10)
        assert not given.is_alive()
        assert not registered.is_alive()
        assert coord.joined

    def test_returns_when_the_last_thread_ends_without_a_stop_request(self, coord, start):
        workers = [start(), start()]
        joiner = start(lambda: coord.join(workers))
        start.release.set()
        joiner.join(timeout=10)
        assert coord.joined

    def test_waits_for_a_thread_that_is_registered_while_it_waits(self, coord, start):
        first_may_end = threading.Event()
        first = start(first_may_end.wait)
        with FakeClock() as fake:
            joiner = start(lambda: coord.join([first]))
            fake.await_waiters()
            late = start()
            coord.register_thread(late)
            first_may_end.set()
            first.join(timeout=10)
            assert joiner.is_alive()
            start.release.set()
            joiner.join(timeout=10)
        assert coord.joined
        assert not late.is_alive()

    def test_names_the_threads_alive_after_the_grace_period(self, coord, start):
        threads = [start(name="reader"), start(name="writer"), start(lambda: None, name="done")]
        coord.request_stop()
        with FakeClock(start=0.0, autojump_secs=0.005) as fake:
            with pytest.raises(RuntimeError, match=r"threads still running: reader writer$"):
                coord.join(threads, stop_grace_period_secs=30)
            assert fake.monotonic() == 30.0
        assert coord.joined

    def test_ends_before_the_grace_period_when_the_threads_end(self, coord, start):
        worker = start(coord.wait_for_stop)
        with FakeClock() as fake:
            begun_secs = fake.monotonic()
            coord.request_stop()
            coord.join([worker])
            assert fake.monotonic() == begun_secs

    def test_the_grace_period_counts_from_the_stop(self, coord, start):
        failures = []

        def join():
            try:
                coord.join([stuck], stop_grace_period_secs=10)
            except RuntimeError as error:
                failures.append(error)

        stuck = start(name="stuck")
        with FakeClock() as fake:
            joiner = start(join)
            fake.await_waiters()
            fake.advance(1000)
            coord.request_stop()
            while joiner.is_alive():
                fake.advance(1)
                joiner.join(timeout=0.005)
        assert "stuck" in str(failures[0])

    def test_ignored_live_threads_are_logged(self, coord, start, caplog):
        caplog.set_level(logging.INFO)
        coord.request_stop()
        coord.join([start(name="stuck")], stop_grace_period_secs=0, ignore_live_threads=True)

        assert "threads still running: stuck" in caplog.text

    def test_the_recorded_exception_comes_before_live_threads(self, coord, start):
        coord.request_stop(ValueError("root cause"))
        with pytest.raises(ValueError, match="root cause"):
            coord.join([start()], stop_grace_period_secs=0)
        assert coord.joined

    def test_raises_the_exception_of_a_thread_with_its_traceback(self, coord, start):
        def read_record():
            with coord.stop_on_exception():
                raise ValueError("bad record")

        with pytest.raises(ValueError, match="bad record") as caught:
            coord.join([start(read_record)])
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "read_record"

    def test_a_thread_that_was_never_started_counts_as_ended(self, coord):
        coord.register_thread(threading.Thread())
        coord.join()
        assert coord.joined

    def test_registered_threads_are_joined_once(self, coord, start):
        coord.register_thread(start())
        coord.request_stop()
        with pytest.raises(RuntimeError, match="still running"):
            coord.join(stop_grace_period_secs=0)

        coord.join(stop_grace_period_secs=0)


class CoordinatorAgainstModel(RuleBasedStateMachine):
    """Any order of calls on one coordinator gives the results of three plain variables."""

    def __init__(self):
        super().__init__()
        self.coord = Coordinator()
        self.stopped, self.joined, self.error = False, False, None

    def expect(self, call, error):
        if error is None:
            call()
        else:
            with pytest.raises(ValueError, match=r"^$") as caught:
                call()
            assert caught.value is error

    @rule(error=st.sampled_from([None, END_OF_INPUT]) | st.builds(ValueError))
    def request_stop(self, error):
        counted = error if isinstance(error, ValueError) else None
        self.expect(lambda: self.coord.request_stop(error), counted if self.joined else None)
        if not self.joined and not self.stopped:
            self.stopped, self.error = True, counted

    @rule()
    def clear_stop(self):
        self.coord.clear_stop()
        self.stopped, self.joined, self.error = False, False, None

    @rule()
    def join(self):
        self.expect(self.coord.join, self.error)
        self.joined = True

    @precondition(lambda self: self.error is not None)
    @rule()
    def raise_requested_exception(self):
        self.expect(self.coord.raise_requested_exception, self.error)

    @invariant()
    def agrees(self):
        assert (self.coord.should_stop(), self.coord.joined) == (self.stopped, self.joined)
        assert self.coord.wait_for_stop(timeout=0) == self.stopped


TestAnyOrderOfCalls = CoordinatorAgainstModel.TestCase


@pytest.mark.parametrize("before", [False, True])
def test_on_stop_callback_is_called_once_also_after_an_earlier_stop(coord, before):
    calls = []
    if before:
        coord.request_stop()
    coord.on_stop(lambda: calls.append(coord.should_stop()))
    assert calls == [True] * before
    if not before:
        coord.request_stop()
        coord.request_stop()
    assert calls == [True]
