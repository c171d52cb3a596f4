"""Rider: a session's record of a hook, with its trigger and its pending firings."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hookline import clock
from hookline.graph import Graph, Operation
from hookline.hooks.base import Firing, SessionRunArgs, SessionRunHook
from hookline.hooks.trigger import NEVER, Trigger
from hookline.hooks.triggers import Latched
from hookline.hooks.when import BoundHook, bare
from hookline.monitored.callbacks import Callback, describe
from hookline.monitored.hook_list import HookList
from hookline.session import DeferredResults, RunMetadata, RunOptions


class Timer:
    """A trigger, and the time at which it must be asked next.

    Attributes:
        trigger: The trigger.
        at_step: It is asked when a run reaches this step,
        at_secs: or at this reading of the clock,
        at_run: or on this run.
        bits: The hooks that have it, as bits.
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
        self.counts = any(type(leaf).count_runs is not Trigger.count_runs for leaf in trigger.leaves())
        self.ends_runs = True
        self.due = False
        self.fired = 0
        self.elapsed: tuple[float | None, int | None] = (None, None)

    def go_on_from(self, other: Timer) -> None:
        """Is asked next when another one would be."""
        self.at_step, self.at_secs, self.at_run, self.due = other.at_step, other.at_secs, other.at_run, other.due

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


class Late(NamedTuple):
    """A firing whose values have not arrived yet."""

    results: DeferredResults
    due_run: float
    global_step: int | None
    elapsed_steps: int | None
    elapsed_secs: float | None
    options: RunOptions
    run_metadata: RunMetadata

    def values(self) -> Any:
        """Returns its values, and waits for them."""
        return self.results.get()

    def is_due(self, run: float) -> bool:
        """Returns whether it must be delivered after a run; with an infinite `run`, it always must."""
        return run >= self.due_run or (self.due_run == math.inf and self.results.is_ready())


class Rider:
    """A session's record of a hook.

    Attributes:
        hook: The hook itself, not its binding.
        bit: Its index in the list, as a bit.
        timer: Its trigger; None without one.
        before: Its `before_run`, where its class overrides it and it has not retired.
        after: Its `after_run` likewise.
        fetches: What it declares.
        args: What it asks for when it fires, if it has no `before_trigger` of its own.
        before_trigger: That, if it has.
        values: Returns the values of a firing.
        on_trigger: Its `on_trigger`; without one, nothing.
        asks: Whether it asks for anything when it fires.
        stacked: Whether it takes what all steps of a run have for it, in rows.
        late: Whether it waits for values to arrive, or for how many runs; who looks at each run does not wait.
        latches: The parts of its trigger that wait for a latch, with whether it has latched.
        binding: What binds it to some runs; None where it sees all.
        bound_to: The operations to whose runs it is bound.
        waiting: Firings whose values have not arrived yet.
        asked: The number of the attempt of a run in which it was last asked for its request.
        given: The number of the attempt in which it last fired.
    """

    def __init__(self, hook: Any, place: int, graph: Graph, hooks: HookList) -> None:
        self.hook = inner = bare(hook)
        self._look_up = hooks.callback
        self.bit = 1 << place
        self.come_back()
        self.fetches = getattr(inner, "fetches", None)
        self.before_trigger = self._look_up(inner, "before_trigger")
        self.on_trigger: Callback = self._look_up(inner, "on_trigger") or _nothing
        self.values: Callable[[Late], Any] = (
            Late.values if hooks.timed is None else hooks.timed(inner, "values", Late.values)
        )
        self.args = None if self.fetches is None else SessionRunArgs(self.fetches)
        self.asks = self.args is not None or self.before_trigger is not None
        self.late: bool | int = False if self.before or self.after else _checked_late(inner)
        self.stacked = bool(getattr(inner, "stacked", False))
        self.latches: dict[Latched, bool] = {}
        self.timer: Timer | None = None
        self.binding = hook if isinstance(hook, BoundHook) else None
        self.bound_to: set[Operation] = set() if self.binding is None else self.binding.operations(graph)
        self.asked = self.given = 0
        self.waiting: collections.deque[Late] = collections.deque()

    def come_back(self) -> None:
        """Has its callbacks of each run again."""
        self.before: Callback | None = self._look_up(self.hook, "before_run")
        self.after: Callback | None = self._look_up(self.hook, "after_run")

    def retire(self) -> bool:
        """Gives up the callbacks that no subclass has overridden again; returns whether it had any."""
        had = self.before, self.after
        self.before = None if _is_own(self.hook, "before_run") else self.before
        self.after = None if _is_own(self.hook, "after_run") else self.after
        return had != (self.before, self.after)


def _nothing(firing: Firing) -> None:
    """Does nothing, for hooks without `on_trigger`."""


def _is_own(hook: Any, name: str) -> bool:
    """Returns whether a callback comes from the first class that defines a run callback, and not from a subclass."""
    if name in getattr(hook, "__dict__", ()):
        return False
    kinds = [vars(kind) for kind in type(hook).__mro__ if kind is not SessionRunHook]
    around = [kind for kind in kinds if "before_run" in kind or "after_run" in kind]
    return not any(name in kind for kind in around[:-1])


def _checked_late(hook: Any) -> bool | int:
    late = getattr(hook, "late", False)
    if not isinstance(late, int) or late < 0:
        raise TypeError(f"The {describe(hook)} must have True, False or a number of runs as late, got {late!r}.")
    return late
