"""`LoggingTensorHook`, with the protected names that published subclasses override, read and set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hookline import hooks as core
from hookline.graph import Tensor


def also_called(name: str) -> Any:
    """Returns a property that reads and sets another attribute."""
    return property(lambda self: getattr(self, name), lambda self, value: setattr(self, name, value))


class LoggingTensorHook(core.LoggingTensorHook):
    """`hookline.train.LoggingTensorHook`; a subclass may override `_log_tensors`.

    References:
        `tf.train.LoggingTensorHook`.
    """

    _renamed = ()
    _log_at_end, _iter_count = also_called("_at_end"), also_called("_runs")
    _items: Any = None
    _current_tensors: Any = None
    _elapsed: tuple[float | None] | None = None
    _triggers: bool | None = None

    @property
    def _timer(self) -> Any:
        return self.trigger if self._elapsed is None else _Fired(self.trigger, self._elapsed[0])

    @_timer.setter
    def _timer(self, timer: Any) -> None:
        self.trigger = timer

    def __init__(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        is_list = isinstance(tensors, Iterable) and not isinstance(tensors, Mapping | str | Tensor)
        tensors = list(tensors) if is_list else tensors
        super().__init__(tensors, *args, **kwargs)
        # What is not in a dict is its own tag.
        self._items = {tag: item if is_list else tag for tag, item in self._tensors.items()}

    @property
    def _tag_order(self) -> list[Any]:
        return list(self._items.values())

    @property
    def _should_trigger(self) -> bool:
        return self.trigger.should_trigger_for_step(self._runs) if self._triggers is None else self._triggers

    @_should_trigger.setter
    def _should_trigger(self, triggers: bool) -> None:
        self._triggers = triggers

    def begin(self) -> None:
        """See `hookline.train.LoggingTensorHook`."""
        super().begin()
        self._current_tensors = {self._items[tag]: tensor for tag, tensor in self._args.fetches.items()}
        if type(self)._log_tensors is not LoggingTensorHook._log_tensors:
            self._args = self._args._replace(late=False)  # It may look at the run's number.

    def log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        """Calls `_log_tensors`."""
        self._elapsed = (elapsed_secs,)
        try:
            self._log_tensors({self._items[tag]: value for tag, value in values.items()})
        finally:
            self._elapsed = None

    def _log_tensors(self, tensor_values: dict[str, Any]) -> None:
        elapsed_secs, _ = self._timer.update_last_triggered_step(self._runs)
        with np.printoptions(suppress=True):
            # A subclass may hand over the results of a run, which are by tag.
            by_tag = {tag: tensor_values.get(item, tensor_values.get(tag)) for tag, item in self._items.items()}
            super().log(by_tag, elapsed_secs)


class _Fired:
    """A timer that has fired already for the values being logged, and tells how long ago it had fired before."""

    def __init__(self, timer: Any, elapsed_secs: float | None) -> None:
        self._timer, self._elapsed_secs = timer, elapsed_secs

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        return self._elapsed_secs, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)
