"""Several threads at one monitored session, and an exception at a bad moment: which runs, waits or is refused."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.instructions import come_before

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.train import MonitoredSession, RecoveryPolicy, SessionRunHook

AT_ONCE = RecoveryPolicy(initial_backoff_secs=0)


class Gate(SessionRunHook):
    """Keeps a run inside the session until the test opens it."""

    def __init__(self):
        self.inside, self.opened = threading.Event(), threading.Event()

    def before_run(self, run_context):
        self.inside.set()
        assert self.opened.wait(30)


def started(work):
    """Starts a thread; `outcome` is the result or the error of the work."""

    def do():
        try:
            thread.outcome = work()
        except BaseException as exc:
            thread.outcome = exc

    thread = threading.Thread(target=do, name="other", daemon=True)
    thread.start()
    return thread


def wait_until(holds):
    """Yields the processor to other threads until something holds."""
    for _ in range(100_000):
        if holds():
            return
        threading.Event().wait(0.0001)
    raise AssertionError("it never held")


def test_two_threads_may_close_at_once(training, recorder, events, clock):
    gate = Gate()
    session = MonitoredSession(hooks=[gate, recorder()])
    running = started(lambda: session.run(training.train_op))
    gate.inside.wait(30)
    closing = [started(session.close) for _ in range(2)]
    clock.await_waiters(2)
    gate.opened.set()
    for thread in [running, *closing]:
        thread.join()
    assert [thread.outcome for thread in closing] == [None, None]
    assert events.count("a.end") == 1


def test_waiting_close_comes_before_the_next_run(training, clock):
    gate = Gate()
    session = MonitoredSession(hooks=[gate])
    runs = []

    def work():
        while True:  # A loop that does not ask should_stop().
            session.run(training.train_op)
            runs.append(1)

    running = started(work)
    gate.inside.wait(30)
    closing = started(session.close)
    clock.await_waiters()
    with pytest.raises(RuntimeError, match=r"being closed cannot be run; check should_stop\(\)"):
        session.run(training.train_op)
    gate.opened.set()
    running.join()
    closing.join()
    assert closing.outcome is None
    assert runs == [1]
    assert "closed" in str(running.outcome)


def test_request_of_a_closing_thread_survives_a_recovery(training):
    """It came while the session was being replaced, to the coordinator of the lost one."""

    class Asking(SessionRunHook):
        created = 0

        def after_create_session(self, monitored, coord):
            self.created += 1
            if self.created == 2:
                started(session.request_stop).join()

    session = MonitoredSession(hooks=[Asking()], recovery=AT_ONCE)
    with session:
        training.faults.append(AbortedError(None, None, "lost"))
        session.run(training.train_op)
        assert session.should_stop()


def test_recovery_does_not_look_like_the_end_to_other_threads(training):
    seen = []

    class Looking(SessionRunHook):
        def after_create_session(self, monitored, coord):
            if "session" in globals_of_the_test:
                thread = started(globals_of_the_test["session"].should_stop)
                thread.join()
                seen.append(thread.outcome)

    globals_of_the_test = {}
    with MonitoredSession(hooks=[Looking()], recovery=AT_ONCE) as session:
        globals_of_the_test["session"] = session
        training.faults.append(AbortedError(None, None, "lost"))
        session.run(training.train_op)
        assert not session.should_stop()
    assert seen == [False]


def test_error_of_a_thread_is_raised_though_the_session_is_lost_too(training, recorder, events):
    first = recorder()
    session = MonitoredSession(hooks=[first], recovery=AT_ONCE)
    session.run(training.train_op)
    first.coord.request_stop(ValueError("bad record"))
    training.faults.append(AbortedError(None, None, "lost"))
    with pytest.raises(ValueError, match="bad record"):
        session.run(training.train_op)
    with pytest.raises(ValueError, match="bad record"):
        session.close()
    assert events.count("a.created") == 1


def test_failed_close_does_not_replace_the_error_of_the_body(training):
    gate = Gate()
    session = MonitoredSession(hooks=[gate], stop_grace_period_secs=0)
    running = started(lambda: session.run(training.train_op))
    gate.inside.wait(30)
    with pytest.raises(KeyError, match="mine") as caught, session:
        raise KeyError("mine")
    assert "a run in other did not end within 0 s" in caught.value.__notes__[0]
    gate.opened.set()
    running.join()
    session.close()


def test_step_context_works_only_in_its_own_thread(training):
    with MonitoredSession() as session:

        def step(step_context):
            thread = started(lambda: step_context.run_with_hooks(training.train_op))
            thread.join()
            return thread.outcome

        assert "only in the thread of the step function" in str(session.run_step_fn(step))


def test_step_context_of_a_lost_session_is_invalid(training):
    kept = []
    with MonitoredSession(recovery=AT_ONCE) as session:

        def step(step_context):
            kept.append(step_context)
            if len(kept) == 1:
                training.faults.append(AbortedError(None, None, "lost"))
            else:
                with pytest.raises(RuntimeError, match="may be called only in the thread of the step function"):
                    kept[0].run_with_hooks(training.train_op)
            return step_context.run_with_hooks(training.train_op)

        session.run_step_fn(step)
    assert len(kept) == 2


def test_nested_host_operations_do_not_deadlock():
    """One thread is inside the outer operation and needs the inner one; the other already has the inner one."""
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        inside, go_on = threading.Event(), threading.Event()
        inner = hl.host_op(lambda value: value + 1)(step)

        def run_inner(value):
            inside.set()
            assert go_on.wait(30)
            return session.run(inner) + value

        outer = hl.host_op(run_inner)(step)
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            session.run(inner)
            first = started(lambda: session.run(outer))
            inside.wait(30)
            second = started(lambda: session.run(inner))
            second.join(0.2)  # It gets as far as it can.
            go_on.set()
            for thread in (first, second):
                thread.join(60)
            assert [first.outcome, second.outcome] == [1, 1]


def interrupt_at(instruction, files, work):
    """Does the work with a KeyboardInterrupt before the given one of the instructions in these files."""

    def interrupt():
        raise KeyboardInterrupt

    come_before(instruction, lambda file: file.endswith(files), interrupt, work)


def test_exception_at_any_instruction_of_the_backend_leaves_the_session_usable(training, caplog):
    """When the device has the old values and the new ones are not there yet, the session is lost and created again."""
    files = ("session/running/cached_step.py", "local_store.py", "opt_state.py")
    train_op = hl.group(hl.Variable(1.0).assign_add(1.0), training.train_op)
    with MonitoredSession(recovery=RecoveryPolicy(max_attempts=1000, initial_backoff_secs=0)) as session:
        session.run(train_op)
        for instruction in range(1, 10_000):
            try:
                interrupt_at(instruction, files, lambda: session.run(train_op))
            except KeyboardInterrupt:
                session.run(train_op)
                continue
            break
    assert 50 < instruction < 500
    assert "values are gone" in caplog.text


@pytest.mark.parametrize("apart", [61, *[pytest.param(apart, marks=pytest.mark.campaign) for apart in (13, 1)]])
def test_ctrl_c_at_any_instruction_of_a_load_loses_no_reloaded_value(training, apart):
    weights = [hl.Variable(np.zeros(2, "float32"), name=name) for name in "abc"]
    train_op = hl.group(training.train_op, *(each.assign_add(np.ones(2, "float32")) for each in weights))
    values = {name: np.full(2, 7, "float32") for name in "abc"}
    for instruction in range(1, 10_000, apart):
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            session.run(train_op)
            try:
                interrupt_at(
                    instruction, ("session/opt_state.py", "session/local_store.py"), lambda: session.load(values)
                )
            except KeyboardInterrupt:
                session.load(values)
                session.run(train_op)
                assert [session.run(each).tolist() for each in weights] == [[8, 8]] * 3
                continue
        break
    assert 50 < instruction < 2000


def test_each_concurrent_run_is_made_or_refused(training):
    barrier, runs, refused = threading.Barrier(8), [], set()

    def work():
        for _ in range(100):
            barrier.wait()
            try:
                session.run(training.train_op)
            except RuntimeError as error:
                refused.add(str(error))
            else:
                runs.append(1)

    with MonitoredSession() as session:
        threads = [started(work) for _ in range(8)]
        for thread in threads:
            thread.join()
        assert [thread.outcome for thread in threads] == [None] * 8
        assert session.raw_session().global_step == len(runs) >= 100
    assert all("one thread at a time" in told for told in refused)
