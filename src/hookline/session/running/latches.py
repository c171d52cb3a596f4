"""The state of a session's latches: arrays that its programs carry from run to run.

All checks of a program share one more latch, which also holds the details of the first failure.

Example:
    A run advances the global step by 10, and its latch has the value 0 at first. After runs 1, 2 and 3, in which the
    condition does not hold, it is -1, -2 and -3. In run 4 it holds: the value is 4, and stays 4 in all later runs.

    The host knows the global step after each run when it starts the run, but not yet the latch value. It records the
    steps 10, 20, 30, ... as one step range: (first run 1, step 10, step delta 10). After a load in between, which sets
    the step to 500, run 5 begins another one: (5, 510, 10).

    At the poll after run 14 it reads 4. The latest step range that begins by run 4 is the first, so the condition held
    in the run that led to global step 10 + (4 - 1) * 10 = 40. If it had read -6, runs 1 to 6 would be known to be fine,
    and the first step range would be dropped.
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
"""One number: minus the count of runs so far, or from 1 on the number of the first run in which the condition held.

The latch of checks is a vector: the number, the operation's index and the details of its failure.
"""

LatchKey = Latch | type[Check]
"""A latch; the class means all checks together."""

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
        step_delta: The increase of the global step in each of the others.
    """

    first_run: int
    step: int
    step_delta: int


class LatchState:
    """The state of one latch.

    Attributes:
        value: The value after the latest run, ready when that run is computed. No program donates it.
        runs: The number of runs so far.
        found_step: The global step after the first run in which the condition held, once that is known.
        details: For checks, the rest of the value at that run.
        step_ranges: The global steps of the runs, except those that are known to have been fine.
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
        # The global step after the next run, if that belongs to the last step range.
        self._expected_step = -1
        self._step_delta = 0

    def record(self, value: LatchValue, step: int | None, runs: int = 1, step_delta: int = 0) -> None:
        """Stores the value after `runs` more runs; `step` is the global step after them, None if the graph has none.

        Each of the runs has advanced the step by `step_delta`; 0 for a single one if that is not known.
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
        """Evaluates an earlier value; returns whether this is the first time that the latch is found set."""
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
        """Subtracts runs that were fine from the count: the device counts in 32 bits."""
        self.value = _subtract_runs(self.value, _REBASE_RUNS)
        self.runs -= _REBASE_RUNS
        moved = [s._replace(first_run=s.first_run - _REBASE_RUNS) for s in self.step_ranges]
        self.step_ranges = collections.deque(moved)  # A new object: pending values count from the old first run.


class PendingRead(NamedTuple):
    """The value of a latch at some moment, not yet read.

    Args:
        state: The latch.
        value: The value, to be awaited without the session's lock.
        step_ranges: The step ranges at that moment: if the latch has another object now, it was reset.
    """

    state: LatchState
    value: LatchValue
    step_ranges: Any
