"""The built-in hooks, with the protected names that published subclasses override, read and set.

They subclass the hooks of `hookline.hooks`, whose public methods here call TensorFlow's protected ones, so a subclass
may define either. If foreign code takes part in a hook, the hook works on every run, with TensorFlow's results; see
`OwnCallbacks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline import Graph, Tensor, get_default_graph, summary
from hookline import train as core
from hookline.extend import is_claimed, log
from hookline.train import Saver, Scaffold, SessionRunArgs, get_global_step
from hookline_tf1.train._logging_hook import LoggingTensorHook
from hookline_tf1.train._own_callbacks import OwnCallbacks, also_called

__all__ = [
    "CheckpointSaverHook",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanTensorHook",
    "ProfilerHook",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]

_logger = log.get_logger("hookline.tf1")

_MAX_STILL_WARNINGS = 5

FeedFnHook, FinalOpsHook, GlobalStepWaiterHook = core.FeedFnHook, core.FinalOpsHook, core.GlobalStepWaiterHook


class _RequestsStep(OwnCallbacks):
    """A hook that requests the global step: `run_values.results` is the step before the run."""

    _step_tensor: Any = None
    _steps_per_run = 1

    @property
    def _global_step_tensor(self) -> Any:
        return get_global_step() if self._step_tensor is None else self._step_tensor

    @_global_step_tensor.setter
    def _global_step_tensor(self, tensor: Any) -> None:
        self._step_tensor = tensor

    def begin(self) -> None:
        """Finds the tensor of the global step."""
        super().begin()
        self._step_tensor = get_global_step()

    def _set_steps_per_run(self, steps_per_run: int) -> None:
        self._steps_per_run = steps_per_run

    def _request_args(self) -> SessionRunArgs:
        return SessionRunArgs(self._global_step_tensor)


class _Writes:
    """A hook with a `_summary_writer` that a subclass may set without calling `__init__`."""

    output_dir: str | None = None
    summary_writer: Any = None
    _output_dir, _summary_writer = also_called("output_dir"), also_called("summary_writer")


class StepCounterHook(_Writes, _RequestsStep, core.StepCounterHook):
    """`hookline.train.StepCounterHook`; a subclass may override `_log_and_record`.

    References:
        `tf.train.StepCounterHook`.
    """

    _summary_tag = also_called("tag")
    _last_global_step: int | None = None
    _still_warnings = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.StepCounterHook`; does nothing if the hook checks its timer itself."""
        if is_claimed(self) and not self.is_driven:
            super().after_create_session(session, coord)

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        step = run_context.session.global_step
        self._notice_stillness(step)
        if self._timer.should_trigger_for_step(step):
            elapsed_secs, elapsed_steps = self._timer.update_last_triggered_step(step)
            if elapsed_secs and elapsed_steps is not None:
                self.record(elapsed_steps, elapsed_secs, step)

    def _notice_stillness(self, step: int) -> None:
        if step == self._last_global_step and self._still_warnings < _MAX_STILL_WARNINGS:
            self._still_warnings += 1
            _logger.warning("The global step has stayed at %d over two runs, as %s sees it.", step, type(self).__name__)
        self._last_global_step = step

    def record(self, elapsed_steps: int, elapsed_secs: float, global_step: int) -> None:
        """Calls `_log_and_record`."""
        self._log_and_record(elapsed_steps, elapsed_secs, global_step)

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        super().record(elapsed_steps, elapsed_time, global_step)


class StopAtStepHook(_RequestsStep, core.StopAtStepHook):
    """`hookline.train.StopAtStepHook`, with `_last_step` and `_num_steps`.

    References:
        `tf.train.StopAtStepHook`.
    """

    # Defaults for a subclass that does not call `__init__`.
    num_steps: int | None = None
    last_step: int | None = None
    _num_steps = also_called("num_steps")

    @property
    def _last_step(self) -> int | None:
        return self.last_step

    @_last_step.setter
    def _last_step(self, step: int | None) -> None:
        self.last_step = step
        if (session := self._take_control()) is not None:
            session.set_last_step(None, owner=self)  # Drops the former target.

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Sets the target step; see `hookline.train.StopAtStepHook` unless the hook works on every run."""
        if not self.is_driven:
            super().after_create_session(session, coord)
        elif self.last_step is None:
            self.last_step = session.global_step + (self.num_steps or 0)

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        if self.last_step is not None and run_context.session.global_step >= self.last_step:
            run_context.request_stop()


class CheckpointSaverHook(_RequestsStep, core.CheckpointSaverHook):  # type: ignore[misc]
    """`hookline.train.CheckpointSaverHook`; a subclass may override `_save` and `_get_saver`.

    References:
        `tf.train.CheckpointSaverHook`.
    """

    _checkpoint_dir, _save_path = also_called("checkpoint_dir"), also_called("save_path")
    _saver, _scaffold = also_called("given_saver"), also_called("scaffold")
    _listeners, _summary_writer = also_called("listeners"), also_called("summary_writer")
    _graph: Graph | None = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.CheckpointSaverHook`."""
        super().after_create_session(session, coord)
        if self.is_driven:
            self._timer.update_last_triggered_step(session.global_step)

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        step = run_context.session.global_step
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self.save_after_run(run_context)

    def end(self, session: Any) -> None:
        """See `hookline.train.CheckpointSaverHook`."""
        if self.is_driven and session.global_step == self._timer.last_triggered_step():
            self.finish_save()
            self.saved_step = session.global_step
        super().end(session)

    def get_saver(self, graph: Graph) -> Saver:
        """Calls `_get_saver`."""
        self._graph = graph
        return self._get_saver()

    def _get_saver(self) -> Saver:
        return super().get_saver(self._graph or get_default_graph())

    def save(self, session: Any, global_step: int) -> bool:
        """Calls `_save`."""
        return self._save(session, global_step)

    def _save(self, session: Any, step: int) -> bool:
        if self.used_saver is None:  # A subclass did not call our after_create_session.
            self.used_saver = self.get_saver(session.graph)
        return super().save(session, step)


