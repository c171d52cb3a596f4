"""LateValues: what a hook has asked for, kept until it has arrived."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from typing import Any

from hookline import arguments
from hookline.session import LateResults

_logger = logging.getLogger(__name__)


class LateValues:
    """Keeps the results that a hook has asked for until they have arrived, and hands them on in order.

    A hook that formats or writes a value in the `after_run` of its own run makes the loop wait for the device. With
    this it need not: it adds the results, hands on what has arrived in each `after_run`, and the rest in `settle` and
    `end`. A hook that is not called on every run returns `first` from `waits_for`, so that it is called when something
    has arrived.

    Args:
        write: `write(results, *more)` is called with the results, in the structure of the hook's fetches, and with what
            `add` was given beside them; on the thread of whoever calls the method that hands them on.

    Example:
        >>> from hookline import train
        >>> class PrintLoss(train.SessionRunHook):
        ...     def __init__(self):
        ...         self._late = train.LateValues(lambda loss, step: print(f"step {step}: {loss:.1f}"))
        ...     def after_create_session(self, session, coord):
        ...         self._late.salvage()
        ...     def before_run(self, run_context):
        ...         return train.SessionRunArgs("loss:0", late=True)
        ...     def after_run(self, run_context, run_values):
        ...         self._late.add(run_values.results, run_context.session.global_step)
        ...         self._late.write_ready()
        ...     def settle(self, session):
        ...         self._late.write_all()
        ...     def on_exception(self, session, exception):
        ...         self._late.salvage()
    """

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = arguments.function("LateValues", "write", write)
        self._waiting: collections.deque[tuple[LateResults, tuple[Any, ...]]] = collections.deque()

    def __len__(self) -> int:
        """Returns how many results are on their way."""
        return len(self._waiting)

    @property
    def first(self) -> LateResults | None:
        """The results that are handed on next; None if nothing is on its way."""
        return self._waiting[0][0] if self._waiting else None

    def add(self, results: Any, *more: Any) -> None:
        """Keeps the results of a run.

        Args:
            results: `SessionRunValues.results`, asked for with `late=True` or without.
            more: What else `write` is to get.
        """
        self._waiting.append((results if isinstance(results, LateResults) else LateResults.of(results), more))

    def write_ready(self) -> None:
        """Hands on what has arrived, up to the first results that have not."""
        while self._waiting and self._waiting[0][0].is_ready():
            self._write_first()

    def write_all(self) -> None:
        """Waits for all results, and hands them on."""
        while self._waiting:
            self._write_first()

    def salvage(self) -> None:
        """Hands on what has arrived, and drops the rest with a log line: the session that was to compute it is gone."""
        try:
            self.write_ready()
        except Exception as exc:
            _logger.warning("A value that was asked for cannot be read: %s: %s", type(exc).__name__, exc)
        if self._waiting:
            _logger.warning("%d values that were asked for are dropped with their session.", len(self._waiting))
        self._waiting.clear()

    def _write_first(self) -> None:
        results, more = self._waiting.popleft()
        self._write(results.get(), *more)
