"""`LoggingTensorHook`, with the protected names that published subclasses override, read and set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hookline import Tensor
from hookline import train as core
from hookline.extend import Runs
from hookline.train import SessionRunArgs
from hookline_tf1.train._own_callbacks import OwnCallbacks, SecondOrStepTimer, also_called


class _Iterations(Runs):
    """Fires every n runs, and updates a timer that foreign code may read and continue with."""

    def __init__(self, runs: int) -> None:
        super().__init__(runs)
        self.timer = SecondOrStepTimer(every_steps=runs)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records the firing, also in the timer."""
        self.timer.update_last_triggered_step(self.run - 1)
        return super().update_last_triggered_step(step)


class LoggingTensorHook(OwnCallbacks, core.LoggingTensorHook):  # type: ignore[misc]
    """`hookline.train.LoggingTensorHook`; a subclass may override `_log_tensors`.

    References:
        `tf.train.LoggingTensorHook`.
    """

    _published = ("_log_tensors",)
    _tensors, _log_at_end = also_called("tensors_by_tag"), also_called("at_end")
    _formatter = also_called("formatter")
    _items: Any = None
    _tag_order: Any = ()
    _current_tensors: Any = None
    _iter_count = 0
    _should_trigger = False

    def __init__(self, tensors: Any, every_n_iter: int | None = None, *args: Any, **kwargs: Any) -> None:
        is_list = isinstance(tensors, Iterable) and not isinstance(tensors, Mapping | str | Tensor)
        tensors = list(tensors) if is_list else tensors
        super().__init__(tensors, every_n_iter, *args, **kwargs)
        if every_n_iter is not None:
            self.trigger = _Iterations(every_n_iter)
        # The keys in TensorFlow's style: in a list, each tensor is its own tag.
        self._items = {tag: item if is_list else tag for tag, item in self._tensors.items()}
        self._tag_order = list(self._items.values())

    def _take_control(self) -> Any:
        if isinstance(self._own_timer, _Iterations):
            self._own_timer = self._own_timer.timer
        return super()._take_control()

    def begin(self) -> None:
        """See `hookline.train.LoggingTensorHook`."""
        super().begin()
        if self.is_driven:
            self._timer.reset()
        self._iter_count = 0
        self._current_tensors = {self._items[tag]: tensor for tag, tensor in self.fetches.items()}

    def _continue_from(self, run_context: Any) -> None:
        self._iter_count = run_context.runs

    def _request_args(self) -> Any:
        self._should_trigger = self._timer.should_trigger_for_step(self._iter_count)
        return SessionRunArgs(self._current_tensors) if self._should_trigger else None

    def _after_driven_run(self, run_context: Any, run_values: Any) -> None:
        if self._should_trigger:
            self._log_tensors(run_values.results)
        self._iter_count += 1

    def end(self, session: Any) -> None:
        """See `hookline.train.LoggingTensorHook`."""
        if not self.is_driven:
            super().end(session)
        elif self._log_at_end:
            self._log_tensors(session.run(self._current_tensors))

    def _log_tensors(self, tensor_values: dict[str, Any]) -> None:
        elapsed_secs, _ = self._timer.update_last_triggered_step(self._iter_count)
        with np.printoptions(suppress=True):
            tags = {item: tag for tag, item in self._items.items()}
            # A subclass may pass values by tensor or by tag.
            by_tag = {
                tags.get(item, item): tensor_values[item if item in tensor_values else tags[item]]
                for item in self._tag_order
            }
            core.LoggingTensorHook.log(self, by_tag, elapsed_secs)
