"""FastPath: the runs between two firings, which ask no trigger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hookline import clock
from hookline.session import CHANGED, DeferredResults, LowLevel
from hookline.summary.writer_cache import WriterScope

NOT_RUN = object()
"""Returned in place of results: hooks must be asked first."""

Make = Callable[["Mapping[Any, Any] | None", "int | None", float], Any]
"""Makes a run with these feeds if the global step is the expected one, else returns `CHANGED`; see `CachedStep.run`."""

_NOTHING = object()


class FastRuns(NamedTuple):
    """The runs that may take the fast path: no hook fires on them.

    Args:
        most: The number of runs from which on none may begin. If a run may hold several steps, each of them counts.
        until: The reading of the clock at which they end.
        step: The global step before the first; None in a graph without one.
        gain: The increase of the global step in each of them.
        latched_count: The session's count of latched latches; they end when it changes.
        awaited: Deferred results of hooks; they end when one arrives.
    """

    most: float = math.inf
    until: float = math.inf
    step: int | None = None
    gain: int = 0
    latched_count: int = 0
    awaited: tuple[DeferredResults, ...] = ()


class FastPath:
    """The fast path of a monitored session: runs on which no hook fires go straight to the raw session.

    A hooked session that knows when the next hook is due lets the runs before that take the fast path. They must have
    the same fetches, and the global step must be the expected one. If a run may hold several steps, each of them counts
    as one here. Hooks that are called on each run are called on these too.

    A hook is due each 100 steps, and each run gains one. The ordinary run to step 100 has begun this:

        FastRuns(most=99, step=100, gain=1)
        run to step   made   expected   found
        101              0        100     100   made
        102              1        101     101   made
        199             98        198     198   made, the last one
        200             99                      made >= most: an ordinary run, in which the hook fires

    If `load` sets the step to 500 after the run to step 102, the next run expects 102 and finds 500: it makes nothing,
    and an ordinary run asks the triggers.

    Args:
        scope: The owner of the summary writers that are taken in these runs.

    Attributes:
        scope: As above.
        is_open: Whether the fast path was begun and has not ended; an interrupted one is still open.
        made: The number of runs made since the last `begin`.
        writes: The session's count of writes before the last of these runs.
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self.scope = scope
        self.writes = self.made = 0
        self.end()

    def begin(self, low: LowLevel, fetches: Any, runs: FastRuns, make: Make, *, feeds: bool = False) -> None:
        """Begins the fast path, for runs of these fetches.

        Args:
            low: The low-level interface of the raw session.
            fetches: The fetches.
            runs: The runs that may take it.
            make: Makes one of them.
            feeds: Whether they may be fed.
        """
        self._low, self._make, self._feeds, self.is_open = low, make, feeds, True
        self._begins_at, self._gain, self._latched_count = runs.step, runs.gain, runs.latched_count
        self._signs = [awaited.is_ready for awaited in runs.awaited]
        if runs.until < math.inf:
            self._signs.append(partial(clock.has_come, runs.until))
        self._runs, self._fetches = runs.most, fetches

    def end(self) -> int:
        """Ends the fast path, and forgets the session; returns the number of runs made."""
        made = self.made
        self._fetches: Any = _NOTHING
        self.is_open = self._feeds = False
        self._low: Any = None
        self._make: Make = lambda feed_dict, expected, following: CHANGED
        self._signs: list[Callable[[], bool]] = []
        self._runs = 0.0
        self._begins_at: int | None = None
        self.made = self._gain = self._latched_count = 0
        return made

    def interrupt(self) -> None:
        """Stops the fast path; `end` still returns the number of runs made."""
        self._runs = 0.0

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Makes a run and returns the caller's results; or `NOT_RUN`."""
        made = self.made
        if fetches is not self._fetches or made >= self._runs or (feed_dict and not self._feeds):
            return NOT_RUN
        for has_come in self._signs:
            if has_come():
                return NOT_RUN
        low = self._low
        self.writes = low.writes
        if low.latched_count != self._latched_count:  # A latch has latched.
            return NOT_RUN
        begins_at = self._begins_at
        expected = None if begins_at is None else begins_at + self._gain * made
        found = self._make(feed_dict, expected, self._runs - made)
        if found is CHANGED:  # Other code has set the step, or a run has gained more than expected.
            return NOT_RUN
        self.made += found[2]
        return found[0]
