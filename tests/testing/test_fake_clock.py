from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookline import clock
from hookline.testing import FakeClock


@pytest.fixture
def fake():
    with FakeClock(start=100.0) as fake:
        yield fake


@pytest.fixture
def thread():
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def test_time_is_constant_until_it_is_advanced(fake):
    assert (clock.monotonic(), clock.time()) == (100.0, 100.0)

    fake.advance(2.5)

    assert (clock.monotonic(), clock.time()) == (102.5, 102.5)


def test_sleep_advances_the_time_at_once(fake):
    clock.sleep(3600)
    clock.sleep(-1)

    assert clock.monotonic() == 3700.0


def test_time_cannot_go_back(fake):
    with pytest.raises(ValueError, match=r"requires secs >= 0, got -1"):
        fake.advance(-1)


def test_exit_restores_the_previous_clock():
    before = clock.monotonic()
    with FakeClock(start=-1e9) as outer:
        with FakeClock(start=5.0):
            assert clock.monotonic() == 5.0
        assert clock.monotonic() == outer.monotonic() == -1e9
    assert clock.monotonic() >= before


def test_clock_can_be_entered_again_only_after_its_exit():
    fake = FakeClock(start=1.0)
    with fake, pytest.raises(RuntimeError, match="installed already"):
        fake.__enter__()
    with fake:
        assert clock.monotonic() == 1.0


def test_wait_ends_with_its_event_at_constant_time(fake, thread):
    event = threading.Event()
    answer = thread.submit(clock.wait, event, 10)
    fake.await_waiters()

    event.set()

    assert answer.result(timeout=10) is True
    assert clock.monotonic() == 100.0


def test_wait_ends_when_the_fake_time_passes_its_timeout(fake, thread):
    answer = thread.submit(clock.wait, threading.Event(), 10)
    fake.await_waiters()

    fake.advance(9.9)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.02)
    fake.advance(0.1)

    assert answer.result(timeout=10) is False


def test_wait_for_a_condition_ends_with_its_predicate(fake, thread):
    condition, ready = threading.Condition(), []

    def wait():
        with condition:
            return clock.wait_for(condition, lambda: bool(ready), None)

    answer = thread.submit(wait)
    fake.await_waiters()
    with condition:
        ready.append(1)
        condition.notify_all()

    assert answer.result(timeout=10) is True


def test_predicate_without_notify_is_not_noticed_as_in_real_time(fake, thread):
    condition, ready = threading.Condition(), []

    def wait():
        with condition:
            return clock.wait_for(condition, lambda: bool(ready), 10)

    answer = thread.submit(wait)
    fake.await_waiters()
    ready.append(1)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.02)
    fake.advance(10)

    assert answer.result(timeout=10) is True


def test_wait_for_a_condition_ends_when_the_fake_time_passes_its_timeout(fake, thread):
    condition = threading.Condition()

    def wait():
        with condition:
            return clock.wait_for(condition, lambda: False, 10)

    answer = thread.submit(wait)
    fake.await_waiters()
    with condition:
        fake.advance(10)

    assert answer.result(timeout=10) is False


@pytest.mark.parametrize("timeout_secs", [0, -1])
def test_wait_with_zero_timeout_only_checks(fake, timeout_secs):
    condition, event = threading.Condition(), threading.Event()

    assert clock.wait(event, timeout_secs) is False
    event.set()
    assert clock.wait(event, timeout_secs) is True
    with condition:
        assert clock.wait_for(condition, lambda: True, timeout_secs) is True


def test_autojump_advances_the_time_to_the_timeout_of_a_blocked_wait():
    with FakeClock(start=0.0, autojump_secs=0.002) as fake:
        assert clock.wait(threading.Event(), 120) is False
        assert fake.monotonic() == 120.0


def test_autojump_ignores_threads_started_before_the_clock(thread):
    thread.submit(int).result()
    with FakeClock(start=0.0, autojump_secs=0.0) as fake:
        answer = thread.submit(clock.wait, threading.Event(), 15)
        fake.await_waiters()
        assert clock.wait(threading.Event(), 2) is False
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.02)
        assert fake.monotonic() == 2.0
        fake.advance(13)
        assert answer.result(timeout=10) is False


def test_autojump_works_in_the_main_thread_for_a_clock_entered_in_another(thread):
    fake = FakeClock(start=0.0, autojump_secs=0.0)
    thread.submit(fake.__enter__).result()
    try:
        assert clock.wait(threading.Event(), 5) is False
        assert fake.monotonic() == 5.0
    finally:
        fake.__exit__(None, None, None)


def test_exit_releases_threads_that_still_wait(thread):
    with FakeClock() as fake:
        answers = [thread.submit(clock.wait, threading.Event(), 10)]
        fake.await_waiters()

    assert answers[0].result(timeout=10) is False


def test_missing_waiters_time_out_with_the_numbers(fake):
    with pytest.raises(TimeoutError, match=r"expected 2 threads .* got 0"):
        fake.await_waiters(2, real_timeout_secs=0.001)
