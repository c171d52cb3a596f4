"""Variables in this process: the places of their values, each alone in a slot or together in the block of a program."""

# The methods are documented in `VariableStore`.
# ruff: noqa: D102

from __future__ import annotations

import collections
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import clock
from hookline.errors import FailedPreconditionError
from hookline.graph import placement
from hookline.graph.global_step import get_global_step
from hookline.graph.graph import Graph
from hookline.graph.nodes import spec as specs
from hookline.graph.variable import Variable, check_value, is_counter
from hookline.session.store import Leaves, VariableStore

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

    Example:
        A step writes `w` and `b`, and leaves the global step to the host. Each line is the state after a run.

        - The initializer has run: `w` = 1, `b` = 2 are in their slots, the step's mirror is 0. The block is empty.
        - The step takes 1 and 2 from the slots, and gives 3 and 4. The block takes over: groups = ((3, 4), (), ()),
          the slots point to it (places 0 and 1) and hold nothing, the mirror is 1.
        - The step takes `groups` as they are, and gives ((5, 6), (), ()): one assignment. The mirror is 2.
        - `w.assign(9)` has a block of its own, of `w` alone, which takes over: first the block of the step dissolves,
          so that `b` = 6 is in its slot, and then `w` = 9 is in the new one.
        - The step finds its block empty, and gathers 9 and 6 again.

        In each line every value is in one place, and donated with it: no array has two owners.

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


@jax.jit
def _copied(leaves: Any) -> Any:
    return jax.tree.map(jnp.copy, leaves)


def _own(leaf: Any, dtype: Any, place: Any) -> jax.Array:
    """Returns a copy of `leaf` on the device, or with a sharding, that shares memory with nothing else."""
    if isinstance(leaf, jax.Array):
        return placement.put(jnp.copy(leaf) if dtype is None or leaf.dtype == dtype else leaf.astype(dtype), place)
    if dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.extended):
        problem = specs.overflow(np.asarray(leaf), dtype)
        if problem:
            raise OverflowError(f"it {problem}")
    # JAX may use the memory of a NumPy array in place; only a private copy is safe.
    if place is None:
        return jnp.copy(jnp.asarray(leaf, dtype))
    return jnp.copy(placement.put(np.asarray(leaf, dtype), place))


