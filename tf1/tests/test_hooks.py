"""Subclasses of the built-in hooks, written as published ones are."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline.testing import FakeClock, read_events
from hookline_tf1.train._own_callbacks import OwnCallbacks  # That a hook is not called shows in nothing else.


@pytest.fixture
def model():
    """A training step that counts, and its loss: 64, 16, 4, 1, ..."""
    step = tf.train.get_or_create_global_step()
    weight = tf.Variable(8.0, name="weight")
    loss = tf.multiply(weight, weight, name="loss")
    return tf.train.GradientDescentOptimizer(0.25).minimize(loss, global_step=step), loss


def train(train_op, hooks, runs, **how):
    with tf.train.MonitoredTrainingSession(hooks=hooks, **how) as sess:
        for _ in range(runs):
            if sess.should_stop():
                break
            sess.run(train_op)


def scalars(folder):
    return [(e.step, v.tag, v.simple_value) for e in read_events(str(folder)) for v in e.summary.value]


def test_overridden_step_counter_logs_and_records(model, tmp_path):
    recorded = []

    class Own(tf.train.StepCounterHook):
        def _log_and_record(self, elapsed_steps, elapsed_time, global_step):
            recorded.append((elapsed_steps, global_step, self._summary_tag))
            super()._log_and_record(elapsed_steps, elapsed_time, global_step)

    with FakeClock() as clock:

        class Tick(tf.train.SessionRunHook):
            def before_run(self, run_context):
                clock.advance(0.5)

        train(model[0], [Tick(), Own(every_n_steps=2, output_dir=str(tmp_path))], 5)

    assert recorded == [(2, 3, "global_step/sec"), (2, 5, "global_step/sec")]
    assert scalars(tmp_path) == [(3, "global_step/sec", 2.0), (5, "global_step/sec", 2.0)]


def test_step_counter_subclass_has_the_step_and_the_timer(model):
    seen = []

    class Own(tf.train.StepCounterHook):
        def after_run(self, run_context, run_values):
            step = run_values.results + 1
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                seen.append((type(run_values.results), step))

    train(model[0], [Own(every_n_steps=2)], 5)

    assert [step for _, step in seen] == [1, 3, 5]
    assert all(issubclass(kind, np.integer) for kind, _ in seen)


def test_overridden_save_and_get_saver_of_a_checkpoint_hook_are_called(model, tmp_path):
    told = []

    class Own(tf.train.CheckpointSaverHook):
        def _save(self, session, step):
            told.append((int(step), os.path.basename(self._save_path), len(self._listeners)))
            return super()._save(session, step)

        def _get_saver(self):
            told.append("saver")
            return super()._get_saver()

    train(model[0], [Own(str(tmp_path), save_steps=2, saver=tf.train.Saver())], 3)

    assert told == ["saver", *((step, "model.ckpt", 0) for step in (0, 2, 3))]
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-3")


def test_checkpoint_hook_may_override_after_create_session(model, tmp_path):
    class NotAtTheStart(tf.train.CheckpointSaverHook):
        def after_create_session(self, session, coord):
            self._timer.update_last_triggered_step(session.run(self._global_step_tensor))

    train(model[0], [NotAtTheStart(str(tmp_path), save_steps=2, saver=tf.train.Saver())], 4)

    assert sorted(path.name for path in tmp_path.glob("model.ckpt-*")) == ["model.ckpt-2", "model.ckpt-4"]


def test_log_tensors_gets_numpy_values_and_the_run_number(model):
    seen = []

    class Own(tf.train.LoggingTensorHook):
        def _log_tensors(self, tensor_values):
            elapsed, _ = self._timer.update_last_triggered_step(self._iter_count)
            kinds = {type(value) for value in tensor_values.values()}
            seen.append((self._iter_count, self._tag_order, kinds, elapsed is None))

    train(model[0], [Own({"b": model[1], "a": model[1] * 2.0}, every_n_iter=2)], 4)

    assert seen == [(0, ["a", "b"], {np.float32}, True), (2, ["a", "b"], {np.float32}, False)]


def test_logging_hook_may_override_run_callbacks(model, caplog):
    class Own(tf.train.LoggingTensorHook):
        def before_run(self, run_context):
            self._should_trigger = self._timer.should_trigger_for_step(self._iter_count)
            return tf.train.SessionRunArgs(self._current_tensors) if self._should_trigger else None

        def after_run(self, run_context, run_values):
            if self._should_trigger:
                self._log_tensors(run_values.results)
            self._iter_count += 1

    caplog.set_level(logging.INFO, logger="hookline")
    with FakeClock():
        train(model[0], [Own({"loss": model[1]}, every_n_iter=2)], 3)

    assert [r.getMessage() for r in caplog.records if "loss =" in r.getMessage()] == [
        "loss = 64.0", "loss = 4.0 (0.000 sec)",
    ]  # fmt: skip


def test_summary_hook_may_override_run_callbacks(model, tmp_path):
    class Own(tf.train.SummarySaverHook):
        def before_run(self, run_context):
            self._request_summary = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
            requests = {"global_step": self._global_step_tensor}
            if self._request_summary:
                requests["summary"] = self._get_summary_op()
            return tf.train.SessionRunArgs(requests)

        def after_run(self, run_context, run_values):
            step = int(run_values.results["global_step"]) + 1
            if self._request_summary:
                self._timer.update_last_triggered_step(step)
                for summary in run_values.results["summary"]:
                    self._summary_writer.add_summary(summary, step)
            self._next_step = step + 1

    hook = Own(save_steps=2, output_dir=str(tmp_path), summary_op=tf.summary.scalar("value", model[1]))
    train(model[0], [hook], 4)

    assert scalars(tmp_path) == [(1, "value", 64.0), (3, "value", 4.0)]


def test_summary_hook_subclass_with_after_run_is_called(model, tmp_path):
    seen = []

    class Own(tf.train.SummarySaverHook):
        def after_run(self, run_context, run_values):
            seen.append(sorted(run_values.results))
            super().after_run(run_context, run_values)

    hook = Own(save_steps=2, output_dir=str(tmp_path), summary_op=tf.summary.scalar("value", model[1]))
    train(model[0], [hook], 3)

    assert seen == [["global_step", "summary"], ["global_step"], ["global_step", "summary"]]
    assert scalars(tmp_path) == [(1, "value", 64.0), (3, "value", 4.0)]


def test_plain_hooks_are_called_only_when_due(model, tmp_path, monkeypatch):
    calls, first = [], OwnCallbacks.before_run

    def before_run(self, run_context):
        calls.append(type(self).__name__)
        return first(self, run_context)

    monkeypatch.setattr(OwnCallbacks, "before_run", before_run)
    summary = tf.train.SummarySaverHook(2, output_dir=str(tmp_path), summary_op=tf.summary.scalar("value", model[1]))
    train(model[0], [summary, tf.train.LoggingTensorHook({"loss": model[1]}, every_n_iter=2)], 5)

    assert [step for step, *_ in scalars(tmp_path)] == [1, 3, 5]
    assert calls == ["SummarySaverHook", "LoggingTensorHook"]


def test_get_summary_op_is_called_at_each_firing(model, tmp_path):
    chosen = [tf.summary.scalar(name, model[1]) for name in ("first", "then", "last")]

    class Choosing(tf.train.SummarySaverHook):
        def _get_summary_op(self):
            return [chosen[int(self._next_step or 0) // 2]]

    train(model[0], [Choosing(save_steps=2, output_dir=str(tmp_path), summary_op=chosen)], 5)

    assert [(step, tag) for step, tag, _ in scalars(tmp_path)] == [(1, "first"), (3, "then"), (5, "last")]


def test_target_step_set_later_is_used(model):
    hook = tf.train.StopAtStepHook(last_step=3)
    with tf.train.MonitoredSession(hooks=[hook]) as sess:
        runs = 0
        while not sess.should_stop():
            sess.run(model[0])
            runs += 1
            if runs == 2:
                hook._last_step = 5

    assert runs == 5


def test_timer_that_is_read_keeps_its_phase_and_seconds(model, caplog):
    caplog.set_level(logging.INFO, logger="hookline")
    hook = tf.train.LoggingTensorHook({"loss": model[1]}, every_n_iter=3)
    with FakeClock() as clock, tf.train.MonitoredSession(hooks=[hook]) as sess:
        for run in range(8):
            if run == 4:
                assert hook._timer.last_triggered_step() == 3
            sess.run(model[0])
            clock.advance(1.0)

    lines = [record.getMessage() for record in caplog.records if "loss = " in record.getMessage()]
    assert lines == ["loss = 64.0", "loss = 1.0 (3.000 sec)", "loss = 0.015625 (3.000 sec)"]


def test_last_step_of_a_timer_is_readable_and_settable():
    timer = tf.train.SecondOrStepTimer(every_steps=3)
    timer._last_triggered_step = 4
    assert (timer._every_steps, timer._last_triggered_step) == (3, 4)
    assert [timer.should_trigger_for_step(step) for step in (6, 7)] == [False, True]

    timer._last_triggered_step = None
    assert timer.should_trigger_for_step(5)


def test_nan_hook_subclass_has_the_loss(model):
    seen = []

    class Own(tf.train.NanTensorHook):
        def after_run(self, run_context, run_values):
            seen.append(float(run_values.results))
            super().after_run(run_context, run_values)

    train(model[0], [Own(model[1])], 3)

    assert seen == [64.0, 16.0, 4.0]


def test_nan_hook_ends_the_training(model):
    broken = tf.log(model[1] * 0.0 - 1.0)
    with pytest.raises(tf.train.NanLossDuringTrainingError):
        train(tf.group(model[0], broken.op), [tf.train.NanTensorHook(broken)], 3)


def test_last_step_of_a_stop_hook_can_be_set(model):
    class Sooner(tf.train.StopAtStepHook):
        def after_create_session(self, session, coord):
            super().after_create_session(session, coord)
            assert (self._num_steps, self._last_step) == (None, 9)
            self._last_step = 2

    runs = []

    class Count(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            runs.append(1)

    train(model[0], [Sooner(last_step=9), Count()], 9)

    assert len(runs) == 2


def test_changed_last_step_keeps_the_limits_of_other_hooks(model):
    class Limits(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            session.set_last_step(5)

    hook = tf.train.StopAtStepHook(last_step=50)
    with tf.train.MonitoredSession(hooks=[hook, Limits(), tf.train.StopAtStepHook(last_step=8)]) as sess:
        for run in range(20):
            if sess.should_stop():
                break
            if run == 2:
                hook._last_step = 100
            sess.run(model[0])
        assert sess.raw_session().global_step == 5


def test_tf_estimator_has_the_same_hooks():
    for name in ("StepCounterHook", "CheckpointSaverHook", "LoggingTensorHook", "SessionRunHook", "SessionRunArgs"):
        assert getattr(tf.estimator, name) is getattr(tf.train, name)
    assert tf.estimator.ModeKeys.EVAL == "eval"


def test_raw_session_is_found_as_in_published_code(model, tmp_path):
    saver = tf.train.Saver()
    with tf.train.MonitoredTrainingSession() as sess:
        sess.run(model[0])
        raw = sess
        while type(raw).__name__ != "Session":
            raw = raw._sess
        assert raw is sess._sess._sess._sess._sess is sess._tf_sess() is sess.raw_session()
        saver.save(raw, str(tmp_path / "model"), global_step=1)
    assert tf.train.checkpoint_exists(str(tmp_path / "model-1"))


def test_singular_session_gives_the_raw_session(model):
    with tf.train.SingularMonitoredSession() as sess:
        assert isinstance(sess.run(model[1]), np.float32)
        assert sess._sess._sess._sess is sess.raw_session()


def test_tensor_outside_of_a_dict_is_its_own_tag():
    loss = tf.identity(tf.constant(0.5), name="loss")
    tf.train.get_or_create_global_step()
    seen = []

    class Keeping(tf.train.LoggingTensorHook):
        def _log_tensors(self, tensor_values):
            seen.append((self._tag_order, tensor_values))
            super()._log_tensors(tensor_values)

    hook = Keeping([loss, "loss:0"], every_n_iter=1)
    assert [item if isinstance(item, str) else item.name for item in hook._tag_order] == ["loss:0"]
    hook = Keeping([loss], every_n_iter=1)
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as sess:
        sess.run(loss)
    assert seen == [([loss], {loss: 0.5})]
    with pytest.raises(TypeError, match="requires a dict or a list of tensors"):
        tf.train.LoggingTensorHook("loss", every_n_iter=1)
