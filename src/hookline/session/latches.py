"""What the latches of a session have latched: arrays that its programs carry from run to run."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hookline.graph.latch import Latch

Latched = Any  # A `jax.Array`; its type does not know `is_ready`.
"""One number: minus the count of runs so far, or from 1 on the number of the run in which the condition held first."""

WINDOW_RUNS = 32
_MOST_UNREAD_RUNS = 1024
_START_ANEW_RUNS = 2**30


def after(latched: Latched, condition: Any) -> Latched:
    """Returns what a latch holds after one more run."""
    return jnp.where(latched > 0, latched, jnp.where(condition, 1 - latched, latched - 1))


class _State:
    """What one latch holds.

    Attributes:
        value: As it is after the latest run.
        found: Where the first run led in which the condition held, once that is known.
        steps: Where the runs have led, but for those that are known to have been fine.
        fine: How many these were.
        noted: A value to read later, and the number of runs that it tells of.
    """

    __slots__ = ("fine", "found", "noted", "steps", "value")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.value: Latched = jnp.zeros((), jnp.int32)
        self.found: int | None = None
        self.steps: collections.deque[int] = collections.deque()
        self.fine = 0
        self.noted: tuple[Latched, int] | None = None

    @property
    def runs(self) -> int:
        return self.fine + len(self.steps)

    def put(self, value: Latched, step: int | None) -> None:
        """Keeps what it holds after a run that led to a global step; None where the graph has none."""
        self.value = value
        if self.found is None:
            self.steps.append(self.runs + 1 if step is None else step)
            if len(self.steps) > _MOST_UNREAD_RUNS:
                self.read(value)

    def read(self, value: Latched) -> int | None:
        """Reads a value that it had; returns where the first run has led in which the condition held."""
        number: Any = np.asarray(value)[()]
        if number > 0 and self.found is None:
            # Where a Ctrl-C came between a run and here, the last may be missing.
            self.found = self.steps[min(int(number) - 1 - self.fine, len(self.steps) - 1)]
            self.steps.clear()
        while self.fine < -number and self.steps:
            self.steps.popleft()
            self.fine += 1
        found = self.found
        if self.fine > _START_ANEW_RUNS and not self.steps:
            self.reset()
        return found


class Unread(NamedTuple):
    """What a latch held at some moment.

    Args:
        state: The latch.
        value: The number, to be waited for without the session's lock.
        life: What tells whether the latch was reset meanwhile.
    """

    state: _State
    value: Latched
    life: Any

    def read(self) -> int | None:
        """Returns where the first run has led in which the condition held."""
        return self.state.read(self.value) if self.state.steps is self.life else None


class Latches:
    """The latches that a session has run. Its lock is held by whoever calls one of these."""

    def __init__(self) -> None:
        self._states: dict[Latch, _State] = {}

    def of(self, latches: Iterable[Latch]) -> list[_State]:
        """Returns the states of these, for a program that runs them."""
        return [self._states.setdefault(latch, _State()) for latch in latches]

    def reset(self) -> None:
        """Forgets everything: another model was loaded."""
        for state in self._states.values():
            state.reset()

    def to_read(self, latch: Latch, *, wait: bool) -> Unread | None:
        """Returns what is to be read now; None for nothing.

        Args:
            latch: Which one.
            wait: Whether that may have to be waited for. If not, then only if it is of 32 runs ago.
        """
        state = self._states.get(latch)
        if state is None:
            return None
        if wait or state.value.is_ready():
            state.noted = None
            return Unread(state, state.value, state.steps)
        value, runs = state.noted or (None, 0)
        if value is None or value.is_ready() or state.runs - runs >= WINDOW_RUNS:
            state.noted = state.value, state.runs
            return None if value is None else Unread(state, value, state.steps)
        return None
