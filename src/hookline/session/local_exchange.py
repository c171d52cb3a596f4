"""The variables of programs in this process, found once, and where each variable is kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hookline.graph.variable import Variable, is_counter
from hookline.session.buckets import Bucket, Carrier, Leaves
from hookline.session.store import Flat

# What every counter holds: it has 32 bits or 64.
_LEAST, _MOST = -(2**31), 2**31 - 1


class Slot:
    """The value of one variable: its leaves, and for an integer scalar the host's copy (`None`: ask the device).

    Attributes:
        leaves: The leaves; None if they are in the bucket, or if the host alone has counted.
        bucket: The bucket that it is in, if it is in one.
    """

    __slots__ = ("bucket", "leaves", "mirror", "structure")

    def __init__(self) -> None:
        self.leaves: Leaves | None = None
        self.structure: Any = None
        self.mirror: int | None = None
        self.bucket: BucketSlot | None = None

    def values(self, variable: Any) -> Leaves:
        """Returns the leaves, made anew where the host alone has counted, or cut out of the bucket."""
        if self.leaves is not None:
            return self.leaves
        if self.bucket is not None:
            return self.bucket.value(variable)
        self.leaves = (jnp.asarray(np.asarray(self.mirror).astype(variable.dtype)),)
        return self.leaves

    def count(self, variable: Variable, gain: int | None) -> None:
        """Advances the host's copy; it is lost where the host does not know by how much."""
        if gain is None or self.mirror is None:
            self.mirror = None
            return
        mirror = self.mirror + gain
        self.mirror = mirror if _LEAST <= mirror <= _MOST else _wrapped(mirror, variable)


class BucketSlot(Slot):
    """The arrays of a bucket. What was written alone since is in the slots of its variables.

    Args:
        form: The bucket.
        slots: Those of its variables.
    """

    __slots__ = ("_form", "_slots")

    def __init__(self, form: Bucket, slots: Sequence[Slot]) -> None:
        super().__init__()
        self._form, self._slots = form, slots

    def values(self, variable: Any) -> Leaves:
        """Returns the arrays, with what was written alone."""
        if self.leaves is None:
            self.leaves = self._form.packed([slot.leaves or () for slot in self._slots])
        else:
            for one, slot in zip(self._form.variables, self._slots, strict=True):
                if slot.leaves is not None:
                    self.leaves = self._form.spliced(self.leaves, one, slot.leaves)
        # Only now: where a Ctrl-C came in between, the same is done again.
        for slot in self._slots:
            slot.leaves = None
        return self.leaves

    def value(self, variable: Variable) -> Leaves:
        """Returns the value of one of its variables."""
        assert self.leaves is not None
        return self._form.value(self.leaves, variable)


