"""When SIGTERM and Ctrl-C are handled, and by which handler."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading

import pytest

import hookline as hl
from hookline import train
from hookline.errors import AbortedError, Preempted
from hookline.signals import preemption
from hookline.testing import RecordingHook
from hookline.train import LooperThread

SIGTERM, SIGINT = signal.SIGTERM, signal.SIGINT


def handlers():
    return signal.getsignal(SIGTERM), signal.getsignal(SIGINT)


@pytest.fixture(autouse=True)
def as_before():
    before = handlers()
    yield
    assert handlers() == before
    assert signal.set_wakeup_fd(-1) == -1
    assert "hookline-preemption" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def session(tmp_path):
    """Opens sessions that save, on a graph whose train_op counts."""
    savers = []
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)

        def open_one(*hooks, creator=None, kind=None, **arguments):
            scaffold = train.Scaffold()
            creator = creator or train.ChiefSessionCreator(scaffold)
            saver = train.CheckpointSaverHook(str(tmp_path), save_steps=1000, scaffold=scaffold)
            savers.append(saver)
            return train.MonitoredSession(creator, [*hooks, saver], **arguments)

        open_one.train_op = train_op
        yield open_one
    for saver in savers:
        saver.after_close()


@pytest.fixture
def stalled(session):
    """Counts when a batch comes, of which there is only one."""
    come = threading.Event()

    def source():
        yield 1.0
        come.wait()

    with hl.control_dependencies([hl.data.iterator(source).op]):
        train_op = train.get_global_step().assign_add(1)
    yield train_op
    come.set()


def send(number=SIGTERM):
    os.kill(os.getpid(), number)


def foreign(number, frame):
    pytest.fail("The handler of somebody else was called.")


class Connecting(train.ChiefSessionCreator):
    """Takes over SIGTERM when it connects, as `ray.init` does."""

    def create_session(self):
        raw = super().create_session()
        signal.signal(SIGTERM, foreign)
        return raw


@pytest.mark.parametrize("recoveries", [0, 1])
def test_handler_installed_by_a_connection_is_replaced_and_restored(session, recoveries, caplog):
    before = signal.getsignal(SIGTERM)  # Ray's, where tests before this one have connected.
    with pytest.raises(Preempted), session(creator=Connecting()) as sess:  # noqa: PT012
        for _ in range(recoveries):
            sess.coordinator.request_stop(AbortedError(None, None, "lost"))
            assert not sess.should_stop()
        send()
        assert sess.should_stop()
    assert signal.getsignal(SIGTERM) is foreign
    signal.signal(SIGTERM, before)


def test_sigterm_is_not_caught_without_saves_and_nothing_with_signals_ignored(session):
    before = handlers()
    with train.MonitoredSession():
        assert handlers()[0] == before[0]
    with session(preemption=train.PreemptionOptions(on_signal="ignore")):
        assert handlers() == before
    with session():
        assert all(now is not then for now, then in zip(handlers(), before, strict=True))


def test_ignored_signal_stays_ignored(session):
    before = signal.signal(SIGINT, signal.SIG_IGN)
    try:
        with session() as sess:
            send(SIGINT)
            assert not sess.should_stop()
    finally:
        signal.signal(SIGINT, before)


def test_handler_installed_during_the_session_stays(session):
    """As a notebook does around each of its cells."""
    before = signal.getsignal(SIGINT)
    sess = session()
    signal.signal(SIGINT, foreign)
    sess.close()
    assert signal.getsignal(SIGINT) is foreign
    signal.signal(SIGINT, before)


def test_session_in_another_thread_catches_nothing(session):
    before, seen = handlers(), []

    graph = hl.get_default_graph()

    def train_there():
        with graph.as_default(), session() as sess:
            sess.run(session.train_op)
            seen.append(handlers())

    thread = threading.Thread(target=train_there)
    thread.start()
    thread.join()
    assert seen == [before]


def test_garbage_collected_session_restores_the_handlers(session):
    sess = session()
    sess.run(session.train_op)
    del sess
    gc.collect()
    with pytest.raises(KeyboardInterrupt):
        send(SIGINT)
    with session() as sess:
        assert not sess.should_stop()


def test_nested_sessions_are_both_left_on_a_signal(session):
    ended = []

    class Ending(train.SessionRunHook):
        def __init__(self, name):
            self.name = name

        def end(self, session):
            ended.append(self.name)

    with pytest.raises(Preempted), session(Ending("training")) as sess:  # noqa: PT012
        sess.run(session.train_op)
        with train.MonitoredSession(hooks=[Ending("evaluation")]) as evaluation:
            send()
            assert evaluation.should_stop()
            assert sess.should_stop()
        pytest.fail("not reached")
    assert ended == ["evaluation", "training"]
    with session() as sess:
        assert not sess.should_stop()


def test_step_function_is_finished_first(session, tmp_path):
    def step(step_context):
        step_context.run_with_hooks(session.train_op)
        send()
        return step_context.run_with_hooks(session.train_op)

    with pytest.raises(Preempted), session() as sess:  # noqa: PT012
        assert sess.run_step_fn(step) == 2
        sess.run_step_fn(step)
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-2"


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_step_function_gets_all_its_batches(session, tmp_path, prefetch):
    batch = hl.data.iterator(range(20), prefetch=prefetch)
    with hl.control_dependencies([batch.op]):
        train_op = train.get_global_step().assign_add(1)

    def step(step_context):
        for number in range(5):
            step_context.run_with_hooks(train_op)
            if number == 0 and step_context.session.global_step > 5:
                send()
                assert sess.coordinator.wait_for_stop(30)

    with pytest.raises(Preempted), session(stop_grace_period_secs=0) as sess:  # noqa: PT012
        while True:
            sess.run_step_fn(step)
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-10"


def test_idle_step_function_does_not_wait_for_its_first_batch(session, stalled):
    with pytest.raises(Preempted), session(stop_grace_period_secs=0) as sess:  # noqa: PT012
        sess.run_step_fn(lambda step_context: step_context.run_with_hooks(stalled))
        threading.Timer(0.1, send).start()
        sess.run_step_fn(lambda step_context: step_context.run_with_hooks(stalled))


@pytest.mark.parametrize("callback", ["after_create_session", "after_run", "end"])
def test_evaluation_in_a_callback_and_later_hooks_are_finished_first(session, callback):
    evaluated, later = [], RecordingHook()

    def evaluate(*_):
        with hl.Graph().as_default():
            count = train.get_or_create_global_step().assign_add(1)
            with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=4)]) as evaluation:
                while not evaluation.should_stop():
                    evaluated.append(evaluation.run(count))
                    send()

    with pytest.raises(Preempted), session(type("Evaluating", (), {callback: evaluate})(), later) as sess:  # noqa: PT012
        sess.run(session.train_op)
        if callback == "after_run":
            sess.run(session.train_op)
    assert evaluated == [1, 2, 3, 4]
    runs = [] if callback == "after_create_session" else ["before_run", "after_run"]
    assert later.callbacks == ["begin", "after_create_session", *runs, "end"]


def test_signal_stops_threads(session):
    """The main thread does nothing meanwhile: it waits for the thread."""
    with pytest.raises(Preempted), session() as sess:  # noqa: PT012
        thread = LooperThread.loop(sess.coordinator, 3600, lambda: None)
        send()
        thread.join(30)
        assert not thread.is_alive()


def test_wait_for_the_next_batch_ends_and_the_session_is_left_cleanly(session, stalled):
    ended = []

    class Ending(train.SessionRunHook):
        def before_run(self, run_context):
            if run_context.session.global_step == 1:
                threading.Timer(0.1, send).start()

        def end(self, session):
            ended.append(session.global_step)

    with pytest.raises(Preempted), session(Ending(), stop_grace_period_secs=0) as sess:  # noqa: PT012
        while True:
            sess.run(stalled)
    assert ended == [1]


def test_handler_forwards_signals_to_an_event_loop(session, caplog):
    inside, outside = socket.socketpair()
    outside.setblocking(False)
    signal.set_wakeup_fd(outside.fileno())
    try:
        with pytest.raises(Preempted), session() as sess:  # noqa: PT012
            send()
            assert sess.coordinator.wait_for_stop(30)
        assert inside.recv(1) == bytes([SIGTERM])
        assert signal.set_wakeup_fd(-1) == outside.fileno()
    finally:
        inside.close()
        outside.close()
    assert "SIGTERM: the training ends after the next step" in caplog.text


def test_ctrl_c_in_the_python_shell_raises_keyboard_interrupt(session, monkeypatch):
    """A SystemExit would end that shell."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with session() as sess:
        with pytest.raises(KeyboardInterrupt):
            send(SIGINT)
        assert not sess.should_stop()
        assert signal.getsignal(SIGTERM) is not signal.SIG_DFL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_signal": "stop"}, r"requires on_signal='exit' or 'ignore', got 'stop'\."),
        ({"timeout_secs": 0}, r"requires timeout_secs > 0, got 0\."),
    ],
)
def test_contradictory_options_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"PreemptionOptions {message}"):
        train.PreemptionOptions(**arguments)


