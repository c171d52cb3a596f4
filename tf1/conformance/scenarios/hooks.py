"""Subclasses of the built-in hooks that use protected names, as published ones do, in `hookline_tf1`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from tf1.conformance.parts import counted_training, train_with

from conformance.parts import only, scalars
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("v1.hooks.step_counter.log_and_record")
def _(s: System) -> Record:
    """`_log_and_record` is called in place of the base's, with the writer and the tag at hand."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Examples(tf.train.StepCounterHook):
        def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
            rate = 32 * elapsed_steps / elapsed_time
            value = tf.Summary.Value(tag=self._summary_tag + "_examples", simple_value=rate)
            self._summary_writer.add_summary(tf.Summary(value=[value]), global_step)
            tf.logging.info("examples: %g", rate)

    with s.clock() as clock:

        class Tick(tf.train.SessionRunHook):
            def before_run(self, run_context: Any) -> None:
                clock.advance(0.5)

        train_with(tf, train_op, [Tick(), Examples(every_n_steps=2, output_dir=s.folder)], 7)
    tf.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder)), "log": only(s.log, "examples")}


@scenario("v1.hooks.step_counter.after_run")
def _(s: System) -> Record:
    """A subclass finds the global step in `run_values.results`, and may ask the timer itself."""
    tf = s.tf
    train_op, _ = counted_training(s)
    fired: list[Any] = []

    class Own(tf.train.StepCounterHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = int(run_context.session.run(self._global_step_tensor))
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                fired.append([isinstance(run_values.results, np.integer), step])

    train_with(tf, train_op, [Own(every_n_steps=2)], 5)
    return {"fired": fired}


@scenario("v1.hooks.checkpoint_saver.save")
def _(s: System) -> Record:
    """`_save` is called at each save, and finds the saver, the path and the listeners."""
    tf = s.tf
    train_op, _ = counted_training(s)
    told: list[Any] = []

    class Listener(tf.train.CheckpointSaverListener):
        def before_save(self, session: Any, global_step_value: Any) -> None:
            told.append(["before", int(global_step_value)])

        def after_save(self, session: Any, global_step_value: Any) -> None:
            told.append(["after", int(global_step_value)])

    class Own(tf.train.CheckpointSaverHook):
        def _save(self, session: Any, step: int) -> Any:
            told.append(["save", int(step), os.path.basename(self._save_path), len(self._listeners)])
            return super()._save(session, step)

        def _get_saver(self) -> Any:
            told.append("saver")
            return super()._get_saver()

    hook = Own(s.folder, save_steps=2, listeners=[Listener()], saver=tf.train.Saver())
    train_with(tf, train_op, [hook], 3)
    steps = [item for item in told if item != "saver"]
    return {"told": steps, "asked_for_the_saver": "saver" in told, "newest": tf.train.latest_checkpoint(s.folder)[-6:]}


@scenario("v1.hooks.checkpoint_saver.own_save")
def _(s: System) -> Record:
    """A `_save` of one's own writes where it likes."""
    tf = s.tf
    train_op, _ = counted_training(s)
    saved: list[Any] = []

    class Best(tf.train.CheckpointSaverHook):
        def _save(self, session: Any, step: int) -> bool:
            if step % 2:
                self._get_saver().save(session, os.path.join(self._checkpoint_dir, "best"), global_step=step)
                saved.append(int(step))
            return False

    train_with(tf, train_op, [Best(s.folder, save_steps=1, saver=tf.train.Saver())], 3)
    return {"saved": saved, "newest": os.path.basename(tf.train.latest_checkpoint(s.folder))}


@scenario("v1.hooks.logging.log_tensors")
def _(s: System) -> Record:
    """`_log_tensors` gets NumPy values, and finds the tags, the number of the run and the timer."""
    tf = s.tf
    train_op, loss = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.LoggingTensorHook):
        def _log_tensors(self, tensor_values: Any) -> None:
            elapsed, _ = self._timer.update_last_triggered_step(self._iter_count)
            kinds = [isinstance(value, np.float32 | np.ndarray) for value in tensor_values.values()]
            seen.append([self._iter_count, self._tag_order, kinds, elapsed is None, sorted(self._current_tensors)])
            for tag in self._tag_order:
                tf.logging.info("%s holds %.2f", tag, tensor_values[tag])

    with s.clock():
        train_with(tf, train_op, [Own({"b": loss, "a": loss * 2.0}, every_n_iter=2)], 5)
    return {"seen": seen, "log": only(s.log, " holds ")}


@scenario("v1.hooks.logging.own_callbacks")
def _(s: System) -> Record:
    """A subclass with both run callbacks keeps count itself."""
    tf = s.tf
    train_op, loss = counted_training(s)

    class Own(tf.train.LoggingTensorHook):
        def before_run(self, run_context: Any) -> Any:
            self._should_trigger = self._timer.should_trigger_for_step(self._iter_count)
            return tf.train.SessionRunArgs(self._current_tensors) if self._should_trigger else None

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._should_trigger:
                self._log_tensors(run_values.results)
            self._iter_count += 1

    with s.clock():
        train_with(tf, train_op, [Own({"loss": loss}, every_n_iter=2)], 5)
    return {"log": only(s.log, "loss = ")}


