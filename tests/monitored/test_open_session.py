"""An open session: its parts by public names, added hooks, runs without hooks."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import hookline as hl
from hookline import placeholder, train
from hookline.errors import AbortedError
from hookline.train import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    MonitoredSession,
    MonitoredTrainingSession,
    NanTensorHook,
    Saver,
    Scaffold,
    SessionRunHook,
    SingularMonitoredSession,
    StepCounterHook,
    StopAtStepHook,
)

KINDS = pytest.mark.parametrize("kind", [MonitoredSession, SingularMonitoredSession])


@KINDS
def test_raw_session_runs_without_hooks_and_is_replaced_by_a_recovery(training, recorder, events, kind):
    with kind(hooks=[recorder()]) as session:
        raw = session.raw_session()
        events.clear()
        assert raw.run(training.train_op) is None
        assert events == []
        if kind is MonitoredSession:
            training.faults.append(AbortedError(None, None, "lost"))
            session.run(training.train_op)
            assert session.raw_session() is not raw
    with pytest.raises(RuntimeError, match="already closed"):
        session.raw_session()


def test_session_has_its_scaffold_coordinator_and_writer(training, tmp_path):
    scaffold = Scaffold()
    with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), scaffold=scaffold) as session:
        assert session.scaffold is scaffold
        assert session.summary_writer.get_logdir() == str(tmp_path)
        first = session.coordinator
        training.faults.append(AbortedError(None, None, "lost"))
        session.run(training.train_op)
        assert session.coordinator is not first
        session.coordinator.request_stop()
        assert session.should_stop()


def test_saver_takes_a_monitored_session_and_calls_no_hooks(training, recorder, events, tmp_path):
    with MonitoredSession(hooks=[recorder()]) as session:
        for _ in range(3):
            session.run(training.train_op)
        events.clear()
        path = train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=training.global_step)
        assert path.endswith("model.ckpt-3")
        session.run(training.train_op)
        train.Saver().restore(session, path)
        assert train.global_step(session, training.global_step) == 3
    assert events == ["a.before", "a.after", "a.end"]


def test_restore_between_runs_is_seen_by_hooks_in_the_next_run(training, tmp_path):
    with MonitoredSession(hooks=[StopAtStepHook(last_step=100)]) as session:
        raw = session.raw_session()
        raw.load({"global_step": np.int32(99)})
        path = Saver().save(session, str(tmp_path / "model.ckpt"))
        raw.load({"global_step": np.int32(0)})
        session.run(training.train_op)
        Saver().restore(session, path)
        session.run(training.train_op)
        assert session.should_stop()


def test_lost_raw_run_in_a_step_function_is_recovered(training, recorder, events, tmp_path):
    class LosesTheFirst(SessionRunHook):
        lost = False

    evaluated = []

    def evaluate(step_context):
        if not LosesTheFirst.lost:
            LosesTheFirst.lost = True
            raise AbortedError(None, None, "lost while evaluating")
        return step_context.session.run(training.global_step)

    hooks = [CheckpointSaverHook(str(tmp_path), save_steps=1, saver=Saver()), recorder()]
    scaffold = Scaffold()
    creator = train.ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
    with MonitoredSession(creator, hooks) as session:
        session.run(training.train_op)
        events.clear()
        evaluated.append(session.run_step_fn(evaluate))
        assert events == ["a.created"]
    assert evaluated == [1]


def test_a_step_function_may_run_the_session_itself(training, recorder, events):
    with MonitoredSession(hooks=[recorder()]) as session:
        events.clear()

        def step(step_context):
            session.run(training.train_op)
            step_context.run_with_hooks(training.train_op)
            return step_context.session.run(training.global_step)

        assert session.run_step_fn(step) == 2
        assert events == ["a.before", "a.after"] * 2


def test_step_context_is_invalid_after_its_function(training):
    kept = []
    with MonitoredSession() as session:
        session.run_step_fn(lambda step_context: kept.append(step_context))
        with pytest.raises(RuntimeError, match="while that function runs"):
            kept[0].run_with_hooks(training.train_op)


# An added hook --------------------------------------------------------------------------------------------------------


def test_added_hook_is_called_from_the_next_run_on_and_over_recoveries(training, recorder, events):
    with MonitoredSession(hooks=[recorder("a")]) as session:
        session.run(training.train_op)
        events.clear()
        session.add_hook(recorder("late"))
        session.run(training.train_op)
        assert events == ["late.begin", "late.created", "a.before", "late.before", "a.after", "late.after"]
        events.clear()
        training.faults.append(AbortedError(None, None, "lost"))
        session.run(training.train_op)
        assert events[:4] == ["a.before", "late.before", "a.created", "late.created"]
    assert events[-2:] == ["a.end", "late.end"]


def test_added_stop_hook_stops(training):
    with MonitoredSession() as session:
        session.run(training.train_op)
        session.add_hook(StopAtStepHook(num_steps=2))
        session.run(training.train_op)
        assert not session.should_stop()
        session.run(training.train_op)
        assert session.should_stop()


def test_added_hook_is_inserted_in_its_declared_order(training, recorder, events):
    early = recorder("early")
    early.comes_before = first = recorder("a")
    with MonitoredSession(hooks=[first]) as session:
        session.add_hook(early)
        events.clear()
        session.run(training.train_op)
    assert events[:2] == ["early.before", "a.before"]


def test_added_hook_that_changes_the_graph_is_refused_with_the_reason(training, recorder, events):
    hook = NanTensorHook("global_step:0")
    with MonitoredSession(hooks=[recorder()]) as session:
        with pytest.raises(
            RuntimeError, match=r"hook NanTensorHook cannot join an open session: its begin .*nan_check"
        ):
            session.add_hook(hook)
        session.run(training.train_op)
    with MonitoredSession(hooks=[hook]) as session:
        session.run(training.train_op)


def test_added_hook_that_fails_is_not_added_and_may_be_added_elsewhere(training, recorder, events):
    hook = recorder("late", fails={"created": [ValueError("not now"), None]})
    with MonitoredSession(hooks=[recorder()]) as session:
        with pytest.raises(ValueError, match="not now"):
            session.add_hook(hook)
        assert events[-1] == "late.exception:ValueError"
        session.run(training.train_op)
        assert "late.before" not in events
        session.add_hook(hook)
        session.run(training.train_op)
        assert "late.before" in events


def test_hook_is_added_once_outside_of_runs_to_an_open_session(training, recorder):
    first = recorder()

    class Inviting(SessionRunHook):
        def after_run(self, run_context, run_values):
            session.add_hook(recorder("late"))

    with MonitoredSession(hooks=[first]) as session:
        with pytest.raises(RuntimeError, match="hook Recorder is already in this session"):
            session.add_hook(first)
        with pytest.raises(TypeError, match="is the class StepCounterHook"):
            session.add_hook(StepCounterHook)
        with MonitoredSession() as other, pytest.raises(RuntimeError, match="serves another session"):
            other.add_hook(first)
        session.add_hook(Inviting())
        with pytest.raises(RuntimeError, match="from inside one of its runs or callbacks"):
            session.run(training.train_op)
    with pytest.raises(RuntimeError, match="already closed"):
        session.add_hook(recorder("late"))


# Threads and ends -----------------------------------------------------------------------------------------------------


def in_threads(count, work):
    """Calls `work(i)` in several threads at once, and returns their errors."""
    start, caught = threading.Barrier(count), []

    def do(i):
        start.wait()
        try:
            work(i)
        except Exception as exc:
            caught.append(exc)

    threads = [threading.Thread(target=do, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return caught


def test_concurrent_threads_are_refused_and_no_step_is_lost_or_repeated(training, tmp_path):
    steps = []

    class Seeing(SessionRunHook):
        def after_run(self, run_context, run_values):
            steps.append(run_context.session.global_step)

    hooks = [Seeing(), StopAtStepHook(last_step=50), CheckpointSaverHook(str(tmp_path), save_steps=5, saver=Saver())]
    with MonitoredSession(hooks=hooks) as session:

        def work(i):
            while not session.should_stop():
                session.run(training.train_op)

        caught = in_threads(8, work)
        while not session.should_stop():
            session.run(training.train_op)
    assert steps == list(range(1, 51))
    assert all("admits one thread at a time" in str(exc) or "after should_stop" in str(exc) for exc in caught)


def test_refused_run_is_no_failure_of_the_training(training, recorder, events):
    class Meanwhile(SessionRunHook):
        def after_run(self, run_context, run_values):
            (self.refused,) = in_threads(1, lambda i: session.run(training.train_op))

    hook = Meanwhile()
    with MonitoredSession(hooks=[hook, recorder()]) as session:
        session.run(training.train_op)
    assert "MainThread runs it now" in str(hook.refused)
    assert events == ["a.begin", "a.created", "a.before", "a.after", "a.end"]


@pytest.mark.parametrize("reads_the_step", [False, True])
def test_host_operation_of_a_raw_session_runs_in_one_thread_at_a_time(reads_the_step):
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()

        def count():
            for i in range(200):
                threading.Event().wait(0.0002)  # lets other threads in, if they may
                yield i

        numbers = count()
        draw = hl.host_op(lambda *_: next(numbers))(*([step] if reads_the_step else []))
        drawn = []
        with hl.Session() as session:
            session.run(hl.global_variables_initializer())
            assert in_threads(8, lambda i: [drawn.append(session.run(draw)) for _ in range(10)]) == []
    assert sorted(drawn) == list(range(80))


def test_host_operation_may_run_its_own_session():
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        inner = hl.host_op(lambda value: value + 1)(step)
        with hl.Session() as session:
            outer = hl.host_op(lambda value: session.run(inner) + value)(step)
            session.run(hl.global_variables_initializer())
            assert in_threads(4, lambda i: [session.run(outer) for _ in range(20)]) == []
            assert session.run(outer) == 1


class Batch(np.ndarray):
    """A batch whose end can be observed."""


@KINDS
@pytest.mark.parametrize("by", ["caller", "hook", "step function"])
def test_fed_batch_is_freed_after_its_run(by, kind):
    alive = []

    def batch():
        made = np.ones(100_000, np.float32).view(Batch)
        alive.append(weakref.ref(made))
        return {x: made}

    with hl.Graph().as_default():
        x = placeholder("float32", [None], name="x")
        total = hl.op(lambda value: value.sum())(x)
        seen = []

        class Looking(SessionRunHook):
            def before_run(self, run_context):
                gc.collect()
                seen.append(sum(ref() is not None for ref in alive))

        hooks = [Looking(), *([FeedFnHook(batch)] if by == "hook" else [])]
        with kind(hooks=hooks) as session:
            for _ in range(4):
                if by == "caller":
                    session.run(total, batch())
                elif by == "hook":
                    session.run(total)
                else:
                    session.run_step_fn(lambda step_context: step_context.run_with_hooks(total, batch()))
            gc.collect()
            assert [ref() for ref in alive] == [None] * 4
    assert seen == ([0] * 4 if by == "hook" else [1] * 4)


def test_batch_of_a_failed_run_is_freed(training):
    alive = []

    def batch():
        made = np.ones(3, np.float32).view(Batch)
        alive.append(weakref.ref(made))
        return {x: made}

    class Failing(SessionRunHook):
        def before_run(self, run_context):
            raise ValueError("before")

    x = placeholder("float32", [None], name="x")
    total = hl.op(lambda value: 1 // value.shape[1])(x)  # fails where it is traced
    with MonitoredSession(hooks=[FeedFnHook(batch)]) as session:
        with pytest.raises(IndexError):
            session.run(total)
        with pytest.raises(IndexError):
            session.run(total)
        session.add_hook(Failing())
        with pytest.raises(ValueError, match="before"):
            session.run(total)
        gc.collect()
        assert [ref() for ref in alive] == [None] * 3


def test_hook_that_no_longer_feeds_does_not_conflict(training):
    class Once(SessionRunHook):
        fed = False

        def before_run(self, run_context):
            if not self.fed:
                self.fed = True
                return train.SessionRunArgs(None, feed_dict={x: 2.0})
            return None

    x = placeholder("float32", name="x")
    with MonitoredSession(hooks=[Once()]) as session:
        assert session.run(x) == 2.0
        with pytest.raises(hl.errors.InvalidArgumentError, match="A value must be fed"):
            session.run(x)


def test_started_save_is_completed_when_another_hook_cannot_start(training, tmp_path):
    begun = []

    class Failing(SessionRunHook):
        def after_create_session(self, session, coord):
            begun.extend(thread for thread in threading.enumerate() if thread.name.startswith("hookline-save"))
            raise ValueError("no room")

    saver = Saver()
    with pytest.raises(ValueError, match="no room"):
        MonitoredSession(hooks=[CheckpointSaverHook(str(tmp_path), save_steps=1, saver=saver), Failing()])
    assert [thread.is_alive() for thread in begun] == [False]
    assert train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-0")


def test_pending_save_of_another_saver_is_awaited_before_a_restore(training, tmp_path):
    path = str(tmp_path / "model.ckpt")
    with hl.Session() as session:
        session.run(hl.global_variables_initializer())
        session.run(training.global_step.assign(7))
        Saver().save_async(session, path, training.global_step)
        with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_secs=None) as monitored:
            assert monitored.run(training.global_step) == 7


def test_interrupted_end_does_not_prevent_the_other_ends(training, recorder, events, tmp_path):
    thread = threading.Thread(target=lambda: session.coordinator.wait_for_stop(30))
    last = recorder("last")
    session = MonitoredSession(hooks=[recorder("a", fails={"end": KeyboardInterrupt()}), last])
    thread.start()
    session.coordinator.register_thread(thread)
    session.run(training.train_op)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert events[-2:] == ["a.end", "last.end"]
    assert not thread.is_alive()
    assert last.session.closed


def test_listener_may_save(training, tmp_path):
    """A listener gets the raw session, as always; a monitored one works too."""
    saved = []

    class Copying(CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(Saver().save(session, str(tmp_path / "copy" / "model.ckpt"), global_step_value))

    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, saver=Saver(), listeners=[Copying()])
    with MonitoredSession(hooks=[hook]) as session:
        for _ in range(3):
            session.run(training.train_op)
    assert [path.rpartition("-")[2] for path in saved] == ["0", "2", "3"]
