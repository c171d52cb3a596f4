"""The variables of programs in this process, found once, and where each variable is kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hookline.graph.variable import Variable, is_counter
from hookline.session.store import Flat, Leaves

# What every counter holds: it has 32 bits or 64.
_LEAST, _MOST = -(2**31), 2**31 - 1


class Slot:
    """The value of one variable: its leaves, and for an integer scalar the host's copy (`None`: ask the device)."""

    __slots__ = ("leaves", "mirror", "structure")

    def __init__(self) -> None:
        self.leaves: Leaves | None = None
        self.structure: Any = None
        self.mirror: int | None = None

    def values(self, variable: Variable) -> Leaves:
        """Returns the leaves, made anew where the host alone has counted."""
        if self.leaves is None:
            self.leaves = (jnp.asarray(np.asarray(self.mirror).astype(variable.dtype)),)
        return self.leaves

    def count(self, variable: Variable, gain: int | None) -> None:
        """Advances the host's copy; it is lost where the host does not know by how much."""
        if gain is None or self.mirror is None:
            self.mirror = None
            return
        mirror = self.mirror + gain
        self.mirror = mirror if _LEAST <= mirror <= _MOST else _wrapped(mirror, variable)


class LocalExchange:
    """The variables of programs that take and write the same ones, found once.

    The new values that a run leaves are the arguments of the next one. As long as these programs run they are only
    kept here, and the store asks for them (`flush`) when anybody else looks.

    Args:
        store: The store of this process.
        groups: The variables whose values the program takes.
        written: The ones that it writes.
        gains: By how much each of those counts on in a run; None where the host does not know.
        hosted: What the program leaves to the host to count, and by how much.
    """

    __slots__ = (
        "__weakref__",
        "_counters",
        "_gains",
        "_groups",
        "_hosted",
        "_hosted_slots",
        "_is_ready",
        "_new",
        "_read",
        "_slots",
        "_steps",
        "_store",
        "_structures",
        "step",
    )
    _new: tuple[Flat, Flat, Flat]
    _structures: Sequence[Any]

    def __init__(
        self,
        store: Any,
        groups: Sequence[Sequence[Variable]],
        written: Sequence[Variable],
        gains: Sequence[int | None],
        hosted: Mapping[Variable, int],
    ) -> None:
        self._store, self._groups, self._hosted = store, groups, hosted
        self._gains = list(zip(written, gains, strict=True))
        self._slots: list[Slot] = []
        self._read: list[Slot] = []
        self._hosted_slots: list[Slot] = []
        self._counters: list[tuple[Slot, Variable, int | None]] = []
        self._steps = self._is_ready = False
        self.step: int | None = None

    def take(self) -> tuple[Flat, Flat, Flat]:
        """Returns the values that the program takes."""
        store = self._store
        slot = store.step_slot
        self.step = store.known_step() if slot is None else slot.mirror
        if store.latest is self:
            taken, counted, _ = self._new
            return taken, counted, [slot.leaves for slot in self._read] if self._read else []  # type: ignore[misc]
        for variable in self._hosted:
            store.counter(variable)
        taken, counted, read = [list(store.take(variables)) for variables in self._groups]
        return taken, counted, read

    def put(self, new: tuple[Flat, Flat, Flat], structures: Sequence[Any]) -> None:
        """Keeps the values that the program has written, and counts on what counts."""
        store = self._store
        if store.latest is not self:
            self._prepare()
        # Counted first: where a Ctrl-C comes in between, the values are gone, and the session is lost with them.
        for slot, variable, gain in self._counters:
            if gain is not None and slot.mirror is not None and slot.mirror + gain <= _MOST and gain > 0:
                slot.mirror += gain
            else:
                slot.count(variable, gain)
        self._structures, self._new = structures, new
        store.latest = store.unwritten = self
        if new[2]:  # Their old values are not given away, and would be held as well.
            store.flush()
        if self._steps:
            store.step_changes += 1
            if store.waiting:
                store.tell()

    def write(self) -> None:
        """Puts the new values where they are looked for."""
        new = itertools.chain(*self._new)
        for slot, leaves, structure in zip(self._slots, new, self._structures, strict=True):
            slot.leaves, slot.structure = leaves, structure
        for slot in self._hosted_slots:
            slot.leaves = None
        self._new = (*self._new[:2], ())

    def release(self) -> None:
        """Lets go of the values, which are others now."""
        self._new = ((), (), ())

    def _prepare(self) -> None:
        """Makes this exchange the one that may keep new values to itself."""
        self._store.supersede()
        if self._is_ready:
            return
        self._slots = self._store.slots(variable for variable, _ in self._gains)
        self._read = self._store.slots(self._groups[-1])
        every = zip(self._slots, self._gains, strict=True)
        self._hosted_slots = self._store.slots(self._hosted)
        self._counters = [(slot, variable, gain) for slot, (variable, gain) in every if is_counter(variable)]
        self._counters += [(s, v, gain) for s, (v, gain) in zip(self._hosted_slots, self._hosted.items(), strict=True)]
        self._steps = self._store.counts([variable for variable, _ in self._gains] + list(self._hosted))
        self._is_ready = True


def _wrapped(value: int, variable: Variable) -> int:
    """Returns what a counter holds after counting to `value`."""
    return int(np.asarray(value).astype(variable.dtype))
