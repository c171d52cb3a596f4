"""Dry run: makes the next runs of a session without effects, and returns their plan.

`HookedSession`, `Schedule` and `FastPath` decide as always which hooks take part in a run. The raw session is replaced
by one that counts steps and computes nothing, and the hooks by stand-ins that record their firings, with copies of the
triggers.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

from hookline.hooks.base import Firing, SessionRunArgs
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import Latched
from hookline.hooks.when import BoundHook
from hookline.monitored.callbacks import override
from hookline.monitored.fast_path import FastPath, NotRun
from hookline.monitored.hook_list import HookList
from hookline.monitored.hook_record import HookRecord
from hookline.monitored.hooked import HookedSession
from hookline.monitored.run_plan import HookPlan, ProgramPlan, RunPlan
from hookline.monitored.stop_request import StopRequest
from hookline.session import (
    CHANGED,
    DeferredResults,
    HookFetches,
    LowLevel,
    RawSession,
    RunMetadata,
    RunOptions,
    Session,
    hook_results,
)
from hookline.session.fetches import leaves

_DECIDES = ("is_due", "should_trigger_for_step", "update_last_triggered_step", "count_runs", "runs_until_trigger")
_EARLIER = object()
"""The values of firings that were deferred before the plan."""


def dry_run(hooked: HookedSession, steps: int, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> RunPlan:
    """Returns the plan of the next steps of a session.

    Args:
        hooked: The session, between two runs. It does not change.
        steps: The number of steps; the number of runs if these leave the global step alone.
        fetches: The fetches of each run.
        feed_dict: The feeds of each run; their values are not used.

    Raises:
        Exception: The error that a run of these fetches would raise before it starts.
    """
    schedule, session = hooked.schedule, _CountingSession(hooked.raw, hooked.runs)
    copies = _TriggerCopies()
    stand_ins = [_HookStandIn(record, copies, session) for record in schedule.records]
    hooks = HookList([each.bound() for each in stand_ins])
    fast_path, stop = FastPath(), _SilentStopRequest()
    stop.runs = hooked.runs
    dry = HookedSession(cast("Session", session), hooks, stop, fast_path, hooked.steps_per_run)
    dry.use(hooks).stand_in_for(schedule, DeferredResults.of(_EARLIER))
    copies.catch_up()
    begin, begun, calls = session.count, session.runs, 0
    while session.count < begin + steps and session.runs < begun + steps and not session.is_over:
        done, calls = fast_path.run(fetches, feed_dict), calls + 1
        if type(done) is NotRun:
            if done.error is not None:
                raise done.error
            dry.run(fetches, feed_dict)
    dry.settle()
    counts_steps = session.has_step and (session.count > begin or session.is_over)
    begins_at, ends_at = (begin, session.count) if counts_steps else (begun, session.runs)
    is_over = session.is_over
    if hooked.steps_per_run > 1 and ends_at > begins_at + steps:  # The last run holds more steps than the plan.
        ends_at, is_over = begins_at + steps, False
    return RunPlan(
        fetches=_names(fetches),
        begins_at=begins_at,
        ends_at=ends_at,
        runs=calls,
        hooks=tuple(each.plan(hooked.raw, ends_at, counts_steps) for each in stand_ins),
        programs=tuple(made.plan(counts_steps) for made in session.made.values()),
        counts="step" if counts_steps else "run",
        is_over=is_over,
        unforeseen=tuple(session.unforeseen),
    )


class _SilentStopRequest(StopRequest):
    """A request to stop that does not warn of a constant global step."""

    def warn_of_stillness(self, step: int) -> None:
        pass


class _StartedProgram:
    """A program, and the runs that start it."""

    def __init__(self, program: Any, step: int, run: int) -> None:
        self._program, self._first_step, self._first_run, self.runs = program, step, run, 0

    def plan(self, counts_steps: bool) -> ProgramPlan:
        compilations = self._program.compilations
        first_at = self._first_step if counts_steps else self._first_run
        return ProgramPlan(compilations.about, self.runs, first_at, compilations.traces > 0)


class _CountingSession(RawSession, LowLevel):
    """Stands in for a raw session: its runs advance the global step, and compute nothing.

    Attributes:
        runs: The number of runs; each of several steps counts as one.
        count: The global step; without one, the number of runs.
        made: The programs that were started, with their numbers of runs.
        unforeseen: Facts about the runs that are not known beforehand, as sentences.
    """

    def __init__(self, raw: Session, runs: int) -> None:
        super().__init__(raw.graph)
        LowLevel.__init__(self, self)
        self.lowlevel, self._raw = self, raw
        self.step_limit, self.shared = raw.step_limit, raw.lowlevel.shared
        self.expects_steps = raw.lowlevel.expects_steps
        self._plans = raw.lowlevel.plans()
        try:
            self._step: int | None = raw.global_step
        except RuntimeError:
            self._step = None
        self.runs = runs
        self.made: dict[int, _StartedProgram] = {}
        self.unforeseen: dict[str, None] = {}
        if self.shared:
            self._admit("Others advance the global step as well: runs of this process may reach later steps.")

    @property
    def count(self) -> int:
        return self.runs if self._step is None else self._step

    @property
    def has_step(self) -> bool:
        return self._step is not None

    @property
    def is_over(self) -> bool:
        return self._step is not None and self.step_limit is not None and self._step >= self.step_limit

    @property
    def global_step(self) -> int:
        return super().global_step if self._step is None else self._step

    def _admit(self, sentence: str) -> None:
        self.unforeseen[sentence] = None

    # The interface that monitored sessions use -----------------------------------------------------------------

    def gain(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> int | None:
        low = self._raw.lowlevel
        if self._plans is None:
            return low.gain(fetches, feed_dict)
        return self._plans.find(low, fetches, None, feed_dict).gain

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        self.run_with_hook_fetches(fetches, None, feed_dict)

    def run_with_hook_fetches(
        self,
        fetches: Any,
        hook_fetches: HookFetches | None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        if self._plans is None:
            self._admit("The programs: this session does not list them.")
            return self._advance(None, self._raw.lowlevel.gain(fetches, feed_dict), hook_fetches)
        return self._make(self._plans.find(self._raw.lowlevel, fetches, hook_fetches, feed_dict), hook_fetches)

    def _make(self, step: Any, hook_fetches: HookFetches | None, count: int = 1) -> tuple[Any, tuple[Any, ...]]:
        if step.plan.sources:
            self._admit("The data may end before.")
        return self._advance(step.program, step.gain, hook_fetches, count)

    def _advance(
        self, program: Any, gain: int | None, hook_fetches: HookFetches | None, count: int = 1
    ) -> tuple[Any, tuple[Any, ...]]:
        before = self.count
        self.runs += count
        if self._step is not None:
            if gain is None:
                self._admit("Only the device knows the gain of a run in steps: it counts as one step here.")
            self._step += (1 if gain is None else gain) * count
        if program is not None:
            # Of several steps, the first is made where the run begins.
            first = before + (self.count - before) // count
            self.made.setdefault(id(program), _StartedProgram(program, first, self.runs - count + 1)).runs += 1
        return None, () if hook_fetches is None else hook_results(hook_fetches, [self.runs] * len(hook_fetches.fetches))

    def cached_step(self, fetches: Any, hook_fetches: HookFetches | None = None) -> Any:
        if self._plans is None:
            return None
        found = self._plans.find(self._raw.lowlevel, fetches, hook_fetches, None)
        return _CountingStep(self, found, hook_fetches) if found.is_program else None

    def repeated_step(self, fetches: Any, hook_fetches: HookFetches | None, capacity: int) -> Any:
        if self._plans is None:
            return self._raw.lowlevel.repeated_step(fetches, hook_fetches, capacity)
        return _CountingStep(
            self, self._plans.find_repeated(self._raw.lowlevel, fetches, hook_fetches, capacity), hook_fetches
        )


class _CountingStep:
    """Stands in for a `CachedStep` or a `RepeatedStep`."""

    def __init__(self, session: _CountingSession, step: Any, hook_fetches: HookFetches | None) -> None:
        self._session, self._step, self._hook_fetches = session, step, hook_fetches

    @property
    def holds_hook_fetches(self) -> bool:
        return self._step.holds_hook_fetches

    def available(self, most: int, to_come: float) -> int:
        return most

    def run_program(self, values: Any = None, expected: int | None = None) -> Any:
        if expected is not None and self._session.known_step != expected:
            return CHANGED
        return self._session._make(self._step, self._hook_fetches)

    def run_several(self, most: int, expected: int | None = None, *, exactly: bool = False, to_come: float = 1) -> Any:
        if expected is not None and self._session.known_step != expected:
            return CHANGED
        return most, self._session._make(self._step, self._hook_fetches, most)


# Hooks and triggers -------------------------------------------------------------------------------------------------


class _HookStandIn:
    """Stands in for a hook: it has the same declarations, is called on the same runs, and records its firings.

    Args:
        record: The hook.
        triggers: The copies of triggers.
        session: Counts the runs.
    """

    def __init__(self, record: HookRecord, triggers: _TriggerCopies, session: _CountingSession) -> None:
        self._record = record
        self.fetches, self.late, self.stacked = record.fetches, record.late, record.stacked
        self.trigger = None if record.forecast is None else triggers.of(record.forecast.trigger)
        self._session, self._unforeseen = session, triggers.unforeseen(self.trigger)
        self._fired: list[tuple[int | None, int]] = []
        args = None if self.fetches is None else SessionRunArgs(self.fetches)
        found: dict[str, Any] = {
            "before_run": record.before and (lambda context: context.ask(self)),
            "after_run": record.after and (lambda context, values: context.deliver(self, values)),
            "before_trigger": record.before_trigger and (lambda context: args),
            "on_trigger": record.forecast and self._note,
        }
        self.each_run = tuple(name for name in ("before_run", "after_run") if found[name])
        # The library's hooks call super(), or deliver the firing themselves.
        of_users = [name for name in self.each_run if not _is_of_library(override(record.hook, name))]
        if of_users and record.forecast:
            call = "call" if len(of_users) > 1 else "calls"
            self._unforeseen.append(f"whether its {' and '.join(of_users)} {call} super(): otherwise it does not fire")
        if record.before_trigger:
            self._unforeseen.append("further requests of its before_trigger")
        vars(self).update({name: callback for name, callback in found.items() if callback})

    def end(self, session: Any) -> None:
        """Makes this a hook even if it has no other callback."""

    def bound(self) -> Any:
        """Returns this stand-in, bound to the same runs as the hook."""
        theirs = self._record.binding
        if theirs is None:
            return self
        binding = BoundHook(theirs.bound_to, self)
        binding.runs = theirs.runs
        return binding

    def _note(self, firing: Firing) -> None:
        if firing.values is not _EARLIER:
            values = jax.tree.leaves(firing.values)
            self._fired.append((firing.global_step, int(np.ravel(values[0])[-1]) if values else self._session.runs))

    def plan(self, raw: Session, ends_at: int, counts_steps: bool) -> HookPlan:
        """Returns the plan of the hook."""
        record = self._record
        fired = [run if step is None or not counts_steps else step for step, run in self._fired]
        return HookPlan(
            name=type(record.hook).__name__,
            trigger="" if record.forecast is None else repr(record.forecast.trigger),
            fires_at=tuple(number for number in fired if number <= ends_at),
            fetches=() if record.fetches is None else _names(record.fetches),
            each_run=self.each_run,
            late=record.late,
            unforeseen=tuple(self._unforeseen),
            stops_at=raw.step_limit_of(record.hook),
            saves=override(record.hook, "save_last") is not None,
            at_end=override(record.hook, "end") is not None,
        )


class _TriggerCopies:
    """Copies of triggers, with the same phase, which move alone. Neither the clock nor user code fires them."""

    def __init__(self) -> None:
        self._copies: dict[int, Trigger] = {}
        self._pairs: list[tuple[Trigger, Trigger]] = []

    def of(self, trigger: Trigger) -> Trigger:
        """Returns the copy of a trigger; hooks that share a trigger share its copy."""
        found = self._copies.get(id(trigger))
        if found is None:
            found = _OpenTrigger(trigger) if not _decides_alone(trigger) else copy.copy(trigger)
            if parts := getattr(trigger, "parts", None):
                vars(found)["parts"] = tuple(map(self.of, parts))
            self._copies[id(trigger)] = found
            self._pairs.append((found, trigger))
        return found

    def catch_up(self) -> None:
        """Sets the phase of each copy, which the dry run has just started anew."""
        for copied, trigger in self._pairs:
            if not isinstance(copied, _OpenTrigger):
                vars(copied).update(_state_of(trigger))
            copied.held = False

    def unforeseen(self, copied: Trigger | None) -> list[str]:
        """Returns the parts of a trigger that cannot be foreseen, as phrases."""
        found: list[str] = []
        for leaf in [] if copied is None else copied.leaves():
            if isinstance(leaf, _OpenTrigger):
                found.append(f"{leaf!r}, which decides itself when it is due")
            elif isinstance(leaf, Latched):
                found.append(f"{leaf!r}, which fires it when the device finds the condition")
            elif leaf.by_clock_alone:
                found.append(f"the time of {leaf!r}")
        return found


class _OpenTrigger(Trigger):
    """Stands in for a trigger with its own `is_due`: it is asked as often, and never fires."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger

    @property
    def has_steps(self) -> bool:
        return self._trigger.has_steps

    def next_step(self, after: int) -> int:
        return self._trigger.next_step(after)

    def is_due(self, step: int) -> bool:
        return False

    def __repr__(self) -> str:
        return repr(self._trigger)


def _decides_alone(trigger: Trigger) -> bool:
    """Returns whether only steps, runs and the library's code decide when a trigger is due."""
    return all(_is_of_library(getattr(type(trigger), name)) for name in _DECIDES)


def _is_of_library(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "hookline"


def _state_of(trigger: Trigger) -> dict[str, Any]:
    return {name: _apart(value) for name, value in vars(trigger).items() if name != "parts"}


def _apart(value: Any) -> Any:
    if isinstance(value, Trigger):
        other = copy.copy(value)
        vars(other).update(_state_of(value))
        return other
    return copy.copy(value) if isinstance(value, list | dict | set | collections.deque) else value


def _names(fetches: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(getattr(leaf, "name", leaf)) for leaf in leaves(fetches)))