class LocalExchange:
    """The variables of programs that take and write the same ones, found once.

    The new values that a run leaves are the arguments of the next one. As long as these programs run they are only
    kept here, and the store asks for them (`flush`) when anybody else looks.

    Args:
        store: The store of this process.
        groups: The variables, and buckets of them, whose values the program takes.
        written: The variables and buckets that it writes.
        gains: By how much each of those counts on in a run; None where the host does not know.
        hosted: What the program leaves to the host to count, and by how much.

    Attributes:
        store: As above.
        new: What was put last, in the groups of the program.
        structures: Of that, the structures of the variables; None for a bucket.
        read: Where the variables are kept that the program only reads. Known once something was put.
        counters: What counts, and by how much in each run: the global step first. Known once something was put.
        step: The global step at the last `take`, as far as the host knows it.
    """

    __slots__ = (
        "__weakref__",
        "_gains",
        "_groups",
        "_hosted",
        "_hosted_slots",
        "_is_ready",
        "_reads_what_it_writes",
        "_slots",
        "_steps",
        "counters",
        "new",
        "read",
        "step",
        "store",
        "structures",
    )
    new: tuple[Flat, Flat, Flat]
    structures: Sequence[Any]

    def __init__(
        self,
        store: Any,
        groups: Sequence[Sequence[Carrier]],
        written: Sequence[Carrier],
        gains: Sequence[int | None],
        hosted: Mapping[Variable, int],
    ) -> None:
        self.store, self._groups, self._hosted = store, groups, hosted
        self._gains = list(zip(written, gains, strict=True))
        self._slots: list[Slot] = []
        self.read: list[Slot] = []
        self._hosted_slots: list[Slot] = []
        self.counters: list[tuple[Slot, Variable, int | None]] = []
        self._steps = self._is_ready = False
        # Whether it writes a variable alone whose bucket it reads.
        self._reads_what_it_writes = False
        self.step: int | None = None

    def is_cycle(self) -> bool:
        """Whether what was put last is taken next, all of it, and the global step is counted upwards."""
        if not self._is_ready or not self._steps:
            return False
        return len(self._gains) == sum(map(len, self._groups[:2])) and (self.counters[0][2] or 0) > 0

    def take(self) -> tuple[Flat, Flat, Flat]:
        """Returns the values that the program takes."""
        store = self.store
        slot = store.step_slot
        self.step = store.known_step() if slot is None else slot.mirror
        if store.latest is self and not self._reads_what_it_writes:
            taken, counted, _ = self.new
            return taken, counted, [slot.leaves for slot in self.read] if self.read else []  # type: ignore[misc]
        for variable in self._hosted:
            store.counter(variable)
        taken, counted, read = [list(store.take(variables)) for variables in self._groups]
        return taken, counted, read

    def put(self, new: tuple[Flat, Flat, Flat], structures: Sequence[Any]) -> None:
        """Keeps the values that the program has written, and counts on what counts. `Repeat.make` does the same."""
        store = self.store
        if store.latest is not self:
            self._prepare()
        # Counted first: where a Ctrl-C comes in between, the values are gone, and the session is lost with them.
        for slot, variable, gain in self.counters:
            if gain is not None and slot.mirror is not None and slot.mirror + gain <= _MOST and gain > 0:
                slot.mirror += gain
            else:
                slot.count(variable, gain)
        self.structures, self.new = structures, new
        store.latest = store.unwritten = self
        if new[2]:  # Their old values are not given away, and would be held as well.
            store.flush()
        if self._steps:
            store.step_changes += 1
            if store.waiting:
                store.tell()

    def write(self) -> None:
        """Puts the new values where they are looked for."""
        new = itertools.chain(*self.new)
        for slot, leaves, structure in zip(self._slots, new, self.structures, strict=True):
            slot.leaves, slot.structure = leaves, structure
        for slot in self._hosted_slots:
            slot.leaves = None
        self.new = (*self.new[:2], ())

    def release(self) -> None:
        """Lets go of the values, which are others now."""
        self.new = ((), (), ())

    def _prepare(self) -> None:
        """Makes this exchange the one that may keep new values to itself."""
        self.store.supersede()
        if self._is_ready:
            return
        self._slots = self.store.slots(variable for variable, _ in self._gains)
        self.read = self.store.slots(self._groups[-1])
        self._reads_what_it_writes = any(slot.bucket is not None and slot.bucket in self.read for slot in self._slots)
        every = zip(self._slots, self._gains, strict=True)
        self._hosted_slots = self.store.slots(self._hosted)
        self.counters = [(s, v, gain) for s, (v, gain) in every if isinstance(v, Variable) and is_counter(v)]
        self.counters += [(s, v, gain) for s, (v, gain) in zip(self._hosted_slots, self._hosted.items(), strict=True)]
        step = self.store.counted_step()
        self.counters.sort(key=lambda counter: counter[1] is not step)
        self._steps = bool(self.counters) and self.counters[0][1] is step
        self._is_ready = True


def _wrapped(value: int, variable: Variable) -> int:
    """Returns what a counter holds after counting to `value`."""
    return int(np.asarray(value).astype(variable.dtype))
