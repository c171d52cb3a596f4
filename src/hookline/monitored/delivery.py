"""Delivery: requests of the hooks that fire in a run, and their firings after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookline import log
from hookline.hooks.base import (
    Firing,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    ask_alone,
    deliver_alone,
)
from hookline.monitored.deferred import DeferredFirings
from hookline.monitored.hook_record import DeferredFiring, HookRecord
from hookline.monitored.scheduled_run import ScheduledRun
from hookline.session import DeferredResults, RunMetadata, RunOptions

_logger = log.of(__name__)

_LATE_RUNS_IN_STEP = 16


class Delivery:
    """Asks the hooks that fire in a run for their requests, and gives them the results.

    Args:
        by_hook: The hooks, by id.
        run: The run that is next or under way.
        deferred: The firings of late hooks; more are added here.
        stacked: The hooks that take rows, as bits.
        warned: Marks of the warnings that have been logged; more are added here.
        has_step: Whether the graph has a global step.
        in_step: Whether the hooks of several processes must be called on the same run.
    """

    def __init__(
        self,
        by_hook: Mapping[int, HookRecord],
        run: ScheduledRun,
        deferred: DeferredFirings,
        stacked: int,
        warned: set[str],
        has_step: bool,
        in_step: bool,
    ) -> None:
        self._by_hook, self._run, self._deferred = by_hook, run, deferred
        self._stacked, self._has_step = stacked, has_step
        self._in_step, self._warned = in_step, warned

    def ask(self, hook: Any, context: SessionRunContext) -> SessionRunArgs | None:
        """Returns the request of a hook that fires in this run; a hook unknown to the session decides by itself."""
        record = self._by_hook.get(id(hook))
        return ask_alone(hook, context) if record is None else self.ask_record(record, context)

    def ask_record(self, record: HookRecord, context: SessionRunContext) -> SessionRunArgs | None:
        """Returns the request of a hook that fires in this run."""
        record.asked = self._run.attempt
        if not (self._run.firing | self._stacked) & record.bit:
            return None
        return record.args if record.before_trigger is None else record.before_trigger(context)

    def deliver(self, hook: Any, context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Calls a hook if it fires in this run; a hook unknown to the session decides by itself."""
        record = self._by_hook.get(id(hook))
        if record is None:
            deliver_alone(hook, context, run_values)
        else:
            self.deliver_to(record, context, *run_values)

    def deliver_to(
        self,
        record: HookRecord,
        context: SessionRunContext,
        results: Any,
        options: RunOptions,
        run_metadata: RunMetadata,
    ) -> None:
        """Calls a hook if it fires in this run, after its trigger has noted the firing."""
        run, forecast = self._run, record.forecast
        if forecast is None or not run.firing & record.bit or record.given == run.attempt:
            return
        record.given = run.attempt
        if forecast.fired != run.attempt:  # Another hook may have the same trigger.
            forecast.fired, forecast.due = run.attempt, False
            came = run.step if run.step is not None else run.number
            forecast.elapsed = forecast.trigger.update_last_triggered_step(came)
        if record.before is not None and record.fetches is not None and record.asked != run.attempt:
            self._warn_of_lost_fetches(record)
        elapsed_secs, elapsed_steps = forecast.elapsed
        step = run.step if self._has_step else None
        about = step, elapsed_steps if self._has_step else None, elapsed_secs
        if late := record.late:
            # In step the hooks of all processes are called on the same run.
            late = _LATE_RUNS_IN_STEP if late is True and self._in_step else late
            due_run = math.inf if late is True else run.number + run.delay(late, stacked=record.stacked)
            results = results if isinstance(results, DeferredResults) else DeferredResults.of(results)
            record.waiting.append(DeferredFiring(results, due_run, *about, options, run_metadata))
            self._deferred.waits = True
        else:
            record.on_trigger(Firing(results, *about, options, run_metadata, context))

    def _warn_of_lost_fetches(self, record: HookRecord) -> None:
        name = type(record.hook).__name__
        if name not in self._warned:
            self._warned.add(name)
            _logger.warning(
                "%s declares fetches, and its before_run did not ask for them: call super().before_run(run_context) "
                "and return what it returns, or leave out fetches.",
                name,
            )
