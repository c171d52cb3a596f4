"""Forecast: when a trigger must be asked next."""

from __future__ import annotations

import math

from hookline import clock
from hookline.hooks.trigger import NEVER, Trigger
from hookline.hooks.when import BoundHook


class Forecast:
    """A trigger, and the moment at which it must be asked next.

    Attributes:
        trigger: The trigger.
        at_step: It is asked when a run reaches this step,
        at_secs: or at this reading of the clock,
        at_run: or on this run.
        bits: The hooks with this trigger, as bits.
        binding: The binding of these hooks to some runs; None if they take part in all.
        counts: Whether it needs the numbers of runs.
        ends_runs: Whether one of its hooks needs a run to end where it fires.
        due: Whether it is due; it has not fired if none of its hooks takes part in the run.
        fired: The number of the attempt of a run in which it last fired.
        elapsed: The result of `update_last_triggered_step` then.
    """

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.at_step: float = -math.inf
        self.at_secs: float = -math.inf
        self.at_run: float = 0
        self.bits = 0
        self.binding: BoundHook | None = None
        self.counts = any(type(leaf).count_runs is not Trigger.count_runs for leaf in trigger.leaves())
        self.ends_runs = True
        self.due = False
        self.fired = 0
        self.elapsed: tuple[float | None, int | None] = (None, None)

    def count_run(self, run: int, steps: int) -> None:
        """Tells the trigger the number of a run of some steps; hooks that are bound to some runs count only those."""
        self.trigger.count_runs(run if self.binding is None else self.binding.runs + steps)

    def plan(self, step: int, run: int, *, bound: bool) -> None:
        """Finds when the trigger must be asked next; called after a run.

        Args:
            step: The global step after the run, or the number of the run.
            run: The number of the run.
            bound: Whether hooks count only some runs, so that the count of all runs is of no use.
        """
        trigger = self.trigger
        steps, secs = trigger.steps_until_trigger(step), trigger.secs_until_trigger()
        runs = trigger.runs_until_trigger() if self.counts else NEVER
        self.at_step = step + steps if steps < NEVER else math.inf
        self.at_secs = clock.monotonic() + secs if secs < math.inf else math.inf
        self.at_run = math.inf if runs >= NEVER and not self.due else run + (1 if bound or self.due else runs)
