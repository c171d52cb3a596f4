from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.stand_ins import Servers

from hookline import Session, clock, global_variables_initializer
from hookline.errors import AbortedError, DeadlineExceededError
from hookline.testing import FakeClock, RecordingHook
from hookline.train import Coordinator, GlobalStepWaiterHook, SessionRunArgs, SessionRunContext


@pytest.fixture
def session(model):
    with Session() as session:
        session.run(global_variables_initializer())
        yield session


def begun(session, coord=None, **arguments):
    hook = GlobalStepWaiterHook(**{"poll_secs": 0.01, **arguments})
    hook.begin()
    hook.after_create_session(session, coord or Coordinator())
    return hook


class StopsLater(Coordinator):
    """Is asked to stop once some seconds are over."""

    def __init__(self, secs):
        super().__init__()
        self._stops_at = clock.monotonic() + secs

    def should_stop(self):
        if clock.monotonic() >= self._stops_at:
            self.request_stop()
        return super().should_stop()


def before_run(hook, session):
    return hook.before_run(SessionRunContext(SessionRunArgs(None), session))


def in_thread(function):
    executor = ThreadPoolExecutor(1)
    future = executor.submit(function)
    executor.shutdown(wait=False)
    return future


@pytest.mark.parametrize("wanted", [0, -3])
def test_step_zero_or_less_never_waits(session, wanted):
    hook = begun(session, wait_until_step=wanted)
    assert before_run(hook, session) is None


def test_wait_for_step_1_waits_for_the_first_step(model, session):
    with FakeClock() as fake:
        hook = begun(session, wait_until_step=1)
        waiting = in_thread(lambda: before_run(hook, session))
        fake.await_waiters()
        session.run(model.train)
        assert waiting.result(10) is None


def test_reached_step_starts_at_once(model, session):
    session.run(model.jump)
    assert before_run(begun(session, wait_until_step=5), session) is None


def test_hook_waits_until_another_worker_reaches_the_step(model, session):
    hook = begun(session, wait_until_step=3)
    waiting = in_thread(lambda: before_run(hook, session))
    for _ in range(3):
        assert not waiting.done()
        session.run(model.train)
    assert waiting.result(10) is None


def test_started_hook_never_waits_again_even_after_a_recovery(model, session):
    session.run(model.jump)
    hook = begun(session, wait_until_step=5)
    before_run(hook, session)
    session.load({"global_step": 0})
    hook.after_create_session(session, Coordinator())
    assert before_run(hook, session) is None


def test_begin_resets_the_wait(model, session):
    session.run(model.jump)
    hook = begun(session, wait_until_step=5, timeout_secs=0)
    before_run(hook, session)
    session.load({"global_step": 0})
    hook.begin()
    with pytest.raises(DeadlineExceededError):
        before_run(hook, session)


def test_subclass_that_overrides_begin_still_waits(model):
    class Announcing(GlobalStepWaiterHook):
        def begin(self):
            pass

    with FakeClock(), pytest.raises(DeadlineExceededError), model.session(Announcing(5, timeout_secs=0)) as session:
        session.run(model.train)


def test_recovery_during_the_wait_continues_the_wait(model, session):
    hook = begun(session, wait_until_step=5)
    lost = Session()
    lost.run(global_variables_initializer())
    lost.wait_for_step = lambda *args, **kwargs: (_ for _ in ()).throw(AbortedError(None, None, "server lost"))
    with pytest.raises(AbortedError):
        before_run(hook, lost)
    lost.close()
    hook.after_create_session(session, Coordinator())
    waiting = in_thread(lambda: before_run(hook, session))
    assert not waiting.done()
    session.run(model.jump)
    waiting.result(10)


def test_stop_request_ends_the_wait(session):
    coord = Coordinator()
    hook = begun(session, coord, wait_until_step=5)
    waiting = in_thread(lambda: before_run(hook, session))
    coord.request_stop()
    with pytest.raises(StopIteration, match="stopped waiting for global step 5.*stopped at step 0"):
        waiting.result(10)


