from __future__ import annotations

import gc
import logging
import re
import threading

import jax.numpy as jnp
import pytest

from hookline import Graph, Variable, get_default_graph, op
from hookline.errors import AbortedError, UnavailableError
from hookline.testing import FakeSession
from hookline.train import (
    CheckpointSaverHook,
    ChiefSessionCreator,
    LoggingTensorHook,
    MonitoredSession,
    NanTensorHook,
    RecoveryPolicy,
    Scaffold,
    SessionCreator,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    StepCounterHook,
    StopAtStepHook,
)

pytestmark = pytest.mark.usefixtures("clock")
KINDS = pytest.mark.parametrize("kind", [MonitoredSession, SingularMonitoredSession])


def test_parts_are_created_in_order(training, recorder, events):
    class Watched(Scaffold):
        def finalize(self):
            events.append(f"finalize, graph open: {not training.graph.finalized}")
            return super().finalize()

    class Creator(SessionCreator):
        def create_session(self):
            session = ChiefSessionCreator(
                Watched(init_fn=lambda scaffold, session: events.append("init"))
            ).create_session()
            events.append("session")
            return session

    MonitoredSession(Creator(), [recorder("a"), recorder("b")])
    assert events == [
        "a.begin", "b.begin", "finalize, graph open: True", "init", "session", "a.created", "b.created",
    ]  # fmt: skip


def test_begin_may_add_to_the_graph_and_after_create_session_may_not(training):
    class Adding(SessionRunHook):
        def begin(self):
            assert get_default_graph() is training.graph
            self.doubled = op(lambda x: 2 * x)(training.global_step)

        def after_create_session(self, session, coord):
            with pytest.raises(RuntimeError, match="finalized"):
                op(lambda x: x)(self.doubled)

        def before_run(self, run_context):
            return SessionRunArgs(self.doubled)

        def after_run(self, run_context, run_values):
            self.result = run_values.results

    hook = Adding()
    with MonitoredSession(hooks=[hook]) as sess:
        sess.run(training.train_op)
        sess.run(training.train_op)
    assert hook.result == 2


@KINDS
def test_graph_is_open_again_after_close_if_it_was_before(training, kind):
    kind().close()
    Variable(1.0, name="added")
    with kind() as sess:
        assert sess.run("added:0") == 1.0
    training.graph.finalize()
    kind().close()
    assert training.graph.finalized


@KINDS
def test_a_failed_begin_leaves_the_graph_open_and_the_hooks_free(training, recorder, kind):
    hook = recorder(fails={"begin": [ValueError("no"), None]})
    with pytest.raises(ValueError, match="no"):
        kind(hooks=[hook])
    assert not training.graph.finalized
    kind(hooks=[hook]).close()


@KINDS
def test_hook_in_two_live_sessions_is_refused(training, kind):
    hook = StopAtStepHook(last_step=1)
    first = kind(hooks=[hook])
    with pytest.raises(RuntimeError, match="The hook StopAtStepHook serves another session"):
        kind(hooks=[hook])
    first.close()
    kind(hooks=[hook]).close()


def test_a_dropped_session_frees_its_hooks(training, recorder):
    hook = recorder()
    MonitoredSession(hooks=[hook])
    hook.session = hook.coord = None
    gc.collect()
    with MonitoredSession(hooks=[hook]):
        pass
    assert hook.events == ["a.begin", "a.created", "a.begin", "a.created", "a.end"]
    assert not training.graph.finalized


def test_two_sessions_on_one_graph_keep_it_finalized_until_the_last_is_closed(training):
    first, second = MonitoredSession(), MonitoredSession()
    first.close()
    assert training.graph.finalized
    second.close()
    assert not training.graph.finalized


@KINDS
def test_refused_close_leaves_a_running_session(training, recorder, events, kind):
    class Closing(SessionRunHook):
        def after_run(self, run_context, run_values):
            with pytest.raises(RuntimeError, match=r"cannot be closed from inside .* run_context.request_stop\(\)"):
                session.close()

    with kind(hooks=[Closing(), recorder()]) as session:
        assert [session.run(training.global_step) for _ in range(2)] == [0, 0]
    assert events[-1] == "a.end"


