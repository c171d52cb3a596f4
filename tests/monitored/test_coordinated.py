from __future__ import annotations

import logging
import threading

import pytest
from tests.monitored.conftest import Scripted, monitored

from hookline.errors import AbortedError, OutOfRangeError, UnavailableError
from hookline.testing import FakeSession
from hookline.train import MonitoredSession, SingularMonitoredSession


def test_preemption_reported_by_a_thread_is_the_root_cause_of_a_failed_run():
    for error in (ValueError("queue closed"), OutOfRangeError(None, None, "queue closed")):
        session, root = monitored(FakeSession([error])), UnavailableError(None, None, "peer away")
        session.coordinator.request_stop(root)
        with pytest.raises(UnavailableError) as caught:
            session.run("train")
        assert caught.value is root
        assert caught.value.__cause__ is error


def test_other_error_of_a_thread_is_not_the_root_cause():
    error = ValueError("mine")
    session = monitored(FakeSession([error]))
    session.coordinator.request_stop(KeyError("reader"))
    with pytest.raises(ValueError, match="mine") as caught:
        session.run("train")
    assert caught.value is error


def test_preemption_of_the_run_itself_is_raised():
    error = AbortedError(None, None, "mine")
    session = monitored(FakeSession([error]))
    session.coordinator.request_stop(UnavailableError(None, None, "thread"))
    with pytest.raises(AbortedError) as caught:
        session.run("train")
    assert caught.value is error


def test_jax_runtime_error_of_a_thread_is_mapped_and_stays_the_same_object():
    from jax.errors import JaxRuntimeError

    session = SingularMonitoredSession()
    session.coordinator.request_stop(JaxRuntimeError("ABORTED: gone"))
    with pytest.raises(AbortedError) as first:
        session.should_stop()
    with pytest.raises(AbortedError) as second:
        session.close()
    assert first.value is second.value


def test_closing_does_not_change_the_cause_of_a_threads_error():
    session = monitored(FakeSession())
    cause, error = OSError("disk gone"), ValueError("no batch")
    error.__cause__ = cause
    session.coordinator.request_stop(error)
    with pytest.raises(ValueError, match="no batch") as caught:
        session.close()
    assert caught.value is error
    assert error.__cause__ is cause


def test_close_waits_for_a_stubborn_thread_only_for_the_grace_period(clock):
    session = MonitoredSession(Scripted(raw := FakeSession()), stop_grace_period_secs=5)
    stubborn = threading.Event()
    thread = threading.Thread(target=stubborn.wait, daemon=True)
    session.coordinator.register_thread(thread)
    thread.start()
    closing = threading.Thread(target=session.close)
    closing.start()
    clock.await_waiters()
    clock.advance(6)
    closing.join(10)
    assert raw.closed
    stubborn.set()
    thread.join()


def test_preemption_while_closing_is_only_logged(caplog):
    raw = FakeSession(closing_raises=UnavailableError(None, None, "peer away"))
    with caplog.at_level(logging.WARNING):
        monitored(raw).close()
    assert "peer away" in caplog.text


def test_other_error_while_closing_is_raised():
    with pytest.raises(ValueError, match="stuck"):
        monitored(FakeSession(closing_raises=ValueError("stuck"))).close()
