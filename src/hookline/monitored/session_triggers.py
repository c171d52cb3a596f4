"""SessionTriggers: the triggers of a session's hooks, from their start on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import FirstRun, Latched
from hookline.monitored.callbacks import declares, describe
from hookline.monitored.forecast import Forecast
from hookline.monitored.hook_record import HookRecord

_LOOK_AGAIN_RUNS = 64


class SessionTriggers:
    """The triggers of a session's hooks, and the earliest moment at which one of them must be asked.

    Args:
        records: The hooks. Each gets the forecast of its trigger; hooks may share one.
        step: The global step; None in a graph without one.
        run: The number of runs made before.
        before: The triggers of the session's earlier hooks, if any; those that stay are not renewed.

    Raises:
        TypeError: A `trigger` that is not a `Trigger`.
        RuntimeError: A trigger in steps, in a graph without a global step.

    Attributes:
        forecasts: The forecast of each trigger.
        bound: Whether some hooks take part in some runs only.
        due_step: A trigger must be asked when a run reaches this step,
        due_secs: or at this reading of the clock,
        due_run: or on this run.
        everyone_run: All must be asked on this run, unless the steps of runs are known in advance.
    """

    def __init__(
        self, records: Sequence[HookRecord], step: int | None, run: int, before: SessionTriggers | None = None
    ) -> None:
        started = set() if before is None else {id(forecast.trigger) for forecast in before.forecasts}
        self.bound = any(record.binding is not None for record in records)
        self.due_step = self.due_secs = -math.inf
        self.due_run: float = 0
        self.everyone_run = 0
        found: dict[int, Forecast] = {}
        for record in records:
            trigger = getattr(record.hook, "trigger", None)
            if trigger is None or not declares(record.hook):
                continue
            if not isinstance(trigger, Trigger):
                raise TypeError(
                    f"The {describe(record.hook)} must have a Trigger (or None) as trigger, got {trigger!r}."
                )
            if trigger.has_steps and step is None:
                raise RuntimeError(
                    f"The {describe(record.hook)} fires at steps ({trigger!r}), and the graph has no global step. "
                    "Create it with train.get_or_create_global_step()."
                )
            record.latches = {leaf: False for leaf in trigger.leaves() if isinstance(leaf, Latched)}
            if id(trigger) not in found:
                trigger.start(run if step is None else step)
                for leaf in trigger.leaves():
                    if isinstance(leaf, FirstRun) and id(trigger) not in started:
                        leaf.renew()
            record.forecast = forecast = found.setdefault(id(trigger), Forecast(trigger))
            forecast.bits |= record.bit
            forecast.binding = forecast.binding or record.binding
        self.forecasts = list(found.values())

    def fire(self, step: int, now: float, run: int, steps: int, *, everyone: bool = False) -> int:
        """Asks the triggers that may be due; returns the hooks whose trigger fires, as bits.

        Args:
            step: The global step after the run, or the number of the run.
            now: The reading of the clock.
            run: The number of the run.
            steps: The number of its steps.
            everyone: Whether to ask all triggers.
        """
        firing = 0
        for forecast in self.forecasts:
            if not forecast.ends_runs:
                continue
            forecast.due = False
            if everyone or step >= forecast.at_step or now >= forecast.at_secs or run >= forecast.at_run:
                forecast.at_run = run  # It is asked again after this run, and in the next attempt.
                if forecast.counts:
                    forecast.count_run(run, steps)
                if forecast.trigger.should_trigger_for_step(step):
                    forecast.due = True
                    firing |= forecast.bits
        return firing

    def fire_at_end(self, step: int, run: int, steps: int) -> int:
        """Asks the triggers whose hooks are called at the end of a run, regardless of its number of steps."""
        firing = 0
        for forecast in self.forecasts:
            if not forecast.ends_runs:
                if forecast.counts:
                    forecast.count_run(run, steps)
                if forecast.trigger.should_trigger_for_step(step):
                    firing |= forecast.bits
        return firing

    def plan(self, step: int, run: int) -> None:
        """Finds when the triggers must be asked next; called after a run that reached this step."""
        due_step = due_secs = due_run = math.inf
        for forecast in self.forecasts:
            if not forecast.ends_runs:
                continue
            if forecast.at_run <= run:
                forecast.plan(step, run, bound=self.bound)
            due_step = min(due_step, forecast.at_step)
            due_secs = min(due_secs, forecast.at_secs)
            due_run = min(due_run, forecast.at_run)
        if run >= self.everyone_run:
            self.everyone_run = run + _LOOK_AGAIN_RUNS
        self.due_step, self.due_secs, self.due_run = due_step, due_secs, due_run

    def restart(self, step: int) -> None:
        """Starts all triggers anew, at a step before the last one."""
        for forecast in self.forecasts:
            forecast.trigger.start(step)
