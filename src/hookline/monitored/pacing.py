"""Pacing: leaving hooks out of the runs on which they have nothing to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookline import clock
from hookline.graph import Operation, Tensor
from hookline.monitored.hook_list import HookList
from hookline.monitored.paced import SAYS_WHEN, Paced, may_be_left_out
from hookline.monitored.quiet import Foreseen
from hookline.monitored.ridership import Ridership
from hookline.session import LateResults, Session
from hookline.session.feeds import feed_key

_LOOK_AGAIN_RUNS = 64
_MOST_RIDERSHIPS = 64
_NONE_YET = object()


class Pacing:
    """Decides before each run who rides along: those that look at every step, and whoever is due.

    A hook says through `steps_until_trigger(global_step)` in how many steps it must be seen next, through
    `secs_until_trigger()` in how many seconds (then the clock is read once before each run), through
    `runs_until_trigger()` on which run, and through `waits_for()` for which results (then each run looks whether they
    are there). How many steps a run gains the session knows beforehand from the fetches. Where
    the device alone knows, the largest gain seen lately is assumed; a run that gains more still is followed by one on
    which everyone is seen. Being seen too often is harmless. Everyone is seen when a latch has latched, and every 64
    runs where runs take no steps, or unknown ones.

    Between two runs with somebody due, it says how many may pass without being asked (`foreseen`).

    Args:
        session: The raw session.
        hooks: All hooks.
        everyone: All of them as they ride.

    Attributes:
        always: Who rides where nobody is due: those that look at every step.
        overdue: Whether those that ride on this run must be asked anew after it.
    """

    __slots__ = (
        "_alarms",
        "_all",
        "_awaited",
        "_changes",
        "_due_run",
        "_due_secs",
        "_due_step",
        "_everyone",
        "_everyone_run",
        "_expected_changes",
        "_fed",
        "_fetches",
        "_foreseen",
        "_free",
        "_gain",
        "_gain_since_plan",
        "_last_step",
        "_paced",
        "_patience",
        "_planned_gain",
        "_riderships",
        "_riding",
        "_run",
        "_session",
        "_unpaced",
        "always",
        "overdue",
    )

    def __init__(self, session: Session, hooks: HookList, everyone: Ridership) -> None:
        self._session = session
        self._everyone = everyone
        self.overdue = True
        self._paced: list[Paced] = []
        self._unpaced = 0
        for place, hook in enumerate(everyone.hooks):
            if may_be_left_out(hook):
                self._paced.append(Paced(hook, 1 << place))
            else:
                self._unpaced |= 1 << place
        self.always = everyone
        # Hooks as bits: the places in the list.
        self._all = self._riding = (1 << len(everyone.hooks)) - 1
        self._riderships: dict[int, Ridership] = {self._all: everyone}
        self._last_step = self._due_step = session.global_step
        self._due_secs = math.inf
        self._awaited: tuple[LateResults, ...] = ()
        self._run = self._due_run = self._everyone_run = 0
        self._gain = self._gain_since_plan = 1
        self._fetches: Any = _NONE_YET
        self._fed: Any = None
        self._planned_gain = 0
        self._patience = 1
        self._changes = 1  # of the step by one of the caller's runs
        self._expected_changes, self._alarms = self._session.step_changes, self._session.alarms
        self._free: float = 0
        self._foreseen = False

    @classmethod
    def of(cls, session: Session, hooks: HookList, everyone: Ridership) -> Pacing | None:
        """Returns the pacing of a session, or None where no hook can ever be left out."""
        # Where others take steps as well, how far the next run gets is not for this session to foresee.
        if session.shared or not any(hooks.overrides(name) for name in SAYS_WHEN):
            return None
        try:
            return cls(session, hooks, everyone)
        except (RuntimeError, TypeError):  # the graph has no global step, or one that cannot be counted
            return None

    def due(self, fetches: Any, feed_dict: Mapping[Any, Any] | None, passed: int) -> Ridership:
        """Returns who rides along on the run of these fetches that is about to start.

        Args:
            fetches: What it asks for.
            feed_dict: What it feeds.
            passed: How many runs were made since the last time, which were `foreseen`.
        """
        self._run += passed + 1
        self._last_step += passed * self._planned_gain
        self._expected_changes += passed * self._changes
        known, changes = self._session.known_global_step, self._session.step_changes
        # Somebody else has set the step, and perhaps far past where hooks are due.
        is_set = known is None and changes != self._expected_changes
        # Where only the device knows the step, it is asked only on runs where a hook may fire.
        step = self._last_step + self._next_gain() if known is None else known
        gained = step - self._last_step
        self._last_step = step
        if gained > self._gain_since_plan:  # Which is `_gain` at most.
            self._gain_since_plan = gained
            if gained > self._gain:
                self._gain = gained
        # How far a run leads may depend on which tensors are fed, too.
        fed = feed_key(feed_dict) if feed_dict else None
        if fetches is not self._fetches or fed != self._fed:
            self._look_up(fetches, feed_dict)
            self._fed = fed
        reach = step + self._next_gain()
        self._expected_changes = changes + self._changes
        self._free = 0
        self._foreseen = foreseen = known is not None and self._fetches is not _NONE_YET and self._planned_gain > 0
        alarms, self._alarms = self._alarms, self._session.alarms
        # A step that moved back (a hook restored older values) says nothing about when hooks are due.
        if is_set or gained < 0 or alarms != self._alarms or (self._run >= self._everyone_run and not foreseen):
            self.overdue, self._riding = True, self._all
            return self._everyone
        now = clock.monotonic() if self._due_secs < math.inf else -math.inf
        self.overdue = self._run >= self._due_run or reach >= self._due_step or now >= self._due_secs
        for results in self._awaited:
            self.overdue = self.overdue or results.is_ready()
        if self.overdue:
            riding = self._unpaced
            for hook in self._paced:
                if (
                    hook.always
                    or reach >= hook.at_step
                    or now >= hook.at_secs
                    or self._run >= hook.at_run
                    or (hook.results is not None and hook.results.is_ready())
                ):
                    riding |= hook.bit
            self._riding = riding
            return self._riderships.get(riding) or self._of(riding)
        # Where the gain is not known, the step of each run is looked at.
        if foreseen or (known is not None and fetches is self._fetches and not self._changes):
            self._free = self._runs_before(reach)
        return self.always

    def foreseen(self) -> Foreseen | None:
        """Returns the runs like the last one that may follow before somebody is due; None if that may be the next."""
        if self._free <= 0 or self.always.riding:
            return None
        step = self._session.known_global_step
        if step is None:
            return None
        return Foreseen(self._free, self._due_secs, step, self._planned_gain, self._alarms, self._awaited)

    def _runs_before(self, reach: float) -> float:
        """Returns how many runs may follow one that reaches a step until somebody is due."""
        if not self._planned_gain:
            return max(min(self._due_run, self._everyone_run) - self._run - 1, 0)
        return max(min(self._due_run - self._run - 1, (self._due_step - 1 - reach) // self._planned_gain), 0)

    def _look_up(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        everyone = self._everyone
        self._fetches, self._planned_gain, self._changes = _NONE_YET, 0, 1
        try:
            # What the hooks fed the last time they will feed again: without it, fetches may lack a placeholder.
            feeds = everyone.merged_feeds(feed_dict, self._session.graph) if everyone.feeders else feed_dict
            gain = self._session.step_gain(fetches, feeds)
            self._planned_gain, self._changes = gain or 0, int(gain != 0)
        except Exception:  # The run itself says what is wrong, after `before_run` as always.
            return
        if isinstance(fetches, Tensor | Operation | str):  # A structure may be changed in place.
            self._fetches = fetches

    def _next_gain(self) -> int:
        """Returns by how much a run may advance the global step."""
        return self._gain if self._gain > self._planned_gain else self._planned_gain

    def _of(self, bits: int) -> Ridership:
        """Returns some hooks, in list order, as they ride."""
        if len(self._riderships) >= _MOST_RIDERSHIPS:
            self._riderships = {self._all: self._everyone}
        riding = [hook for place, hook in enumerate(self._everyone.hooks) if bits >> place & 1]
        found = self._riderships[bits] = Ridership(riding, self._everyone.standing)
        return found

    def plan(self) -> None:
        """Asks the hooks that were called when they must be seen next; called after a run that was `overdue`."""
        step = self._session.global_step
        # A single leap (steps that somebody else took) must not make everyone be seen for ever.
        self._gain, self._gain_since_plan = max(1, self._gain_since_plan), 1
        always, awaited = self._unpaced, []
        due_step = due_secs = due_run = math.inf
        for hook in self._paced:
            if self._riding & hook.bit:  # What the others have said counts from the run on which they were called.
                hook.ask(step, self._run)
            if hook.always:
                always |= hook.bit
            if hook.at_step < due_step:
                due_step = hook.at_step
            if hook.at_secs < due_secs:
                due_secs = hook.at_secs
            if hook.at_run < due_run:
                due_run = hook.at_run
            if hook.results is not None:
                awaited.append(hook.results)
        if self._run >= self._everyone_run:
            self._everyone_run = self._run + _LOOK_AGAIN_RUNS
        # One that must be seen at once is asked again soon, and less and less often while it goes on so.
        if always != self._unpaced:
            self._patience = min(2 * self._patience, _LOOK_AGAIN_RUNS)
            due_run = min(due_run, self._run + self._patience)
        else:
            self._patience = 1
        self._due_step, self._due_secs, self._due_run, self._awaited = due_step, due_secs, due_run, tuple(awaited)
        self.always = self._riderships.get(always) or self._of(always)
        self._free = self._runs_before(step) if self._foreseen and not always else 0