@pytest.mark.parametrize("timeout_secs", [None, 8])
def test_stop_is_noticed_within_poll_secs(session, timeout_secs):
    with FakeClock(start=0.0, autojump_secs=0.0) as fake:
        coord = StopsLater(secs=0.3)
        hook = begun(session, coord, wait_until_step=5, timeout_secs=timeout_secs, poll_secs=0.2)
        with pytest.raises(StopIteration, match="stopped waiting for global step 5"):
            before_run(hook, session)
        assert fake.monotonic() == pytest.approx(0.4)


def test_closed_session_ends_the_wait(model):
    session = Session()
    session.run(global_variables_initializer())
    hook = begun(session, wait_until_step=5)
    waiting = in_thread(lambda: before_run(hook, session))
    session.close()
    with pytest.raises((StopIteration, RuntimeError), match=r"stopped waiting|closed Session"):
        waiting.result(10)


def test_a_stopped_wait_runs_no_step_and_ends_the_session_cleanly(model, probe):
    recorder = RecordingHook()
    stop = probe(created=lambda session: threading.Timer(0.05, stop.coord.request_stop).start())
    with model.session(stop, GlobalStepWaiterHook(5, poll_secs=0.01), recorder) as session:
        session.run(model.train)
    assert recorder.callbacks == ["begin", "after_create_session", "end"]
    assert recorder.events[-1].given == 0


def test_timeout_names_the_current_and_the_target_step(model, session):
    session.run(model.train)
    with FakeClock(autojump_secs=0.0) as fake:
        start = fake.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"waited 60 s for global step 5, but it is 1"):
            before_run(begun(session, wait_until_step=5, timeout_secs=60, poll_secs=1), session)
        assert fake.monotonic() - start == pytest.approx(60)


def test_timeout_includes_a_recovery(session):
    with FakeClock() as fake:
        hook = begun(session, wait_until_step=5, timeout_secs=60)
        coord = Coordinator()
        hook.after_create_session(session, coord)
        coord.request_stop()
        with pytest.raises(StopIteration):
            before_run(hook, session)
        hook.after_create_session(session, Coordinator())
        fake.advance(61)
        with pytest.raises(DeadlineExceededError):
            before_run(hook, session)


def test_hook_logs_the_start_of_the_wait_and_each_thousand_steps(model, session, caplog):
    caplog.set_level(logging.INFO, "hookline")
    hook = begun(session, wait_until_step=3500)
    waiting = in_thread(lambda: before_run(hook, session))
    for step, lines in ((0, 1), (500, 1), (1000, 2), (1700, 2), (2300, 3), (3200, 3), (3400, 4)):
        session.load({"global_step": step})
        _wait_for_lines(caplog, lines)
    session.load({"global_step": 3500})
    waiting.result(10)
    waits = [
        r.getMessage() for r in caplog.records if "waits for global step" in r.getMessage() and r.levelname == "INFO"
    ]
    assert [line.split("it is ")[1] for line in waits] == ["0 now.", "1000 now.", "2300 now.", "3400 now."]


def _wait_for_lines(caplog, count):
    for _ in range(1000):
        if sum("it is" in record.getMessage() for record in caplog.records) == count:
            break
        threading.Event().wait(0.005)
    threading.Event().wait(0.03)


@pytest.mark.parametrize(("target", "warns"), [("", True), (Servers(), False)])
def test_session_without_other_workers_gives_a_warning_at_once(model, target, warns, caplog):
    with Session(target) as session:
        session.run(global_variables_initializer())
        with pytest.raises(DeadlineExceededError):
            before_run(begun(session, wait_until_step=5, timeout_secs=0), session)
    assert ("no other can advance the step" in caplog.text) == warns


def test_poll_secs_must_be_positive():
    with pytest.raises(ValueError, match="poll_secs > 0, got 0"):
        GlobalStepWaiterHook(1, poll_secs=0)
