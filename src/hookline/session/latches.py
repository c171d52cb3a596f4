"""What the latches of a session have latched: arrays that its programs carry from run to run."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph.latch import Latch

Latched = Any
"""One number: minus the count of runs so far, or from 1 on the number of the run in which the condition held first."""

_START_ANEW_RUNS = 2**30


def after(latched: Latched, condition: Any) -> Latched:
    """Returns what a latch holds after one more run."""
    return jnp.where(latched > 0, latched, jnp.where(condition, 1 - latched, latched - 1))


@jax.jit
def _less(latched: Latched, runs: int) -> Latched:
    return jnp.where(latched > 0, latched - runs, latched + runs)


copied = jax.jit(jnp.copy)  # Much faster than `jnp.copy` alone.


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
        value: As it is after the latest run. The next one takes it away.
        runs: How many runs there were.
        found: Where the first run led in which the condition held, once that is known.
        stretches: Where the runs have led, but for those that are known to have been fine.
    """

    __slots__ = ("_copy", "_copy_of", "_expected", "_gain", "found", "runs", "stretches", "value")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.value: Latched = jnp.zeros((), jnp.int32)
        self.runs = 0
        self.found: int | None = None
        self.stretches: collections.deque[_Stretch] = collections.deque()
        # Where the next run leads if it belongs to the last stretch.
        self._expected = -1
        self._gain = 0
        self._copy_of = self._copy = None

    def copy(self) -> Latched:
        """Returns what it holds, as an array that no later run takes away."""
        if self._copy_of is not self.value:
            self._copy_of, self._copy = self.value, copied(self.value)
        return self._copy

    def put(self, value: Latched, step: int | None) -> None:
        """Keeps what it holds after a run that led to a global step; None where the graph has none."""
        self.value = value
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

    def read(self, number: int) -> bool:
        """Takes note of what it held at some time; returns whether that says for the first time that it has latched."""
        if self.found is not None:
            return False
        stretches = self.stretches
        if number > 0:
            # Where a Ctrl-C came between a run and `put`, the last may be missing.
            number = min(number, self.runs)
            first = next(stretch for stretch in reversed(stretches) if stretch.number <= number)
            self.found = first.step + (number - first.number) * first.gain
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
    """The latches that a session has run. Its lock is held by whoever calls one of these."""

    def __init__(self) -> None:
        self._states: dict[Latch, _State] = {}
        self._noted: list[Unread] = []

    def of(self, latches: Iterable[Latch]) -> list[_State]:
        """Returns the states of these, for a program that runs them."""
        return [self._states.setdefault(latch, _State()) for latch in latches]

    def reset(self) -> None:
        """Forgets everything: another model was loaded."""
        self._noted.clear()
        for state in self._states.values():
            state.reset()

    def found(self, latch: Latch) -> int | None:
        """Returns where the first run has led in which the condition held, as far as that is known."""
        state = self._states.get(latch)
        return None if state is None else state.found

    def unread(self, latch: Latch) -> Unread | None:
        """Returns what a latch holds now, to be waited for; None where nothing can be news."""
        state = self._states.get(latch)
        if state is None or state.found is not None or not state.runs:
            return None
        return Unread(state, state.copy(), state.stretches)

    def read(self, unread: Iterable[Unread]) -> int:
        """Reads what latches held; returns how many of them are news.

        What somebody else has deleted is passed over: the next run will say so.
        """
        there = [each for each in unread if each.state.stretches is each.life and not each.value.is_deleted()]
        return sum(each.state.read(int(np.asarray(each.value))) for each in there)

    def look(self) -> int:
        """Reads what is there without waiting, and what was not there the last time; returns how many are news.

        Between two looks the device must have come as far as the first of them.
        """
        news = self.read(self._noted) if self._noted else 0
        self._noted = []
        for latch, state in self._states.items():
            if state.value.is_deleted():
                continue
            if state.runs and state.found is None and state.value.is_ready():
                news += state.read(int(np.asarray(state.value)))
            elif unread := self.unread(latch):
                self._noted.append(unread)
        return news
