"""The state of a session's latches: arrays that its programs carry from run to run.

All checks of a program share one more latch, which also holds the details of the first failure.

Example:
    A run advances the global step by 10, and its latch has the value 0 at first. After runs 1, 2 and 3, in which the
    condition does not hold, it is -1, -2 and -3. In run 4 it holds: the value is 4, and stays 4 in all later runs.

    The host knows the global step after each run when it starts the run, but not yet the value. It notes the steps 10,
    20, 30, ... as one stretch: (first run 1, step 10, gain 10). After a load in between, which sets the step to 500,
    run 5 begins another one: (5, 510, 10).

    At the look after run 14 it reads 4. The latest stretch that begins by run 4 is the first, so the condition held in
    the run that led to global step 10 + (4 - 1) * 10 = 40. Had it read -6, runs 1 to 6 would be known to be fine, and
    the first stretch would be forgotten.
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

Latched = Any
"""One number: minus the count of runs so far, or from 1 on the number of the first run in which the condition held.

The latch of checks is a vector: the number, the operation's index and the details of its failure.
"""

Latching = Latch | type[Check]
"""A latch; the class stands for all checks together."""

_START_ANEW_RUNS = 2**30


def after(latched: Latched, condition: Any) -> Latched:
    """Returns the value of a latch after one more run; for checks, `condition` is the result of `first_failure`."""
    if latched.ndim:
        number = after(latched[0], condition[0] > 0)
        return jnp.concatenate([number[None], jnp.where(latched[0] > 0, latched[1:], condition[1:])])
    return jnp.where(latched > 0, latched, jnp.where(condition, 1 - latched, latched - 1))


def first_failure(found: Mapping[int, Any]) -> Any:
    """Returns 1 if a check fails, else 0, and the operation's index and the details of the first failure."""
    rows = jnp.stack([jnp.concatenate([row[:1], jnp.full(1, i, jnp.int32), row[1:]]) for i, row in found.items()])
    return rows[jnp.argmax(rows[:, 0])]


@jax.jit
def _less(latched: Latched, runs: int) -> Latched:
    return jnp.where(latched > 0, latched - runs, latched + runs)


class _Stretch(NamedTuple):
    """Consecutive runs that each advance the global step equally.

    Args:
        number: The number of the first run.
        step: The global step after it.
        gain: The increase of the global step in each of the others.
    """

    number: int
    step: int
    gain: int


class LatchState:
    """The state of one latch.

    Attributes:
        value: The value after the latest run, ready when that run is computed. No program donates it.
        runs: The number of runs so far.
        found: The global step after the first run in which the condition held, once that is known.
        told: The rest of its vector at that run.
        stretches: The global steps of the runs, except those that are known to have been fine.
    """

    __slots__ = ("_expected", "_gain", "_graph", "_shape", "found", "runs", "stretches", "told", "value")

    def __init__(self, of: Latching, graph: Graph) -> None:
        self._shape, self._graph = (2 + Check.DETAILS,) if of is Check else (), graph
        self.reset()

    def reset(self) -> None:
        """Starts over."""
        self.value: Latched = placement.put(jnp.zeros(self._shape, jnp.int32), self._graph.home)
        self.runs = 0
        self.found: int | None = None
        self.told: list[int] = []
        self.stretches: collections.deque[_Stretch] = collections.deque()
        # The global step after the next run, if that belongs to the last stretch.
        self._expected = -1
        self._gain = 0

    def put(self, value: Latched, step: int | None, runs: int = 1, gain: int = 0) -> None:
        """Stores the value after `runs` more runs; `step` is the global step after them, None if the graph has none.

        Each of the runs has advanced the step by `gain`; 0 for a single one if that is not known.
        """
        self.value = value
        number = self.runs + 1
        self.runs += runs
        if step is None:
            step, gain = self.runs, 1
        first = step if runs == 1 else step - gain * (runs - 1)
        if first != self._expected or (runs > 1 and gain != self._gain):
            self.stretches.append(_Stretch(number, first, gain))
            self._gain = gain
        self._expected = step + self._gain

    def read(self, held: Latched) -> bool:
        """Records an earlier value; returns whether it is the first that shows that the latch has latched."""
        if self.found is not None:
            return False
        held = np.asarray(held)
        number: int = held.item(0)
        stretches = self.stretches
        if number > 0:
            # If a Ctrl-C came between a run and `put`, the last run may be missing.
            number = min(number, self.runs)
            first = next(stretch for stretch in reversed(stretches) if stretch.number <= number)
            self.found, self.told = first.step + (number - first.number) * first.gain, held.ravel()[1:].tolist()
            return True
        while len(stretches) > 1 and stretches[1].number <= 1 - number:
            stretches.popleft()
        if -number >= _START_ANEW_RUNS:
            self._count_anew()
        return False

    def _count_anew(self) -> None:
        """Subtracts runs that were fine from the count: the device counts in 32 bits."""
        self.value = _less(self.value, _START_ANEW_RUNS)
        self.runs -= _START_ANEW_RUNS
        moved = [s._replace(number=s.number - _START_ANEW_RUNS) for s in self.stretches]
        self.stretches = collections.deque(moved)  # A new object: values noted before count from the old beginning.


class Unread(NamedTuple):
    """The value of a latch at some moment, not yet read.

    Args:
        state: The latch.
        value: The value, to be awaited without the session's lock.
        life: The stretches at that moment: if the latch has others now, it has started over.
    """

    state: LatchState
    value: Latched
    life: Any
