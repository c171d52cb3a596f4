"""Ctrl-C in a session that saves nothing: at once in the user's code, and else when the session is whole."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time

import pytest
from tests.instructions import come_before

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.hooks import SessionRunHook
from hookline.signals import preemption

HERE = os.path.dirname(hl.__file__) + os.sep


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    gc.collect()  # A session that another test has dropped without closing it would still count.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1
    assert "hookline-preemption" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def train_op():
    with hl.Graph().as_default():
        weight = hl.Variable(0.0, name="weight")
        yield hl.group(train.get_or_create_global_step().assign_add(1), weight.assign_add(1.0))


def hook_of_own(callback, function):
    """Returns a hook whose callback calls a function from code of hookline's own, where a Ctrl-C has to wait."""
    own = {"function": function}
    exec(compile(f"def {callback}(*given): function()", HERE + "own.py", "exec"), own)
    return type("Hook", (SessionRunHook,), {callback: staticmethod(own[callback])})()


def press():
    """Is the user's code: nothing comes after it."""
    signal.raise_signal(signal.SIGINT)
    pytest.fail("The Ctrl-C did not come here.")


@pytest.mark.parametrize("callback", ["before_run", "after_run", "on_trigger", "end"])
def test_ctrl_c_in_a_hook_is_raised_at_once(train_op, callback):
    class Hook(SessionRunHook):
        trigger = train.every(3)

    left = [True]

    def call(self, *given):
        if left:
            left.clear()
            press()

    setattr(Hook, callback, call)
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(hooks=[Hook()]) as session:  # noqa: PT012
        for _ in range(5):
            session.run(train_op)
    assert not left


def test_ctrl_c_in_a_function_called_by_a_hook_is_raised_at_once(train_op):
    hook = train.FunctionHook(lambda firing: press(), every=2)
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(hooks=[hook]) as session:  # noqa: PT012
        for _ in range(5):
            session.run(train_op)


@pytest.mark.parametrize("where", ["host operation", "source", "step function", "body"])
def test_ctrl_c_elsewhere_in_user_code_is_raised_at_once(train_op, where):
    calls = []

    def work():
        calls.append(1)
        if len(calls) == 4:
            press()
        return 1.0

    def source():
        while True:
            yield work()

    if where == "host operation":
        train_op = hl.group(train_op, hl.host_op(work).node())
    elif where == "source":
        train_op = hl.group(train_op, hl.data.iterator(source, prefetch=0))

    with train.MonitoredSession() as session:

        def once():
            if where == "body":
                work()
            if where == "step function":
                return session.run_step_fn(lambda step_context: step_context.run_with_hooks(train_op) or work())
            return session.run(train_op)

        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            for _ in range(9):
                once()
        once()  # The session goes on.
        assert session.raw_session().run("weight:0") == session.raw_session().global_step


def test_ctrl_c_ends_a_wait_for_a_batch_at_once(train_op):
    waits, come = threading.Event(), threading.Event()

    def source():
        yield from range(3)
        waits.set()
        come.wait(60)

    train_op = hl.group(train_op, hl.data.iterator(source, prefetch=2))

    def press_later():
        waits.wait(60)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_later).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(stop_grace_period_secs=0) as session:  # noqa: PT012
        while True:
            session.run(train_op)
    come.set()
    assert time.monotonic() - begun < 30


def pressed_at(instruction, work):
    """Does the work, with a Ctrl-C before the given instruction of hookline's own; returns whether it came to it."""
    return come_before(
        instruction, lambda file: file.startswith(HERE), lambda: signal.raise_signal(signal.SIGINT), work
    )


