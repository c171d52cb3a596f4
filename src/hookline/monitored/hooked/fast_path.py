"""FastPath: makes the runs between two firings, in which no trigger is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hookline import clock
from hookline.session import STEP_MISMATCH, Backend, DeferredResults
from hookline.summary.writer_cache import WriterScope

SLOW_PATH = object()
"""Returned in place of results: the triggers must be checked before this run."""

FastRunFunction = Callable[["Mapping[Any, Any] | None", "int | None", float], Any]
"""Makes a run if the global step is the expected one, else returns `STEP_MISMATCH`.

Takes the feeds, the expected step, and the number of runs left; returns the results, hook results, and number of runs.
"""

_NO_FETCHES = object()


class FastPathLimits(NamedTuple):
    """The limits of the runs on the fast path; within them no hook fires.

    Args:
        max_runs: The maximum number of runs. If a run may have several steps, each step counts.
        deadline: The time on the monotonic clock at which the fast path ends.
        start_step: The global step before the first run; None in a graph without one.
        step_delta: The increase of the global step in each run.
        latched_count: The session's count of set latches; the fast path ends when this count changes.
        pending_results: Deferred results of hooks; the fast path ends when one is ready.
    """

    max_runs: float = math.inf
    deadline: float = math.inf
    start_step: int | None = None
    step_delta: int = 0
    latched_count: int = 0
    pending_results: tuple[DeferredResults, ...] = ()


class FastPath:
    """Makes the runs of a monitored session in which no hook fires, without a check of the triggers.

    The hooked session finds when the next hook is due; the runs before that take the fast path. They must have the same
    fetches, and the global step must be the expected one. If a run may have several steps, each step counts as a run
    here. Hooks that are called on each run are called on these runs too.

    Example: a hook is due every 100 steps, and each run advances the step by one. After the ordinary run to step 100
    the fast path begins with these limits:

        FastPathLimits(max_runs=99, start_step=100, step_delta=1)
        run to step   made   expected   found
        101              0        100     100   made
        102              1        101     101   made
        199             98        198     198   made, the last one
        200             99                      made >= max_runs: an ordinary run, in which the hook fires

    If `load` sets the step to 500 after the run to step 102, the next run expects 102 and finds 500. So it is an
    ordinary run, before which the triggers are checked.

    Args:
        scope: The scope of the summary writers that are opened in these runs.

    Attributes:
        scope: As above.
        is_active: Whether `begin` was called, and `end` was not. After `stop` it is still true.
        num_runs: The number of runs made since the last `begin`.
        writes_before: The session's count of writes to variables before the last of these runs.
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self.scope = scope
        self.writes_before = self.num_runs = 0
        self.end()

    def begin(
        self,
        backend: Backend,
        fetches: Any,
        limits: FastPathLimits,
        run_one: FastRunFunction,
        *,
        allow_feeds: bool = False,
    ) -> None:
        """Begins the fast path, for runs of these fetches.

        Args:
            backend: The backend of the raw session.
            fetches: The fetches.
            limits: The limits of these runs.
            run_one: Makes one of the runs.
            allow_feeds: Whether the runs may have feeds.
        """
        self._backend, self._run_one, self._allow_feeds, self.is_active = backend, run_one, allow_feeds, True
        self._start_step, self._step_delta, self._latched_count = (
            limits.start_step,
            limits.step_delta,
            limits.latched_count,
        )
        self._stop_conditions = [results.is_ready for results in limits.pending_results]
        if limits.deadline < math.inf:
            self._stop_conditions.append(partial(clock.is_past, limits.deadline))
        self._max_runs, self._fetches = limits.max_runs, fetches

    def end(self) -> int:
        """Ends the fast path, and drops its references to the session; returns the number of runs made."""
        made = self.num_runs
        self._fetches: Any = _NO_FETCHES
        self.is_active = self._allow_feeds = False
        self._backend: Any = None
        self._run_one: FastRunFunction = lambda feed_dict, expected, following: STEP_MISMATCH
        self._stop_conditions: list[Callable[[], bool]] = []
        self._max_runs = 0.0
        self._start_step: int | None = None
        self.num_runs = self._step_delta = self._latched_count = 0
        return made

    def stop(self) -> None:
        """Makes `run` return `SLOW_PATH` from now on; `end` still returns the number of runs made."""
        self._max_runs = 0.0

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Makes a run and returns the caller's results; if an ordinary run is required, returns `SLOW_PATH`."""
        made = self.num_runs
        if fetches is not self._fetches or made >= self._max_runs or (feed_dict and not self._allow_feeds):
            return SLOW_PATH
        for is_met in self._stop_conditions:
            if is_met():
                return SLOW_PATH
        backend = self._backend
        self.writes_before = backend.write_count
        if backend.latched_count != self._latched_count:  # A latch was set.
            return SLOW_PATH
        start_step = self._start_step
        expected = None if start_step is None else start_step + self._step_delta * made
        found = self._run_one(feed_dict, expected, self._max_runs - made)
        if found is STEP_MISMATCH:  # Other code has set the step, or a run advanced it further than expected.
            return SLOW_PATH
        self.num_runs += found[2]
        return found[0]
