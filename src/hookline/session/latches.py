"""What the latches of a session have latched: arrays that its programs carry from run to run.

All faults of a program are one more latch, which also holds what tells of the first of them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import Graph, placement
from hookline.graph.fault import DETAILS, Fault
from hookline.graph.latch import Latch

Latched = Any
"""One number: minus the count of runs so far, or from 1 on the number of the run in which the condition held first.

That of faults is a vector: behind the number stand the operation's index and the details of its fault.
"""

Latching = Latch | type[Fault]
"""A latch; the class stands for all faults together."""

_START_ANEW_RUNS = 2**30


def after(latched: Latched, condition: Any) -> Latched:
    """Returns what a latch holds after one more run; for faults, `condition` is what `first_fault` returns."""
    if latched.ndim:
        number = after(latched[0], condition[0] > 0)
        return jnp.concatenate([number[None], jnp.where(latched[0] > 0, latched[1:], condition[1:])])
    return jnp.where(latched > 0, latched, jnp.where(condition, 1 - latched, latched - 1))


def first_fault(found: Mapping[int, Any]) -> Any:
    """Returns 1 or 0 for whether there is a fault, and of the first one the operation's index and the details."""
    rows = jnp.stack([jnp.concatenate([row[:1], jnp.full(1, i, jnp.int32), row[1:]]) for i, row in found.items()])
    return rows[jnp.argmax(rows[:, 0])]


@jax.jit
def _less(latched: Latched, runs: int) -> Latched:
    return jnp.where(latched > 0, latched - runs, latched + runs)


class _Stretch(NamedTuple):
    """Runs in a row of which each led equally far.

    Args:
        number: The first one's.
        step: Where that led.
        gain: How far each of the others led.
    """

    number: int
    step: int
    gain: int


class _State:
    """What one latch holds.

    Attributes:
        value: As it is after the latest run, which is computed when this is there. No program takes it away.
        runs: How many runs there were.
        found: Where the first run led in which the condition held, once that is known.
        told: What else it held then.
        stretches: Where the runs have led, but for those that are known to have been fine.
    """

    __slots__ = ("_expected", "_gain", "_graph", "_shape", "found", "runs", "stretches", "told", "value")

    def __init__(self, of: Latching, graph: Graph) -> None:
        self._shape, self._graph = (2 + DETAILS,) if of is Fault else (), graph
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.value: Latched = placement.put(jnp.zeros(self._shape, jnp.int32), self._graph.home)
        self.runs = 0
        self.found: int | None = None
        self.told: list[int] = []
        self.stretches: collections.deque[_Stretch] = collections.deque()
        # Where the next run leads if it belongs to the last stretch.
        self._expected = -1
        self._gain = 0

    def put(self, value: Latched, step: int | None, runs: int = 1, gain: int = 0) -> None:
        """Keeps what it holds after runs of which the last led to a global step; None where the graph has none.

        Of several at once each has led `gain` further than the one before.
        """
        self.value = value
        if runs > 1:
            self._put_several(runs, None if step is None else (step - gain * (runs - 1), gain))
            return
        self.runs += 1
        if step is None:
            step = self.runs
        if step == self._expected:
            self._expected = step + self._gain
            return
        stretches = self.stretches
        if stretches and self.runs == stretches[-1].number + 1:
            self._gain = step - stretches[-1].step
            stretches[-1] = stretches[-1]._replace(gain=self._gain)
        else:
            self._gain = 0
            stretches.append(_Stretch(self.runs, step, 0))
        self._expected = step + self._gain

    def _put_several(self, runs: int, led: tuple[int, int] | None) -> None:
        first, gain = led or (self.runs + 1, 1)
        if first != self._expected or gain != self._gain:
            self.stretches.append(_Stretch(self.runs + 1, first, gain))
            self._gain = gain
        self.runs += runs
        self._expected = first + gain * runs

    def read(self, held: Latched) -> bool:
        """Takes note of what it held at some time; returns whether that says for the first time that it has latched."""
        if self.found is not None:
            return False
        held = np.asarray(held)
        number: int = held.item(0)
        stretches = self.stretches
        if number > 0:
            # Where a Ctrl-C came between a run and `put`, the last may be missing.
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
        """Forgets runs that were fine: the device counts in 32 bits."""
        self.value = _less(self.value, _START_ANEW_RUNS)
        self.runs -= _START_ANEW_RUNS
        moved = [s._replace(number=s.number - _START_ANEW_RUNS) for s in self.stretches]
        self.stretches = collections.deque(moved)  # Another one: what is noted counts from the old beginning.


class Unread(NamedTuple):
    """What a latch held at some moment.

    Args:
        state: The latch.
        value: The number, to be waited for without the session's lock.
        life: What tells whether the latch began anew meanwhile.
    """

    state: _State
    value: Latched
    life: Any


class Latches:
    """The latches that a session has run. Its lock is held by whoever calls one of these.

    Attributes:
        news: How many are known to have latched so far.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._states: dict[Latching, _State] = {}
        self._noted: list[Unread] = []
        # In step all processes read a latch at the same run, whenever it is there.
        self._counts = placement.is_in_step()
        self.news = 0

    def of(self, latches: Iterable[Latching]) -> list[_State]:
        """Returns the states of these, for a program that runs them."""
        return [self._states.setdefault(latch, _State(latch, self._graph)) for latch in latches]

    def reset(self) -> None:
        """Forgets everything: another model was loaded."""
        self._noted.clear()
        for state in self._states.values():
            state.reset()

    def found(self, latch: Latch) -> int | None:
        """Returns where the first run has led in which the condition held, as far as that is known."""
        state = self._states.get(latch)
        return None if state is None else state.found

    def take_fault(self) -> tuple[int, list[int]] | None:
        """Returns where the run has led that had the first fault, and what tells of it; None if none is known.

        From then on it is the next fault that is looked for.
        """
        state = self._states.get(Fault)
        if state is None or state.found is None:
            return None
        found = state.found, state.told
        state.reset()
        return found

    def peek(self, latch: Latching) -> _State | None:
        """Reads what a latch holds now if that is there; else returns its state.

        What somebody else has deleted is passed over: the next run will say so.
        """
        state = self._states.get(latch)
        if state is None or state.found is not None or not state.runs or state.value.is_deleted():
            return None
        if not self._counts and state.value.is_ready():
            self.news += state.read(state.value)
            return None
        return state

    def unread(self, latch: Latching) -> Unread | None:
        """Does the same, but returns what the latch holds, to be waited for."""
        state = self.peek(latch)
        return None if state is None else Unread(state, state.value, state.stretches)

    def read(self, unread: Iterable[Unread]) -> None:
        """Reads what latches held. What somebody else has deleted is passed over, as above."""
        for each in unread:
            if each.state.stretches is each.life and not each.value.is_deleted():
                self.news += each.state.read(each.value)

    def look(self) -> None:
        """Reads what is there without waiting, and what was not there the last time.

        Between two looks the device must have come as far as the first of them.
        """
        if self._noted:
            self.read(self._noted)
        self._noted = [unread for latch in self._states if (unread := self.unread(latch))]
