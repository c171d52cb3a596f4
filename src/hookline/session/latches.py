"""What the latches of a session have latched: arrays that its programs carry from run to run."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

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
        self.value: Latched = jnp.zeros((), jnp.int32)
        self.found: int | None = None
        self.steps: collections.deque[int] = collections.deque()
        self.fine = 0
        self.noted: tuple[Latched, int] | None = None

    @property
    def runs(self) -> int:
        return self.fine + len(self.steps)


class Latches:
    """The latches that a session has run. Its lock is held by whoever calls one of these."""

    def __init__(self) -> None:
        self._states: dict[Latch, _State] = {}

    def take(self, latches: Iterable[Latch]) -> tuple[Latched, ...]:
        """Returns what they hold, for a program."""
        states = self._states
        return tuple([(states.get(latch) or states.setdefault(latch, _State())).value for latch in latches])

    def put(self, latches: Iterable[Latch], values: Sequence[Latched], step: int | None) -> None:
        """Keeps what they hold after a run that led to a global step; None where the graph has none."""
        for latch, value in zip(latches, values, strict=True):
            state = self._states[latch]
            if state.found is None:
                state.steps.append(state.runs + 1 if step is None else step)
            state.value = value
            if state.found is None and len(state.steps) > _MOST_UNREAD_RUNS:
                self.read(latch, value)

    def reset(self) -> None:
        """Forgets everything: another model was loaded."""
        self._states.clear()

    def to_read(self, latch: Latch, *, wait: bool) -> Latched | None:
        """Returns the value that is to be read now; None for none.

        Args:
            latch: Which one.
            wait: Whether that may have to be waited for. If not, then only if it is of 32 runs ago.
        """
        state = self._states.get(latch)
        if state is None:
            return None
        if wait or state.value.is_ready():
            state.noted = None
            return state.value
        value, runs = state.noted or (None, 0)
        if value is None or value.is_ready() or state.runs - runs >= WINDOW_RUNS:
            state.noted = state.value, state.runs
            return value
        return None

    def read(self, latch: Latch, value: Latched) -> int | None:
        """Reads a value; returns where the first run has led in which the condition held."""
        state = self._states.get(latch)
        if state is None:
            return None
        number: Any = np.asarray(value)[()]
        if number > 0 and state.found is None:
            # Where a Ctrl-C came between a run and here, the last may be missing.
            state.found = state.steps[min(int(number) - 1 - state.fine, len(state.steps) - 1)]
            state.steps.clear()
        while state.fine < -number and state.steps:
            state.steps.popleft()
            state.fine += 1
        if state.fine > _START_ANEW_RUNS and not state.steps:
            del self._states[latch]
        return state.found
