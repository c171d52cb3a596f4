"""Subclasses of the saver and of the summary hook as public repositories have them, in `hookline_tf1`."""

from __future__ import annotations

import os
from typing import Any

from tf1.conformance.parts import counted_training, steps_saved, train_with

from conformance.parts import scalars, session_logs
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("v1.published.saver.saves_in_its_own_way")
def _(s: System) -> Record:
    """It starts and saves in its own way, with the listeners (finetune's SaverHookFinetune)."""
    tf = s.tf
    train_op, _ = counted_training(s)
    told: list[Any] = []

    class Listener(tf.train.CheckpointSaverListener):
        def before_save(self, session: Any, global_step_value: Any) -> None:
            told.append(["before", int(global_step_value)])

        def after_save(self, session: Any, global_step_value: Any) -> bool:
            told.append(["after", int(global_step_value)])
            return int(global_step_value) >= 4

    class Lean(tf.train.CheckpointSaverHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            step = session.run(self._global_step_tensor)
            self._save(session, step)
            self._timer.update_last_triggered_step(step)

        def _save(self, session: Any, step: int) -> bool:
            for listener in self._listeners:
                listener.before_save(session, step)
            self._get_saver().save(session, self._save_path, global_step=step, write_meta_graph=False)
            return any([listener.after_save(session, step) for listener in self._listeners])

    hook = Lean(s.folder, save_steps=2, saver=tf.train.Saver(), listeners=[Listener()])
    return {"runs": train_with(tf, train_op, [hook], 9), "told": told, "saved": steps_saved(s)}


@scenario("v1.published.saver.decides_itself")
def _(s: System) -> Record:
    """Its `after_run` reads the step in a run of its own and decides (a MyCheckpointSaverHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Own(tf.train.CheckpointSaverHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = run_context.session.run(self._global_step_tensor)
            if step % 3 == 0 or step == 5:
                self._timer.update_last_triggered_step(step)
                self._save(run_context.session, step)

    train_with(tf, train_op, [Own(s.folder, save_steps=100, saver=tf.train.Saver())], 7)
    return {"saved": steps_saved(s)}


@scenario("v1.published.saver.only_at_the_end")
def _(s: System) -> Record:
    """It neither saves at the start nor after a run (a _CPSaverHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class AtTheEnd(tf.train.CheckpointSaverHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            pass

        def after_run(self, run_context: Any, run_values: Any) -> None:
            pass

    train_with(tf, train_op, [AtTheEnd(s.folder, save_steps=1, saver=tf.train.Saver())], 4)
    return {"saved": steps_saved(s)}


@scenario("v1.published.saver.sets_all_itself")
def _(s: System) -> Record:
    """It sets the attributes again, and stops when a listener says so (a BestSaverHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Best(tf.train.CheckpointSaverListener):
        saved = 0

        def after_save(self, session: Any, global_step_value: Any) -> None:
            self.saved += 1

    class Saving(tf.train.CheckpointSaverHook):
        def __init__(self, folder: str, save_steps: int, saver: Any, listeners: Any) -> None:
            self.best = listeners[0]
            super().__init__(folder, None, save_steps, saver, listeners=listeners)
            self._saver = saver
            self._checkpoint_dir = folder
            self._save_path = os.path.join(folder, "best")
            self._timer = tf.train.SecondOrStepTimer(every_steps=save_steps)
            self._listeners = listeners or []

        def _get_saver(self) -> Any:
            return self._saver

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._timer.should_trigger_for_step(run_values.results + 1):
                step = run_context.session.run(self._global_step_tensor)
                if self._timer.should_trigger_for_step(step):
                    self._timer.update_last_triggered_step(step)
                    self._save(run_context.session, step)
            if self.best.saved >= 3:
                run_context.request_stop()

    hook = Saving(s.folder, 2, tf.train.Saver(), [Best()])
    return {"runs": train_with(tf, train_op, [hook], 9), "saved": steps_saved(s)}


@scenario("v1.published.summary.once")
def _(s: System) -> Record:
    """It never calls its base's `__init__`, and has a timer that only takes note (an OneTimeSummarySaverHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)

    class Deaf:
        def update_last_triggered_step(self, *args: Any) -> None:
            pass

    class Once(tf.train.SummarySaverHook):
        def __init__(self, folder: str, summary_op: Any) -> None:
            self._summary_op = summary_op
            self._summary_writer = None
            self._output_dir = folder
            self._scaffold = None
            self._timer = Deaf()

        def begin(self) -> None:
            super().begin()
            self._done = False

        def before_run(self, run_context: Any) -> Any:
            self._request_summary = not self._done
            requests = {"global_step": self._global_step_tensor}
            if self._request_summary and self._get_summary_op() is not None:
                requests["summary"] = self._get_summary_op()
            return tf.train.SessionRunArgs(requests)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            self._done = True

    train_with(tf, train_op, [Once(s.folder, tf.summary.scalar("value", loss))], 3)
    tf.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder)), "logs": session_logs(s.events(s.folder))}


@scenario("v1.published.summary.only_of_updates")
def _(s: System) -> Record:
    """It looks at what the caller feeds, and writes in its own way (Tensorforce's UpdateSummarySaverHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    update = tf.placeholder(tf.bool, [], name="update")

    class OfUpdates(tf.train.SummarySaverHook):
        def __init__(self, update: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.update = update

        def before_run(self, run_context: Any) -> Any:
            fed = run_context.original_args[1]
            is_due = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
            self._request_summary = fed is not None and fed.get(self.update, False) and is_due
            requests = {"global_step": self._global_step_tensor}
            if self._request_summary and self._get_summary_op() is not None:
                requests["summary"] = self._get_summary_op()
            return tf.train.SessionRunArgs(requests)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = run_values.results["global_step"] + 1
            if self._next_step is None or self._request_summary:
                step = run_context.session.run(self._global_step_tensor)
            if self._next_step is None:
                self._summary_writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), step)
            if "summary" in run_values.results:
                self._timer.update_last_triggered_step(step)
                for summary in run_values.results["summary"]:
                    self._summary_writer.add_summary(summary, step)
            self._next_step = step + 1

    hook = OfUpdates(update, save_steps=2, output_dir=s.folder, summary_op=tf.summary.scalar("value", loss))
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as sess:
        for feed in (None, {update: True}, {update: True}, {update: False}, {update: False}, {update: True}):
            sess.run(train_op, feed)
    tf.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder)), "logs": session_logs(s.events(s.folder))}


@scenario("v1.published.summary.looks_its_summaries_up_late")
def _(s: System) -> Record:
    """It gives no scaffold that is one, and its `_get_summary_op` looks in the graph (finetune's LazySummaryHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)

    class Lazy(tf.train.SummarySaverHook):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(scaffold=1, **kwargs)

        def _get_summary_op(self) -> Any:
            return tf.get_collection(tf.GraphKeys.SUMMARIES)

    tf.summary.scalar("value", loss)
    train_with(tf, train_op, [Lazy(save_steps=2, output_dir=s.folder)], 4)
    tf.summary.FileWriterCache.clear()
    return {"written": scalars(s.events(s.folder)), "logs": session_logs(s.events(s.folder))}