class SummarySaverHook(_Writes, OwnCallbacks, core.SummarySaverHook):
    """`hookline.train.SummarySaverHook`; a subclass may override `_get_summary_op`.

    In a subclass with its own run callbacks, `run_values.results` is a dict: `global_step` and, on runs that are
    written, the list `summary`.

    References:
        `tf.train.SummarySaverHook`.
    """

    _published = ("_get_summary_op",)
    # Defaults for a subclass that does not call `__init__`.
    summary_op: Any = None
    scaffold: Any = None
    _summary_op, _scaffold = also_called("summary_op"), also_called("scaffold")
    _global_step_tensor: Tensor | None = None
    _next_step: int | None = None
    _request_summary = False

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
        **how: Any,
    ) -> None:
        if self._is_overridden and scaffold is not None and not hasattr(scaffold, "summary_op"):
            scaffold = Scaffold()  # A subclass that finds its summaries itself may pass any object.
        super().__init__(save_steps, save_secs, output_dir, summary_writer, scaffold, summary_op, **how)

    def get_summary_op(self) -> list[Any] | None:
        """Calls `_get_summary_op`."""
        return self._get_summary_op()

    def _get_summary_op(self) -> list[Any] | None:
        return super().get_summary_op()

    def begin(self) -> None:
        """See `hookline.train.SummarySaverHook`."""
        super().begin()
        self._next_step = None
        self._global_step_tensor = get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.SummarySaverHook`; does nothing if the hook checks its timer itself."""
        if is_claimed(self) and not self.is_driven:
            super().after_create_session(session, coord)

    def _continue_from(self, run_context: Any) -> None:
        self._next_step = run_context.session.global_step + 1

    def _request_args(self) -> SessionRunArgs:
        self._request_summary = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        asked: dict[str, Any] = {"global_step": self._global_step_tensor}
        summaries = self.get_summary_op() if self._request_summary and self.summary_writer is not None else None
        return SessionRunArgs(asked if summaries is None else asked | {"summary": list(summaries)})

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        if self.summary_writer is None:
            return
        step = run_context.session.global_step
        if self._next_step is None:
            self.summary_writer.add_session_log(summary.SessionLog(status=summary.SessionLog.START), step)
        if self._request_summary:
            self._timer.update_last_triggered_step(step)
            self.write(run_values.results.get("summary", []), step)
        self._next_step = step + 1


class NanTensorHook(OwnCallbacks, core.NanTensorHook):
    """`hookline.train.NanTensorHook`; in a subclass with an `after_run`, `run_values.results` is the loss.

    References:
        `tf.train.NanTensorHook`.
    """

    # Defaults for a subclass that does not call `__init__`.
    include_inf = False
    on_nan = "raise"
    _loss_tensor = also_called("loss_tensor")

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        super().__init__(loss_tensor, fail_on_nan_loss)

    @property
    def _fail_on_nan_loss(self) -> bool:
        return self.on_nan == "raise"

    @_fail_on_nan_loss.setter
    def _fail_on_nan_loss(self, fails: bool) -> None:
        self.on_nan = "raise" if fails else "stop"

    def begin(self) -> None:
        """See `hookline.train.NanTensorHook`; a hook that checks each run itself adds nothing to the graph."""
        if is_claimed(self) and not self.is_driven:
            super().begin()

    def _request_args(self) -> SessionRunArgs:
        return SessionRunArgs(self.loss_tensor)

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        if np.isnan(np.asarray(run_values.results)).any():
            self.react(run_context, run_context.session.global_step)


class ProfilerHook(core.ProfilerHook):
    """`hookline.train.ProfilerHook`, with `_timer`.

    References:
        `tf.train.ProfilerHook`.
    """

    _timer = also_called("trigger")
