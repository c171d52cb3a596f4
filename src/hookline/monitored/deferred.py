"""DeferredFirings: the firings of late hooks that wait for their values, or for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hookline import log
from hookline.errors import PREEMPTION_ERRORS
from hookline.hooks.base import Firing, SessionRunContext
from hookline.monitored.callbacks import describe
from hookline.monitored.hook_record import HookRecord
from hookline.session import DeferredResults, LowLevel

_logger = log.of(__name__)


class DeferredFirings:
    """The firings of a session's late hooks that wait for their values, or for a run.

    Args:
        records: The hooks, each with its waiting firings.
        low: The low-level interface of the raw session.

    Attributes:
        waits: Whether any firing waits.
        awaited: The results for which hooks wait; the device has not computed them yet.
        due_run: The run after which the next firing is due; infinity if none waits for a run.
    """

    def __init__(self, records: Sequence[HookRecord], low: LowLevel) -> None:
        self._records, self._low = records, low
        self.awaited: tuple[DeferredResults, ...] = ()
        self.waits, self.due_run = False, math.inf

    def deliver(self, context: SessionRunContext, run: float = math.inf, *, is_lost: bool = False) -> None:
        """Calls the hooks whose values have arrived, or whose run has come.

        Args:
            context: The context of the run under way, or a new one.
            run: The number of the last run; by default this waits for all values.
            is_lost: Whether the session is lost: the remaining firings are dropped with a log line, and errors from
                the loss are only logged.
        """
        dropped = 0
        for record in self._records:
            waiting = record.waiting
            while waiting and waiting[0].is_due(run):
                deferred = waiting.popleft()
                try:
                    values = deferred.values()
                except Exception:  # Lost with the session; the recovery logs the reason.
                    if not is_lost:
                        raise
                    dropped += 1
                    continue
                try:
                    record.on_trigger(Firing(values, *deferred[2:], context))
                except Exception as exc:
                    if not is_lost or not isinstance(self._low.map_error(exc), PREEMPTION_ERRORS):
                        raise
                    _logger.warning("The %s failed in on_trigger: its session is lost.", describe(record.hook))
            if is_lost:
                dropped += len(waiting)
                waiting.clear()
        if dropped:
            _logger.warning("%d late firings are dropped with their session.", dropped)
        self.update()

    def update(self) -> None:
        """Finds the results and the run for which the first firing of each hook waits."""
        self.waits, self.due_run, awaited = False, math.inf, []
        for record in self._records:
            if record.waiting:
                first, self.waits = record.waiting[0], True
                if first.due_run == math.inf:
                    awaited.append(first.results)
                elif first.due_run < self.due_run:
                    self.due_run = first.due_run
        self.awaited = tuple(awaited)
