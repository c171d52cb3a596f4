"""Quiet: the runs of which it is known who rides on them, made without asking any trigger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hookline import clock
from hookline.session import CHANGED, LateResults, RawSession, Watched
from hookline.summary.writer_cache import SCOPE, WriterScope


class NotRun(NamedTuple):
    """In place of results: hooks are to be asked first; or the run has failed with an error."""

    error: BaseException | None = None


NOT_RUN = NotRun()

Ride = Callable[[Any, "Mapping[Any, Any] | None", int], Any]
"""Makes a run with hooks, of these fetches and feeds; so many were made since `begin`."""

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

    Attributes:
        fetches: What these runs ask for.
        is_open: Whether it lets runs pass, or has: until `end`.
        made: How many were made since the last `begin`.
        writes: The session's count of writes before the latest of them.
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self._scope = scope
        self.writes = self.made = 0
        self.end()

    def begin(
        self,
        session: RawSession,
        fetches: Any,
        watched: Watched | None,
        foreseen: Foreseen,
        *,
        feeds: bool,
        capacity: int = 1,
        ride: Ride | None = None,
    ) -> None:
        """Lets the runs of these fetches pass that are foreseen.

        Args:
            session: The raw session.
            fetches: The fetches.
            watched: What each of them carries for hooks.
            foreseen: Those runs.
            feeds: Whether they are fed.
            capacity: How many steps one of them may hold.
            ride: Makes a run with the hooks that are called on each; None without such.
        """
        self._session, self._watched, self.is_open, self._ride = session, watched, True, ride
        self._low, self._capacity = session.lowlevel, capacity
        if ride is not None:
            self._step = None
        elif capacity > 1:
            self._step = self._low.repeated_step(fetches, watched, capacity)
        else:
            self._step = None if feeds else self._low.cached_step(fetches, watched)
        self._runs, self._until, self._expected, self._gain, self._alarms, self._awaited = foreseen
        self.fetches = fetches

    def end(self) -> int:
        """Lets no more runs pass, and lets go of the session; returns how many have passed."""
        made = self.made
        self.fetches: Any = _NOTHING
        self.is_open = False
        self._session: RawSession | None = None
        self._watched: Watched | None = None
        self._step: Any = None
        self._ride: Ride | None = None
        self._capacity = 1
        self._runs = self._until = 0.0
        self._expected: int | None = None
        self.made = self._gain = self._alarms = 0
        self._awaited: tuple[LateResults, ...] = ()
        return made

    def interrupt(self) -> None:
        """Lets no more runs pass; those that have passed are still to be counted."""
        self._runs = 0.0

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Makes a run, and returns the results of the caller; or a `NotRun`."""
        session, expected = self._session, self._expected
        if session is None or fetches is not self.fetches or self.made >= self._runs:
            return NOT_RUN
        if self._until < math.inf and clock.monotonic() >= self._until:
            return NOT_RUN
        for awaited in self._awaited:
            if awaited.is_ready():
                return NOT_RUN
        try:
            low = self._low
            self.writes = low.writes
            if low.alarms != self._alarms:  # A latch has latched.
                return NOT_RUN
            count = 1
            if self._capacity > 1:
                # Where somebody is due in the next run, it ends there.
                if feed_dict or self._runs - self.made < self._capacity:
                    return NOT_RUN
                found = self._step.run_several(self._capacity, expected)
                if found is CHANGED:
                    return NOT_RUN
                count, results = found
            elif self._step is not None and not feed_dict:
                results = self._step.run((), expected)
                if results is CHANGED:  # Somebody else has set the step, or a run has gained more than was foreseen.
                    return NOT_RUN
            elif expected is not None and low.known_step != expected:
                return NOT_RUN
            else:
                results = (self._run(session, feed_dict),)
            self.made += count
            if expected is not None:
                self._expected = expected + self._gain * count
            return results[0]
        except BaseException as error:
            return NotRun(error)

    def _run(self, session: RawSession, feed_dict: Mapping[Any, Any] | None) -> Any:
        outer = SCOPE.set(self._scope)
        try:
            if self._ride is not None:
                return self._ride(self.fetches, feed_dict, self.made)
            if self._watched is None:
                return session.run(self.fetches, feed_dict)
            return session.lowlevel.run_watched(self.fetches, self._watched, feed_dict)[0]
        finally:
            SCOPE.reset(outer)
