"""The built-in hooks, with the protected names that published subclasses override, read and set.

They are the hooks of `hookline.hooks`, which call their public methods; here those call TensorFlow's, so that a
subclass may define either. Where a subclass has run callbacks of its own, these get what TensorFlow's hooks ask for.
"""

from __future__ import annotations

from typing import Any

from hookline import hooks as core
from hookline.checkpoint import Saver
from hookline.compat.v1.logging_hook import LoggingTensorHook, also_called
from hookline.graph import Graph, Tensor, get_default_graph, get_global_step
from hookline.hooks import SessionRunArgs, SessionRunHook

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

FeedFnHook, FinalOpsHook, GlobalStepWaiterHook = core.FeedFnHook, core.FinalOpsHook, core.GlobalStepWaiterHook


class _AsksForStep(SessionRunHook):
    """A hook whose `run_values.results` is the global step."""

    _args: Any = None
    _step_tensor: Any = None

    @property
    def _global_step_tensor(self) -> Any:
        return get_global_step() if self._step_tensor is None else self._step_tensor

    @_global_step_tensor.setter
    def _global_step_tensor(self, tensor: Any) -> None:
        self._step_tensor = tensor

    def begin(self) -> None:
        """Looks the global step up."""
        super().begin()
        self._step_tensor = get_global_step()

    def _asks_for_step(self, base: type) -> None:
        """Asks for the global step even if that costs something, where a subclass of `base` looks at the result."""
        if type(self).after_run is not base.after_run and (self._args is None or self._args.fetches is None):
            options = None if self._args is None else self._args.options
            self._args = SessionRunArgs(self._global_step_tensor, options=options)


class StepCounterHook(_AsksForStep, core.StepCounterHook):
    """`hookline.train.StepCounterHook`; a subclass may override `_log_and_record`.

    References:
        `tf.train.StepCounterHook`.
    """

    _renamed = ()
    _timer, _summary_writer = also_called("trigger"), also_called("_writer")
    _summary_tag = also_called("_tag")
    _steps_per_run = 1

    def _set_steps_per_run(self, steps_per_run: int) -> None:
        self._steps_per_run = steps_per_run

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.StepCounterHook`."""
        super().after_create_session(session, coord)
        self._asks_for_step(StepCounterHook)

    def record(self, elapsed_steps: int, elapsed_secs: float, global_step: int) -> None:
        """Calls `_log_and_record`."""
        self._log_and_record(elapsed_steps, elapsed_secs, global_step)

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        super().record(elapsed_steps, elapsed_time, global_step)


class StopAtStepHook(_AsksForStep, core.StopAtStepHook):
    """`hookline.train.StopAtStepHook`, with `_last_step` and `_num_steps`.

    References:
        `tf.train.StopAtStepHook`.
    """

    _last_step = also_called("_target")

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.StopAtStepHook`."""
        super().after_create_session(session, coord)
        self._asks_for_step(StopAtStepHook)


class CheckpointSaverHook(_AsksForStep, core.CheckpointSaverHook):
    """`hookline.train.CheckpointSaverHook`; a subclass may override `_save` and `_get_saver`.

    References:
        `tf.train.CheckpointSaverHook`.
    """

    _renamed = ()
    _timer, _summary_writer = also_called("trigger"), also_called("_writer")
    _graph: Graph | None = None
    _steps_per_run = 1

    def _set_steps_per_run(self, steps_per_run: int) -> None:
        self._steps_per_run = steps_per_run

    def after_create_session(self, session: Any, coord: Any) -> None:
        """See `hookline.train.CheckpointSaverHook`."""
        super().after_create_session(session, coord)
        self._asks_for_step(CheckpointSaverHook)

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
        if self._saver is None:  # A subclass did not call our after_create_session.
            self._saver = self.get_saver(session.graph)
        return super().save(session, step)


class SummarySaverHook(core.SummarySaverHook):
    """`hookline.train.SummarySaverHook`; a subclass may override `_get_summary_op`.

    In a subclass with run callbacks of its own, `run_values.results` is a dict of the `global_step` and, on the runs
    that are written, of the `summary`, a list.

    References:
        `tf.train.SummarySaverHook`.
    """

    _renamed = ()
    _timer, _summary_writer = also_called("trigger"), also_called("_writer")
    _global_step_tensor: Tensor | None = None
    _next_step: int | None = None
    _request_summary = False

    @property
    def _is_plain(self) -> bool:
        own = (SummarySaverHook.before_run, SummarySaverHook.after_run)
        return (type(self).before_run, type(self).after_run) == own

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
        """See `hookline.train.SummarySaverHook`."""
        super().after_create_session(session, coord)
        if self._args is not None and self._is_plain:
            self._args = self._args._replace(late=True)

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        """Asks for the summaries if they are due."""
        args = super().before_run(run_context)
        self._request_summary = args is not None
        if self._is_plain:
            return args
        fetches = {"global_step": self._global_step_tensor}
        return SessionRunArgs(fetches if args is None else fetches | {"summary": args.fetches})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes what was asked for."""
        if isinstance(run_values.results, dict):
            run_values = run_values._replace(results=run_values.results.get("summary"))
        super().after_run(run_context, run_values)
        self._next_step = run_context.session.global_step + 1

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns when the next summaries are due."""
        return super().steps_until_trigger(global_step)


class NanTensorHook(core.NanTensorHook):
    """`hookline.train.NanTensorHook`; in a subclass with an `after_run`, `run_values.results` is the loss.

    References:
        `tf.train.NanTensorHook`.
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        super().__init__(loss_tensor, fail_on_nan_loss)
        self._fail_on_nan_loss = fail_on_nan_loss

    def begin(self) -> None:
        """See `hookline.train.NanTensorHook`."""
        super().begin()
        if type(self).after_run is not NanTensorHook.after_run:
            self._args = SessionRunArgs(self._loss_tensor)


class ProfilerHook(core.ProfilerHook):
    """`hookline.train.ProfilerHook`, with `_timer`.

    References:
        `tf.train.ProfilerHook`.
    """

    _timer = also_called("trigger")
