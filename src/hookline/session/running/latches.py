"""Keeps the state of a session's latches: arrays that its programs carry from run to run.

All checks of a program share one more latch, which also holds the details of the first failure.

Example:
    Each run advances the global step by 10. A latch begins with the value 0. In runs 1, 2 and 3 the condition is
    false, and the value becomes -1, -2 and -3. In run 4 the condition is true: the value becomes 4, and stays 4 in all
    later runs.

    When the host starts a run, it knows the global step after the run, but not the latch value. It records the steps
    10, 20, 30, ... as one step range: (first run 1, step 10, step delta 10). After run 4 a load sets the step to 500,
    so run 5 begins another range: (5, 510, 10).

    At the poll after run 14 the host reads the value 4. Run 4 is in the first range, so the condition was first true in
    the run to global step 10 + (4 - 1) * 10 = 40. If the host had read -6, runs 1 to 6 would have passed, and the first
    range would be dropped.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import Graph, placement
from hookline.graph.conditions import Latch
from hookline.graph.nodes.check import Check

LatchValue = Any
"""One number: minus the count of runs so far; once the condition was true, the number of the first such run, from 1.

The latch of checks is a vector: the number, the operation's index and the details of its failure.
"""

LatchKey = Latch | type[Check]
"""A latch. All checks share one latch, whose key is the class `Check`."""

_REBASE_RUNS = 2**30


def next_latch_value(latched: LatchValue, condition: Any) -> LatchValue:
    """Returns the value of a latch after one more run; for checks, `condition` is the result of `first_failure`."""
    if latched.ndim:
        number = next_latch_value(latched[0], condition[0] > 0)
        return jnp.concatenate([number[None], jnp.where(latched[0] > 0, latched[1:], condition[1:])])
    return jnp.where(latched > 0, latched, jnp.where(condition, 1 - latched, latched - 1))


def first_failure(found: Mapping[int, Any]) -> Any:
    """Returns 1 if a check fails, else 0, and the operation's index and the details of the first failure."""
    rows = jnp.stack([jnp.concatenate([row[:1], jnp.full(1, i, jnp.int32), row[1:]]) for i, row in found.items()])
    return rows[jnp.argmax(rows[:, 0])]


@jax.jit
def _subtract_runs(latched: LatchValue, runs: int) -> LatchValue:
    return jnp.where(latched > 0, latched - runs, latched + runs)


class _StepRange(NamedTuple):
    """Consecutive runs that each advance the global step equally.

    Args:
        first_run: The number of the first run.
        step: The global step after it.
        step_delta: The increase of the global step in each later run.
    """

    first_run: int
    step: int
    step_delta: int


class LatchState:
    """The state of one latch.

    Attributes:
        value: The value after the latest run, ready when that run is computed. No program donates it.
        runs: The number of runs so far.
        found_step: The global step after the first run in which the condition was true; None before the host has read
            that.
        details: For checks, the operation's index and the details of the first failure.
        step_ranges: The global steps of the runs in which the condition may have been true.
    """

    __slots__ = (
        "_expected_step",
        "_graph",
        "_shape",
        "_step_delta",
        "details",
        "found_step",
        "runs",
        "step_ranges",
        "value",
    )

    def __init__(self, of: LatchKey, graph: Graph) -> None:
        self._shape, self._graph = (2 + Check.DETAILS,) if of is Check else (), graph
        self.reset()

    def reset(self) -> None:
        """Resets the latch."""
        self.value: LatchValue = placement.device_put(jnp.zeros(self._shape, jnp.int32), self._graph.default_sharding)
        self.runs = 0
        self.found_step: int | None = None
        self.details: list[int] = []
        self.step_ranges: collections.deque[_StepRange] = collections.deque()
        # The global step after the next run, if the next run continues the last step range.
        self._expected_step = -1
        self._step_delta = 0

    def record(self, value: LatchValue, step: int | None, runs: int = 1, step_delta: int = 0) -> None:
        """Stores the value after more runs.

        Args:
            value: The value after these runs.
            step: The global step after these runs; None if the graph has none.
            runs: The number of these runs.
            step_delta: The increase of the global step in each of these runs. For one run it may be unknown: 0.
        """
        self.value = value
        number = self.runs + 1
        self.runs += runs
        if step is None:
            step, step_delta = self.runs, 1
        first = step if runs == 1 else step - step_delta * (runs - 1)
        if first != self._expected_step or (runs > 1 and step_delta != self._step_delta):
            self.step_ranges.append(_StepRange(number, first, step_delta))
            self._step_delta = step_delta
        self._expected_step = step + self._step_delta

    def read(self, held: LatchValue) -> bool:
        """Evaluates a value of this or an earlier run; returns whether it is the first one that is set."""
        if self.found_step is not None:
            return False
        held = np.asarray(held)
        number: int = held.item(0)
        step_ranges = self.step_ranges
        if number > 0:
            # If a Ctrl-C came between a run and `record`, the last run may be missing.
            number = min(number, self.runs)
            first = next(step_range for step_range in reversed(step_ranges) if step_range.first_run <= number)
            self.found_step, self.details = (
                first.step + (number - first.first_run) * first.step_delta,
                held.ravel()[1:].tolist(),
            )
            return True
        while len(step_ranges) > 1 and step_ranges[1].first_run <= 1 - number:
            step_ranges.popleft()
        if -number >= _REBASE_RUNS:
            self._rebase_count()
        return False

    def _rebase_count(self) -> None:
        """Subtracts runs without the condition from the count, because the device counts in 32 bits."""
        self.value = _subtract_runs(self.value, _REBASE_RUNS)
        self.runs -= _REBASE_RUNS
        moved = [s._replace(first_run=s.first_run - _REBASE_RUNS) for s in self.step_ranges]
        self.step_ranges = collections.deque(moved)  # A new object, because pending reads count from the old first run.


class PendingRead(NamedTuple):
    """A value of a latch that was not ready, to be read later.

    Args:
        state: The state of the latch.
        value: The value. A caller waits for it without the session's lock.
        step_ranges: The step ranges with the value. If the state has another object by then, the latch was reset or
            counts from another run, and the value is skipped.
    """

    state: LatchState
    value: LatchValue
    step_ranges: Any
