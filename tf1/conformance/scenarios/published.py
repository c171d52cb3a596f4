"""Subclasses of the built-in hooks as public repositories have them, in `hookline_tf1`: on which runs they fire.

Each says whose it is. What is not about firing is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tf1.conformance.parts import counted_training, train_with

from conformance.parts import only
from conformance.scenario import Record, scenario
from conformance.system import System


@scenario("v1.published.logging.sends_metrics")
def _(s: System) -> Record:
    """`_log_tensors` logs through its base and sends the values on (PolyaxonMetrics of Polyaxon's examples)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    sent: list[Any] = []

    class Metrics(tf.train.LoggingTensorHook):
        def __init__(self, tensors: Any, every_n_iter: int | None = None, every_n_secs: float | None = None) -> None:
            super().__init__(tensors, every_n_iter=every_n_iter, every_n_secs=every_n_secs)
            self.values = tensors.copy()

        def _log_tensors(self, tensor_values: Any) -> None:
            super()._log_tensors(tensor_values)
            for name in self.values:
                self.values[name] = tensor_values[name]
            sent.append([self._iter_count, float(self.values["loss"])])

    with s.clock():
        train_with(tf, train_op, [Metrics({"loss": loss}, every_n_iter=3)], 8)
    return {"sent": sent, "log": only(s.log, "loss = ")}


@scenario("v1.published.logging.evaluation")
def _(s: System) -> Record:
    """It moves the timer in `begin`, and counts before the run (Magenta's EvalLoggingTensorHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)

    class Evaluating(tf.train.LoggingTensorHook):
        def begin(self) -> None:
            self._timer.update_last_triggered_step(0)
            super().begin()

        def before_run(self, run_context: Any) -> Any:
            self._iter_count += 1
            return super().before_run(run_context)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            self._iter_count -= 1

    with s.clock():
        train_with(tf, train_op, [Evaluating({"loss": loss}, every_n_iter=3)], 8)
    return {"log": only(s.log, "loss = ")}


@scenario("v1.published.logging.asks_whether_it_fired")
def _(s: System) -> Record:
    """It lets its base log, and then looks at `_should_trigger` (a LoggingHook beside BERT)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    fired: list[int] = []

    class Printing(tf.train.LoggingTensorHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            if self._should_trigger:
                fired.append(self._iter_count)

    with s.clock():
        train_with(tf, train_op, [Printing({"loss": loss}, every_n_iter=2)], 5)
    return {"fired": fired, "log": only(s.log, "loss = ")}


@scenario("v1.published.logging.never_moves_the_timer")
def _(s: System) -> Record:
    """Its `after_run` counts, and does not move the timer, so every run fires (an NPYHook)."""
    tf = s.tf
    train_op, loss = counted_training(s)
    kept: list[float] = []

    class Keeping(tf.train.LoggingTensorHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._should_trigger:
                kept.append(float(np.array(run_values.results["loss"])))
            self._iter_count += 1

    train_with(tf, train_op, [Keeping({"loss": loss}, every_n_iter=3)], 4)
    return {"kept": kept}


@scenario("v1.published.step_counter.time_left")
def _(s: System) -> Record:
    """It starts the timer when the session is created, so the first firing has a rate (a ProgressBarHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)
    recorded: list[Any] = []

    class Progress(tf.train.StepCounterHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            self._timer.update_last_triggered_step(session.run(self._global_step_tensor))

        def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
            recorded.append([int(elapsed_steps), elapsed_time, int(global_step)])

    with s.clock() as clock:

        class Tick(tf.train.SessionRunHook):
            def before_run(self, run_context: Any) -> None:
                clock.advance(0.5)

        train_with(tf, train_op, [Tick(), Progress(every_n_steps=3)], 7)
    return {"recorded": recorded}


@scenario("v1.published.step_counter.counts_itself")
def _(s: System) -> Record:
    """Its `after_run` counts runs, not global steps, where the global step stands still (an evaluation's hook)."""
    tf = s.tf
    _, loss = counted_training(s)
    fired: list[Any] = []

    class Counting(tf.train.StepCounterHook):
        def __init__(self, every_n_steps: int) -> None:
            self._steps = 0
            super().__init__(every_n_steps)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._steps += 1
            if self._timer.should_trigger_for_step(self._steps):
                _, steps = self._timer.update_last_triggered_step(self._steps)
                fired.append([self._steps, steps])

    train_with(tf, loss, [Counting(2)], 6)
    return {"fired": fired, "warned": len(only(s.log, "WARN"))}


@scenario("v1.published.nan.not_in_all_runs")
def _(s: System) -> Record:
    """It never calls its base's `__init__`, and leaves out runs that the caller marks (Polyaxon's NanTensorHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)
    no_hooks = tf.no_op(name="no_hooks")
    value = tf.placeholder_with_default(1.0, [])
    loss = tf.multiply(value, 2.0)

    class Sometimes(tf.train.NanTensorHook):
        def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
            self._loss_tensor = loss_tensor
            self._fail_on_nan_loss = fail_on_nan_loss

        def before_run(self, run_context: Any) -> Any:
            return super().before_run(run_context) if self._may(run_context) else None

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._may(run_context):
                super().after_run(run_context, run_values)

        def _may(self, run_context: Any) -> bool:
            return no_hooks not in run_context.original_args.fetches

    runs, nan = 0, float("nan")
    with tf.train.MonitoredTrainingSession(hooks=[Sometimes(loss, False)]) as sess:
        for fetches, fed in (([train_op], 1.0), ([train_op, no_hooks], nan), ([train_op], nan), ([train_op], 1.0)):
            if sess.should_stop():
                break
            sess.run(fetches, {value: fed})
            runs += 1
    return {"runs": runs}


@scenario("v1.published.stop.says_that_it_stopped")
def _(s: System) -> Record:
    """It keeps what its base has requested (the StopAtStepHook of Twitter's twml)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Saying(tf.train.StopAtStepHook):
        stop_requested = False

        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            self.stop_requested = run_context.stop_requested

    hook = Saying(last_step=4)
    return {"runs": train_with(tf, train_op, [hook], 9), "stop_requested": hook.stop_requested}


@scenario("v1.published.stop.in_its_own_way")
def _(s: System) -> Record:
    """It finds its last step and compares it in its own way (a MyStopAtStepHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)
    seen: list[int] = []

    class Own(tf.train.StopAtStepHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            if self._last_step is None:
                self._last_step = session.run(self._global_step_tensor) + self._num_steps

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(int(run_values.results))
            if run_values.results + 1 >= self._last_step:
                step = run_context.session.run(self._global_step_tensor)
                if step >= self._last_step:
                    run_context.request_stop()

    return {"runs": train_with(tf, train_op, [Own(num_steps=3)], 9), "seen": seen}


@scenario("v1.published.stop.unless_zero")
def _(s: System) -> Record:
    """With 0 steps its base is not asked, and nothing stops (a StopAfterNStepsHook)."""
    tf = s.tf
    train_op, _ = counted_training(s)

    class Unless(tf.train.StopAtStepHook):
        def __init__(self, steps: int) -> None:
            self._steps = steps
            super().__init__(steps)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if self._steps > 0:
                super().after_run(run_context, run_values)

    return {"runs": [train_with(tf, train_op, [Unless(steps)], 5) for steps in (0, 2)]}