def test_step_function_may_not_close_the_session(training):
    with MonitoredSession() as session, pytest.raises(RuntimeError, match=r"step_context.request_stop\(\)"):
        session.run_step_fn(lambda step_context: session.close())


def closing_thread(session, caught):
    def close():
        try:
            session.close()
        except BaseException as exc:
            caught.append(exc)

    return threading.Thread(target=close, name="closer")


def test_close_in_another_thread_waits_for_the_run_and_stops_the_training(training, recorder, events, clock):
    caught = []

    class Waiting(SessionRunHook):
        def after_run(self, run_context, run_values):
            thread.start()
            clock.await_waiters()
            assert session.should_stop()
            events.append("run over")

    session = MonitoredSession(hooks=[Waiting(), recorder()])
    thread = closing_thread(session, caught)
    session.run(training.train_op)
    thread.join()
    assert events[-3:] == ["run over", "a.after", "a.end"]
    assert caught == []
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="already closed"):
        session.run(training.train_op)


def test_close_that_times_out_closes_nothing(training, recorder, events, clock):
    caught = []

    class Hanging(SessionRunHook):
        def after_run(self, run_context, run_values):
            if not caught:
                thread.start()
                clock.await_waiters()
                clock.advance(31)
                thread.join()

    session = MonitoredSession(hooks=[Hanging(), recorder()], stop_grace_period_secs=30)
    thread = closing_thread(session, caught)
    session.run(training.train_op)
    assert re.search("a run in MainThread did not end within 30 s", str(caught[0]))
    assert events[-1] == "a.after"
    session.run(training.train_op)
    session.close()
    assert events[-1] == "a.end"


def test_run_returns_results_in_the_callers_structure(training, recorder):
    with MonitoredSession(hooks=[recorder(asks=SessionRunArgs({"step": training.global_step}))]) as sess:
        assert sess.run({"a": [training.global_step], "b": training.train_op}) == {"a": [0], "b": None}
        assert sess.graph is training.graph


def test_run_uses_the_graph_of_construction_also_after_a_recovery(training):
    sess = MonitoredSession()
    training.faults.append(AbortedError(None, None, "x"))
    with Graph().as_default():
        sess.run(training.train_op)
    assert sess.run(training.global_step) == 1
    sess.close()


def test_singular_session_gives_the_raw_session_and_restores(training, tmp_path, events, recorder):
    with SingularMonitoredSession(hooks=[CheckpointSaverHook(str(tmp_path), save_steps=1)]) as sess:
        for _ in range(3):
            sess.run(training.train_op)
    with SingularMonitoredSession(hooks=[recorder()], checkpoint_dir=str(tmp_path)) as sess:
        assert sess.raw_session().run(training.global_step) == 3
    assert "a.before" not in events


def test_recovery_restores_the_last_checkpoint_and_logs_the_lost_steps(training, tmp_path, caplog):
    creator = ChiefSessionCreator(checkpoint_dir=str(tmp_path))
    hooks = [CheckpointSaverHook(str(tmp_path), save_steps=3), StopAtStepHook(last_step=8)]
    steps = []
    with caplog.at_level(logging.ERROR), MonitoredSession(creator, hooks) as sess:
        while not sess.should_stop():
            if len(steps) == 5:
                training.faults.append(UnavailableError(None, None, "peer away"))
            sess.run(training.train_op)
            steps.append(int(sess.run(training.global_step)) if not sess.should_stop() else 8)
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert "UnavailableError: peer away" in caplog.text
    assert "The global step went from 5 to 3: 2 steps were lost." in caplog.text