class LocalStore(VariableStore):
    """Variables in this process, as arrays on its devices.

    `slots`, `block` and `stepped` are for programs that read and write values without moving them; the caller holds the
    session's lock.
    """

    def __init__(self, graph: Graph, lock: threading.RLock | None = None) -> None:
        self._graph = graph
        self._lock = lock or threading.RLock()
        self.step_changes = 0
        self._slots = collections.defaultdict[Variable, Slot](Slot)
        self._blocks: weakref.WeakValueDictionary[Any, Block] = weakref.WeakValueDictionary()
        self._global_step: Variable | None = None
        self._step_slot: Slot | None = None
        self._changed = threading.Condition()
        self._waiting = 0

    @property
    def here(self) -> LocalStore:
        return self

    @property
    def home(self) -> jax.sharding.Sharding | None:
        return self._graph.home

    @property
    def context(self) -> jax.sharding.Sharding | None:
        return self._graph.context

    def take(self, variables: Iterable[Variable]) -> tuple[Leaves, ...]:
        slots = self._slots
        try:
            return tuple([self._in_place(variable, slots[variable]) for variable in variables])
        except KeyError as error:
            variable: Variable = error.args[0]
            raise FailedPreconditionError(
                variable.op.node_def,
                variable.op,
                f"Variable {variable.op.name!r} has no value yet: run its initializer (global_variables_initializer), "
                f"restore a checkpoint, or use a MonitoredSession, which does either.",
            ) from None

    def _in_place(self, variable: Variable, slot: Slot) -> Leaves:
        """Returns the leaves of a variable. Leaves with another sharding than the variable's are moved first."""
        leaves, places = slot.values(variable), variable.places
        if not places or all(map(placement.is_at, leaves, places)):
            return leaves
        form = slot.form()
        leaves = tuple(map(placement.put, leaves, places))
        slot.put(leaves, form)
        return leaves

    def structure(self, variable: Variable) -> Any:
        return self._slots[variable].form()

    def stepped(self) -> None:
        """Records a write of the global step."""
        self.step_changes += 1
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def slots(self, variables: Iterable[Variable]) -> list[Slot]:
        """Returns the slots of variables."""
        return [self._slots[variable] for variable in variables]

    def block(self, *groups: Sequence[Variable]) -> Block:
        """Returns the block of the variables that a program writes, by group, and last those that the host counts."""
        key = tuple(map(tuple, groups))
        found = self._blocks.get(key)
        if found is None:
            *written, hosted = groups
            slots = self.slots(itertools.chain(*written))
            found = self._blocks[key] = Block(slots, self.slots(hosted))
        return found

    def counter(self, variable: Variable) -> int:
        slot = self._slots.get(variable)
        if slot is not None and (mirror := slot.mirror) is not None:
            return mirror
        # The next run may donate the value's memory.
        with self._lock:
            (leaves,) = self.take([variable])
            value = self._slots[variable].mirror = int(np.asarray(leaves[0]))
            return value

    def step(self) -> int:
        if self._global_step is None:
            self._global_step = get_global_step(self._graph)
        if self._global_step is None:
            raise RuntimeError("The graph has no global step: call hookline.train.get_or_create_global_step() first.")
        return self.counter(self._global_step)

    def known_step(self) -> int | None:
        if self._step_slot is None and self._global_step is not None:
            self._step_slot = self._slots.get(self._global_step)
        return None if self._step_slot is None else self._step_slot.mirror

    def wait_for_step(self, step: int, timeout_secs: float | None) -> int:
        deadline = None if timeout_secs is None else clock.monotonic() + timeout_secs
        while True:
            generation = self.step_changes
            if (now := self.step()) >= step:
                return now
            left = None if deadline is None else deadline - clock.monotonic()
            with self._changed:
                self._waiting += 1
                try:
                    moved = clock.wait_for(self._changed, lambda seen=generation: self.step_changes != seen, left)
                finally:
                    self._waiting -= 1
            if not moved:
                return self.step()

    def values(self, variables: Iterable[Variable]) -> dict[str, Any]:
        variables = list(variables)
        return self._named(variables, self.take(variables))

    def snapshot(self, variables: Iterable[Variable]) -> dict[str, Any]:
        variables = list(variables)
        return self._named(variables, _copied(self.take(variables)))

    def _named(self, variables: Sequence[Variable], values: Iterable[Leaves]) -> dict[str, Any]:
        return {
            variable.op.name: jax.tree.unflatten(self.structure(variable), leaves)
            for variable, leaves in zip(variables, values, strict=True)
        }

    def load(self, values: Mapping[Variable, Any], *, owned: bool = False) -> None:
        values = {
            variable: np.asarray(value) if specs.is_array(variable.spec) and isinstance(value, list | tuple) else value
            for variable, value in values.items()
        }
        for variable, value in values.items():
            if variable.spec is not specs.UNKNOWN:
                check_value(variable.op.name, variable.spec, value)
        # All are converted before the first is set.
        converted = [(variable, *self._converted(variable, value, owned)) for variable, value in values.items()]
        counts = {variable: int(np.asarray(leaves[0])) for variable, leaves, _ in converted if is_counter(variable)}
        for variable, leaves, structure in converted:
            slot = self._slots[variable]
            slot.put(leaves, structure)
            slot.mirror = counts.get(variable)
            if variable is self._global_step:
                self.stepped()

    def _converted(self, variable: Variable, value: Any, owned: bool) -> tuple[Leaves, Any]:
        leaves, structure = jax.tree.flatten(value)
        dtypes: list[Any] = [None] * len(leaves)
        if variable.spec is not specs.UNKNOWN:
            dtypes = [leaf.dtype for leaf in jax.tree.leaves(variable.spec)]
        places: Sequence[Any] = variable.places or [None] * len(leaves)
        try:
            kept = tuple(
                placement.put(leaf, place)
                if owned and isinstance(leaf, jax.Array) and leaf.dtype == dtype
                else _own(leaf, dtype, place)
                for leaf, dtype, place in zip(leaves, dtypes, places, strict=True)
            )
        except (OverflowError, TypeError) as error:
            raise ValueError(f"Variable {variable.op.name!r} cannot hold the value to load: {error}") from None
        return kept, structure

    def forget(self, variables: Iterable[Variable]) -> bool:
        for slot in self.slots(variables):
            slot.put(None, None)
            slot.mirror = None
        return True

    def uninitialized(self, variables: Iterable[Variable]) -> list[str]:
        return [variable.op.name for variable in variables if not self._has_value(self._slots.get(variable))]

    @staticmethod
    def _has_value(slot: Slot | None) -> bool:
        return slot is not None and (slot.held() is not None or slot.mirror is not None)

    def destroyed(self) -> bool:
        return any(leaf.is_deleted() for slot in self._slots.values() for leaf in slot.held() or ())

    def broken(self) -> BaseException | None:
        for slot in list(self._slots.values()):
            try:
                jax.block_until_ready(slot.held())
            except Exception as error:
                return error
        return None

    def close(self) -> None:
        # A step of the session that is still referenced keeps no values alive.
        for block in list(self._blocks.values()):
            block.groups = None
        for slot in self._slots.values():
            slot.block = slot.leaves = None