@pytest.mark.parametrize("kind", ["fast", "with hooks", "step function"])
@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.campaign)])
def test_ctrl_c_at_any_instruction_of_a_run_loses_nothing(train_op, kind, apart):
    class OnEach(SessionRunHook):
        runs = 0

        def before_run(self, run_context):
            self.runs += 1

        def after_run(self, run_context, run_values):
            pass

    hook = OnEach()
    interrupted = 0
    with train.MonitoredSession(hooks=[hook] if kind == "with hooks" else [], recovery=None) as session:

        def once():
            if kind == "step function":
                session.run_step_fn(lambda step_context: step_context.run_with_hooks(train_op))
            else:
                session.run(train_op)

        raw = session.raw_session()
        for _ in range(3):
            once()
        for instruction in range(1, 100_000, apart):
            before = raw.global_step
            try:
                if not pressed_at(instruction, once):
                    break
            except KeyboardInterrupt:
                interrupted += 1
                assert raw.global_step - before in (0, 1)  # Before it began, or when it was whole.
                continue
            pytest.fail(f"The Ctrl-C before instruction {instruction} was lost.")
        once()
        assert raw.run("weight:0") == raw.global_step
        assert not session.should_stop()
    assert interrupted > 20


def test_ctrl_c_hides_no_error_of_the_end(train_op, caplog):
    """It comes in code of hookline's own, while the session closes."""
    pressed = hook_of_own("end", lambda: signal.raise_signal(signal.SIGINT))

    class Failing(SessionRunHook):
        def end(self, session):
            raise ValueError("the last evaluation failed")

    session = train.MonitoredSession(hooks=[pressed, Failing()])
    session.run(train_op)
    with pytest.raises(ValueError, match="the last evaluation failed"):
        session.close()
    assert "While closing the session: KeyboardInterrupt" in caplog.text
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(hooks=[pressed]) as session:
        session.run(train_op)


def test_session_has_its_grace_period_again_after_a_caught_second_ctrl_c(train_op):
    """Both come in code of hookline's own, which the second one leaves at once."""
    presses = [True]

    def press_twice():
        if presses:
            presses.clear()
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.5)
            signal.raise_signal(signal.SIGINT)
            time.sleep(30)
            pytest.fail("The second Ctrl-C did not come here.")

    with train.MonitoredSession(hooks=[hook_of_own("after_run", press_twice)]) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run(train_op)
        session.run(train_op)
        thread = threading.Thread(target=lambda: time.sleep(1))
        thread.start()
        session.coordinator.register_thread(thread)
    assert not thread.is_alive()


def test_second_ctrl_c_interrupts_one_run_even_if_its_thread_is_late(train_op, monkeypatch):
    """The main thread comes to its handler after the listener has read the signal, and before that interrupts it."""
    is_told, is_next_run = threading.Event(), threading.Event()

    def be_late(*given):
        is_told.set()
        is_next_run.wait(20)
        return threading.Event()

    monkeypatch.setattr(preemption, "exit_after_script", be_late)
    presses = [True]

    def press_twice():
        if not presses:
            is_next_run.set()
            time.sleep(1)  # Here the interrupt of the run before would come.
            return
        presses.clear()
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        other = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        other.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # The other thread gets it, so the wait goes on.
        try:
            ctypes.CDLL(None).usleep(2_000_000)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        pytest.fail("The second Ctrl-C did not come here.")

    with train.MonitoredSession(hooks=[hook_of_own("after_run", press_twice)]) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run(train_op)
        assert is_told.is_set()
        session.run(train_op)


def test_ctrl_c_in_the_constructor_leaves_nothing_behind(train_op):
    class Creator(train.ChiefSessionCreator):
        def create_session(self):
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            time.sleep(60)
            pytest.fail("The Ctrl-C did not come here.")

    with pytest.raises(KeyboardInterrupt):
        train.MonitoredSession(Creator())
    assert not hl.get_default_graph().finalized


def test_ctrl_c_ends_a_wait_before_a_recovery(train_op):
    class Failing(SessionRunHook):
        def before_run(self, run_context):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            raise AbortedError(None, None, "lost")

    begun = time.monotonic()
    policy = train.RecoveryPolicy(initial_backoff_secs=60)
    with pytest.raises(KeyboardInterrupt), train.MonitoredSession(hooks=[Failing()], recovery=policy) as session:
        session.run(train_op)
    assert time.monotonic() - begun < 30


def test_user_handler_is_left_alone(train_op):
    came = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    with train.MonitoredSession() as session:
        signal.raise_signal(signal.SIGINT)
        session.run(train_op)
    signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_plain_session_catches_nothing():
    with hl.Graph().as_default(), hl.Session():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