def test_num_steps_and_default_hooks_work_together_in_a_real_session(training, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with training.graph.as_default():
        loss = op(lambda step: jnp.float32(10) - step, name="loss")(training.global_step)
    hooks = [
        StopAtStepHook(num_steps=6),
        NanTensorHook(loss),
        LoggingTensorHook({"loss": loss}, every_n_iter=2),
        StepCounterHook(every_n_steps=2, output_dir=str(tmp_path)),
    ]
    runs = 0
    with MonitoredSession(hooks=hooks) as sess:
        while not sess.should_stop():
            sess.run(training.train_op)
            runs += 1
    assert runs == 6
    assert "loss = 10" in caplog.text


# run_step_fn --------------------------------------------------------------------------------------------------------


@KINDS
def test_a_step_function_runs_with_and_without_hooks(training, recorder, events, kind):
    def step_fn(step_context):
        assert type(step_context) is kind.StepContext
        before = step_context.session.run(training.global_step)
        step_context.run_with_hooks(training.train_op)
        return int(before), int(step_context.session.run(training.global_step))

    with kind(hooks=[recorder()]) as sess:
        assert sess.run_step_fn(step_fn) == (0, 1)
    assert events.count("a.before") == 1


def test_method_with_self_is_a_step_function_and_other_parameters_are_refused(training):
    class Steps:
        def step(self, step_context):
            return 5

    with MonitoredSession() as sess:
        assert sess.run_step_fn(Steps().step) == 5
        for wrong in (lambda context: None, lambda: None, lambda step_context, more: None):
            with pytest.raises(ValueError, match="exactly one parameter, called step_context"):
                sess.run_step_fn(wrong)


@KINDS
def test_a_step_function_may_request_the_stop(training, recorder, events, kind):
    stopped = []

    def step_fn(step_context):
        try:
            step_context.request_stop()
        finally:
            stopped.append(True)

    with kind(hooks=[recorder()]) as sess:
        while not sess.should_stop():
            sess.run_step_fn(step_fn)
    assert stopped == [True]
    assert events[-1] == "a.end"


def test_preempted_step_function_is_called_again_with_the_new_session(training, recorder, events):
    sessions = []

    def step_fn(step_context):
        sessions.append(step_context.session)
        step_context.run_with_hooks(training.train_op)
        if len(sessions) == 1:
            raise AbortedError(None, None, "mine")
        return "done"

    with MonitoredSession(hooks=[recorder()]) as sess:
        assert sess.run_step_fn(step_fn) == "done"
    assert sessions[0] is not sessions[1]
    assert events.count("a.created") == 2


def test_other_error_in_a_step_function_is_reported_to_the_hooks(training, recorder, events):
    def step_fn(step_context):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), SingularMonitoredSession(hooks=[recorder()]) as sess:
        sess.run_step_fn(step_fn)
    assert events[-1] == "a.exception:ValueError"


# Recovery that fails where nobody can raise -------------------------------------------------------------------------


def test_failure_swallowed_by_should_stop_is_raised_by_close(training, recorder, events, creator_of):
    a = recorder()
    sess = MonitoredSession(creator_of(FakeSession(), ValueError("broken checkpoint")), [a])
    a.coord.request_stop(UnavailableError(None, None, "peer away"))
    assert sess.should_stop()
    with pytest.raises(ValueError, match="broken checkpoint"):
        sess.close()
    assert events == ["a.begin", "a.created", "a.exception:ValueError"]


def test_failure_raised_by_run_is_not_raised_again_by_close(training, recorder, events, creator_of):
    lost = AbortedError(None, None, "x")
    sess = MonitoredSession(creator_of(FakeSession([lost]), ValueError("broken checkpoint")), [recorder()])
    with pytest.raises(ValueError, match="broken checkpoint"):
        sess.run("train")
    sess.close()
    assert "a.end" not in events


def test_preempted_after_create_session_is_retried(training, recorder, events, creator_of):
    first, second = FakeSession(), FakeSession([5])
    hook = recorder(fails={"created": [UnavailableError(None, None, "x"), None]})
    with MonitoredSession(creator_of(first, second), [hook], recovery=RecoveryPolicy(max_attempts=1)) as sess:
        assert sess.run("train") == 5
    assert first.closed


def test_summary_writer_is_the_cached_one(training, tmp_path):
    from hookline.summary import FileWriterCache

    with MonitoredSession(summary_dir=str(tmp_path)) as sess:
        assert sess.summary_writer is FileWriterCache.get(str(tmp_path))
    with MonitoredSession() as sess:
        assert sess.summary_writer is None
    FileWriterCache.clear()