@scenario("v1.hooks.summary_saver.own_callbacks")
def _(s: System) -> Record:
    """A subclass with both run callbacks finds the step and the summaries in the results."""
    tf = s.tf
    train_op, loss = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.SummarySaverHook):
        def before_run(self, run_context: Any) -> Any:
            self._request_summary = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
            requests = {"global_step": self._global_step_tensor}
            if self._request_summary and self._get_summary_op() is not None:
                requests["summary"] = self._get_summary_op()
            return tf.train.SessionRunArgs(requests)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = int(run_context.session.run(self._global_step_tensor))
            if self._request_summary:
                self._timer.update_last_triggered_step(step)
                for summary in run_values.results["summary"]:
                    self._summary_writer.add_summary(summary, step)
                seen.append(step)
            self._next_step = step + 1

    hook = Own(save_steps=2, output_dir=s.folder, summary_op=tf.summary.scalar("value", loss))
    train_with(tf, train_op, [hook], 5)
    tf.summary.FileWriterCache.clear()
    return {"seen": seen, "written": scalars(s.events(s.folder))}


@scenario("v1.hooks.summary_saver.after_run")
def _(s: System) -> Record:
    """A subclass that only looks at the results, and lets its base write."""
    tf = s.tf
    train_op, loss = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.SummarySaverHook):
        def _get_summary_op(self) -> Any:
            return super()._get_summary_op()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(sorted(run_values.results))
            super().after_run(run_context, run_values)

    hook = Own(save_steps=2, output_dir=s.folder, summary_op=tf.summary.scalar("value", loss))
    train_with(tf, train_op, [hook], 4)
    tf.summary.FileWriterCache.clear()
    return {"seen": seen, "written": scalars(s.events(s.folder))}


@scenario("v1.hooks.nan.after_run")
def _(s: System) -> Record:
    """A subclass of the NaN hook finds the loss in the results."""
    tf = s.tf
    train_op, loss = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.NanTensorHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(float(run_values.results))
            super().after_run(run_context, run_values)

    train_with(tf, train_op, [Own(loss, fail_on_nan_loss=False)], 3)
    return {"seen": seen}


@scenario("v1.hooks.stop_at_step.protected")
def _(s: System) -> Record:
    """`_last_step` and `_num_steps` can be read, and the last step set."""
    tf = s.tf
    train_op, _ = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.StopAtStepHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append([self._num_steps, self._last_step])
            super().after_run(run_context, run_values)

    train_with(tf, train_op, [Own(num_steps=3)], 9)
    return {"seen": seen}


@scenario("v1.hooks.values_are_of_numpy")
def _(s: System) -> Record:
    """What a hook sees of a run, and what it runs itself, is of NumPy's types."""
    tf = s.tf
    train_op, loss = counted_training(s)
    seen: list[Any] = []

    class Own(tf.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs({"loss": loss, "vector": tf.get_default_graph().get_tensor_by_name("v:0")})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            results = run_values.results
            seen.append([isinstance(results["loss"], np.float32), isinstance(results["vector"], np.ndarray)])
            seen.append(isinstance(run_context.session.run(loss), np.float32))

    tf.constant([1.0, 2.0], name="v")
    train_with(tf, train_op, [Own()], 2)
    return {"seen": seen}


@scenario("v1.sessions.raw")
def _(s: System) -> Record:
    """The raw session is found as published code looks for it, and saves."""
    tf = s.tf
    train_op, loss = counted_training(s)
    saver = tf.train.Saver()
    with tf.train.MonitoredTrainingSession() as sess:
        sess.run(train_op)
        raw = sess
        while type(raw).__name__ != "Session":
            raw = raw._sess
        path = saver.save(raw, os.path.join(s.folder, "model"), global_step=1)
        values = [float(raw.run(loss)), float(sess._tf_sess().run(loss)), float(sess._sess._sess._sess._sess.run(loss))]
    return {"path": os.path.basename(path), "values": values}


@scenario("v1.sessions.training")
def _(s: System) -> Record:
    """A training session writes summaries, saves, and goes on from there; what it returns is of NumPy's types."""
    tf = s.tf
    train_op, loss = counted_training(s)
    tf.summary.scalar("value", loss)
    how: dict[str, Any] = {"checkpoint_dir": s.folder, "save_summaries_steps": 2, "save_checkpoint_steps": 3}
    folders: list[str] = []
    kinds: list[Any] = []
    with s.clock():
        for last_step in (4, 6):
            hooks = [tf.train.StopAtStepHook(last_step=last_step)]
            # Two of TensorFlow's event files that begin in the same second are one.
            folders.append(os.path.join(s.folder, str(last_step)))
            how |= {"hooks": hooks, "summary_dir": folders[-1], "log_step_count_steps": None}
            with tf.train.MonitoredTrainingSession(**how) as sess:
                while not sess.should_stop():
                    kinds.append(isinstance(sess.run([loss, train_op])[0], np.float32))
            tf.summary.FileWriterCache.clear()
    return {
        "kinds": kinds,
        "written": [scalars(s.events(folder)) for folder in folders],
        "newest": os.path.basename(tf.train.latest_checkpoint(s.folder)),
    }
