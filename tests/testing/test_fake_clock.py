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


def test_it_stands_still_until_it_is_advanced(fake):
    assert (clock.monotonic(), clock.time()) == (100.0, 100.0)

    fake.advance(2.5)

    assert (clock.monotonic(), clock.time()) == (102.5, 102.5)


def test_sleep_moves_the_time_at_once(fake):
    clock.sleep(3600)
    clock.sleep(-1)

    assert clock.monotonic() == 3700.0


def test_time_does_not_go_back(fake):
    with pytest.raises(ValueError, match=r"requires secs >= 0, got -1"):
        fake.advance(-1)


def test_leaving_it_puts_the_previous_clock_back():
    before = clock.monotonic()
    with FakeClock(start=-1e9) as outer:
        with FakeClock(start=5.0):
            assert clock.monotonic() == 5.0
        assert clock.monotonic() == outer.monotonic() == -1e9
    assert clock.monotonic() >= before


def test_it_can_be_entered_again_only_after_it_was_left():
    fake = FakeClock(start=1.0)
    with fake, pytest.raises(RuntimeError, match="installed already"):
        fake.__enter__()
    with fake:
        assert clock.monotonic() == 1.0


def test_a_wait_ends_with_its_event_while_the_time_stands_still(fake, thread):
    event = threading.Event()
    answer = thread.submit(clock.wait, event, 10)
    fake.await_waiters()

    event.set()

    assert answer.result(timeout=10) is True
    assert clock.monotonic() == 100.0


def test_a_wait_ends_when_the_fake_time_passes_its_limit_and_not_before(fake, thread):
    answer = thread.submit(clock.wait, threading.Event(), 10)
    fake.await_waiters()

    fake.advance(9.9)
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.02)
    fake.advance(0.1)

    assert answer.result(timeout=10) is False


def test_a_wait_for_a_condition_ends_with_its_predicate(fake, thread):
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


def test_a_predicate_that_nobody_notified_goes_unnoticed_as_in_real_time(fake, thread):
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


def test_a_wait_for_a_condition_ends_when_the_fake_time_passes_its_limit(fake, thread):
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
def test_a_wait_without_time_only_looks(fake, timeout_secs):
    condition, event = threading.Condition(), threading.Event()

    assert clock.wait(event, timeout_secs) is False
    event.set()
    assert clock.wait(event, timeout_secs) is True
    with condition:
        assert clock.wait_for(condition, lambda: True, timeout_secs) is True


def test_with_autojump_a_blocked_wait_moves_the_time_to_its_own_limit():
    with FakeClock(start=0.0, autojump_secs=0.002) as fake:
        assert clock.wait(threading.Event(), 120) is False
        assert fake.monotonic() == 120.0


def test_with_autojump_a_thread_from_before_the_clock_moves_nothing(thread):
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


def test_with_autojump_the_main_thread_moves_a_clock_that_another_one_has_entered(thread):
    fake = FakeClock(start=0.0, autojump_secs=0.0)
    thread.submit(fake.__enter__).result()
    try:
        assert clock.wait(threading.Event(), 5) is False
        assert fake.monotonic() == 5.0
    finally:
        fake.__exit__(None, None, None)


def test_leaving_the_block_releases_threads_that_still_wait(thread):
    with FakeClock() as fake:
        answers = [thread.submit(clock.wait, threading.Event(), 10)]
        fake.await_waiters()

    assert answers[0].result(timeout=10) is False


def test_waiting_for_waiters_that_never_come_names_the_numbers(fake):
    with pytest.raises(TimeoutError, match=r"expected 2 threads .* got 0"):
        fake.await_waiters(2, real_timeout_secs=0.001)