@pytest.mark.parametrize("Session", [train.MonitoredSession, train.SingularMonitoredSession])
def test_options_of_another_class_are_refused(Session):
    with pytest.raises(
        TypeError, match=f"{Session.__name__} requires a PreemptionOptions .* as preemption, got 'ignore'"
    ):
        Session(preemption="ignore")


def test_no_signal_is_lost_while_a_session_closes(session):
    """A signal at each line of it: either the session is left, or the earlier handler receives it."""
    heard = []
    before = signal.signal(SIGTERM, lambda number, frame: heard.append(number))
    outcomes = []
    try:
        while (outcome := _closed_amid(session(), heard, len(outcomes))) is not None:
            outcomes.append(outcome)
    finally:
        signal.signal(SIGTERM, before)
    assert set(outcomes) == {"preempted", "heard"}


def _closed_amid(sess, heard, count):
    """Closes a session, sends a signal after a number of lines, and returns the result; None after the last line."""
    heard.clear()
    lines = iter(range(count + 1))

    def trace(frame, event, argument):
        if event == "line" and frame.f_code.co_filename == preemption.__file__ and next(lines, None) == count:
            signal.raise_signal(SIGTERM)
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        sess.close()
        left = False
    except Preempted:
        left = True
    finally:
        sys.settrace(tracing)
    assert not (left and heard)
    if left or heard:
        return "preempted" if left else "heard"
    assert next(lines, None) is not None, f"The signal after {count} lines was lost."
    return None


@pytest.mark.parametrize("leaves", [True, False])
def test_event_loop_started_in_the_session_takes_no_signal_away(session, leaves):
    async def hear():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, list)
        if leaves:
            loop.remove_signal_handler(signal.SIGUSR1)
        send()
        assert sess.coordinator.wait_for_stop(30)

    with pytest.raises(Preempted), session() as sess:
        asyncio.run(hear())


def test_added_hook_that_saves_enables_signal_handling(tmp_path):
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        scaffold = train.Scaffold(saver=train.Saver())
        saving = train.CheckpointSaverHook(str(tmp_path), save_steps=1000, scaffold=scaffold)
        with pytest.raises(Preempted), train.MonitoredSession(train.ChiefSessionCreator(scaffold)) as sess:  # noqa: PT012
            sess.add_hook(saving)
            sess.run(train_op)
            send()
            assert sess.should_stop()
    assert train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-1"
