"""The places of variables' values in this process: each alone in a slot, or together in the block of a program."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import placement
from hookline.graph.variable import Variable

Leaves = tuple[jax.Array, ...]
"""The arrays of one variable."""

Flat = Sequence[Leaves]

# Bounds of every counter: it has 32 bits or 64.
_LEAST, _MOST = -(2**31), 2**31 - 1


class Slot:
    """The value of one variable: its leaves, and for an integer scalar the host's copy (`None`: ask the device).

    Attributes:
        leaves: The leaves; None if they are in the block, or if only the host has counted.
        structure: Their tree, unless that is in the block, too.
        block: The block that the value is in, as long as the block has any values.
        place: Its index there; None for a counter that only the host counts.
    """

    __slots__ = ("block", "leaves", "mirror", "place", "structure")

    def __init__(self) -> None:
        self.leaves: Leaves | None = None
        self.structure: Any = None
        self.mirror: int | None = None
        self.block: Block | None = None
        self.place: int | None = None

    def held(self) -> Leaves | None:
        """Returns the leaves; None if only the host has counted."""
        block = self.block
        if block is not None and block.groups is not None:
            return None if self.place is None else block.leaves(self.place)
        return self.leaves

    def values(self, variable: Variable) -> Leaves:
        """Returns the leaves, made from the host's count if only the host has counted.

        Raises:
            KeyError: The variable has no value.
        """
        held = self.held()
        if held is None and self.mirror is None:
            raise KeyError(variable)
        if held is not None:
            return held
        return (placement.put(jnp.asarray(np.asarray(self.mirror).astype(variable.dtype)), variable.graph.home),)

    def form(self) -> Any:
        """Returns the tree of the leaves."""
        block = self.block
        if block is None or block.groups is None or self.place is None:
            return self.structure
        return block.structures[self.place]

    def put(self, leaves: Leaves | None, structure: Any) -> None:
        """Sets the value; None frees it."""
        if self.block is not None:
            self.block.dissolve()
        self.leaves, self.structure = leaves, structure

    def count(self, variable: Variable, gain: int | None) -> None:
        """Advances the host's copy by `gain`; drops it if the gain is unknown."""
        if gain is None or self.mirror is None:
            self.mirror = None
            return
        mirror = self.mirror + gain
        self.mirror = mirror if _LEAST <= mirror <= _MOST else int(np.asarray(mirror).astype(variable.dtype))


class Block:
    """The values that a program has written, in the form in which its next run takes them.

    As long as nothing else writes one of these variables, a run moves no value. Programs that write the same variables
    share one block. `hosted` are the slots of variables that the program leaves to the host to count.

    Attributes:
        groups: The values; None if they are in the slots.
        structures: The tree structure of each variable.
    """

    __slots__ = ("__weakref__", "_hosted", "_slots", "groups", "structures")

    def __init__(self, slots: Sequence[Slot], hosted: Sequence[Slot]) -> None:
        self._slots, self._hosted = slots, hosted
        self.groups: tuple[Flat, Flat, Flat] | None = None
        self.structures: Sequence[Any] = ()

    def leaves(self, place: int) -> Leaves:
        """Returns the leaves at an index."""
        assert self.groups is not None
        for group in self.groups[:2]:
            if place < len(group):
                return group[place]
            place -= len(group)
        return self.groups[2][place]

    # `groups` says where the values are. It changes last: a Ctrl-C before that changes nothing.

    def take_over(self, groups: tuple[Flat, Flat, Flat], structures: Sequence[Any]) -> None:
        """Makes this the block of its variables, and dissolves their other blocks."""
        for place, slot in [*enumerate(self._slots), *((None, slot) for slot in self._hosted)]:
            if slot.block is not None:
                slot.block.dissolve()
            slot.block, slot.place = self, place
        self.structures = structures
        self.groups = groups
        for slot in (*self._slots, *self._hosted):
            slot.leaves = None

    def dissolve(self) -> None:
        """Puts each value into its slot."""
        if self.groups is not None:
            for slot, leaves, form in zip(self._slots, itertools.chain(*self.groups), self.structures, strict=True):
                slot.leaves, slot.structure = leaves, form
            for slot in self._hosted:
                slot.leaves = None
            self.groups = None
