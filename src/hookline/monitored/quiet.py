"""Quiet: the runs of which it is known who rides on them, made without asking any trigger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hookline import clock
from hookline.session import CHANGED, LateResults, LowLevel
from hookline.summary.writer_cache import WriterScope


class NotRun(NamedTuple):
    """In place of results: hooks are to be asked first; or the run has failed with an error."""

    error: BaseException | None = None


NOT_RUN = NotRun()

Make = Callable[["Mapping[Any, Any] | None", "int | None"], Any]
"""Makes such a run with these feeds, where the global step is the one that is expected; else returns `CHANGED`.

What it returns otherwise begins with the results of the caller."""

_NOTHING = object()


class Foreseen(NamedTuple):
    """Runs on which no hook fires.

    Args:
        runs: How many there may be.
        until: The reading of the clock at which the next one is no longer among them.
        step: The global step before the first; None where no hook rides ever.
        gain: By how much each of them advances it.
        alarms: The session's count of latches that had latched when this was foreseen.
        awaited: Results that hooks wait for: with the arrival of one, the next run is no longer among them.
    """

    runs: float = math.inf
    until: float = math.inf
    step: int | None = None
    gain: int = 0
    alarms: int = 0
    awaited: tuple[LateResults, ...] = ()


class Quiet:
    """The runs on which no hook fires: they go straight to the raw session. A monitored session has one.

    A hooked session that knows when the next hook is due lets so many runs pass. They must ask for the same, and the
    global step must be where it was foreseen. Where a run may hold several steps, each of them counts as one here.
    Hooks that are called on each run are called on these too.

    Args:
        scope: Who owns the writers that are taken in these runs.

    Attributes:
        scope: As above.
        is_open: Whether it lets runs pass, or has: until `end`.
        made: How many were made since the last `begin`.
        writes: The session's count of writes before the latest of them.
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self.scope = scope
        self.writes = self.made = 0
        self.end()

    def begin(
        self, low: LowLevel, fetches: Any, foreseen: Foreseen, make: Make, *, feeds: bool = False, capacity: int = 1
    ) -> None:
        """Lets the runs of these fetches pass that are foreseen.

        Args:
            low: Of the raw session.
            fetches: The fetches.
            foreseen: Those runs.
            make: Makes one of them.
            feeds: Whether they may be fed.
            capacity: How many steps one of them may hold: where somebody is due in the next run, it ends there.
        """
        self._low, self._make, self._feeds, self.is_open = low, make, feeds, True
        self._begins_at, self._gain, self._alarms = foreseen.step, foreseen.gain, foreseen.alarms
        self._signs = [awaited.is_ready for awaited in foreseen.awaited]
        if foreseen.until < math.inf:
            self._signs.append(partial(clock.has_come, foreseen.until))
        self._runs = foreseen.runs - (capacity - 1)
        self._fetches = fetches

    def end(self) -> int:
        """Lets no more runs pass, and lets go of the session; returns how many have passed."""
        made = self.made
        self._fetches: Any = _NOTHING
        self.is_open = self._feeds = False
        self._low: Any = None
        self._make: Make = lambda feed_dict, expected: CHANGED
        self._signs: list[Callable[[], bool]] = []
        self._runs = 0.0
        self._begins_at: int | None = None
        self.made = self._gain = self._alarms = 0
        return made

    def interrupt(self) -> None:
        """Lets no more runs pass; those that have passed are still to be counted."""
        self._runs = 0.0

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Makes a run, and returns the results of the caller; or a `NotRun`."""
        made = self.made
        if fetches is not self._fetches or made >= self._runs or (feed_dict and not self._feeds):
            return NOT_RUN
        for has_come in self._signs:
            if has_come():
                return NOT_RUN
        try:
            low = self._low
            self.writes = low.writes
            if low.alarms != self._alarms:  # A latch has latched.
                return NOT_RUN
            begins_at = self._begins_at
            found = self._make(feed_dict, None if begins_at is None else begins_at + self._gain * made)
            if found is CHANGED:  # Somebody else has set the step, or a run has gained more than was foreseen.
                return NOT_RUN
            self.made += 1
            return found[0]
        except BaseException as error:
            return NotRun(error)

    def make_several(self, step: Any, capacity: int, feed_dict: Mapping[Any, Any] | None, expected: int | None) -> Any:
        """Makes a run of as many steps as there are batches for; to be bound to its `RepeatedStep`."""
        # And one more: the run in which somebody is due.
        found = step.run_several(capacity, expected, to_come=self._runs + capacity - self.made)
        if found is CHANGED:
            return CHANGED
        count, results = found
        self.made += count - 1  # `run` counts one.
        return results
