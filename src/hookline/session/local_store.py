"""Variables in this process: the buffers of their values, each alone or bundled as a program's results."""

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

FlatValues = Sequence[Leaves]

# Every counter holds these: it has 32 bits or 64.
_LEAST, _MOST = -(2**31), 2**31 - 1


class VariableBuffer:
    """The value of one variable: its leaves, and for an integer scalar the host's copy of its value.

    Attributes:
        leaves: The leaves; None if they are in the bundle, or if only the host has counted.
        structure: Their tree structure, unless it is in the bundle, too.
        host_value: The host's copy; None if only the device knows the value.
        bundle: The bundle that the value is in, as long as the bundle has any values.
        index: Its index there; None for a counter that only the host counts.
    """

    __slots__ = ("bundle", "host_value", "index", "leaves", "structure")

    def __init__(self) -> None:
        self.leaves: Leaves | None = None
        self.structure: Any = None
        self.host_value: int | None = None
        self.bundle: BufferBundle | None = None
        self.index: int | None = None

    def device_leaves(self) -> Leaves | None:
        """Returns the leaves; None if only the host has counted."""
        bundle = self.bundle
        if bundle is not None and bundle.groups is not None:
            return None if self.index is None else bundle.leaves_at(self.index)
        return self.leaves

    def materialize(self, variable: Variable) -> Leaves:
        """Returns the leaves, made from the host's count if only the host has counted.

        Raises:
            KeyError: The variable has no value.
        """
        leaves = self.device_leaves()
        if leaves is None and self.host_value is None:
            raise KeyError(variable)
        if leaves is not None:
            return leaves
        return (
            placement.device_put(
                jnp.asarray(np.asarray(self.host_value).astype(variable.dtype)), variable.graph.default_sharding
            ),
        )

    def treedef(self) -> Any:
        """Returns the tree structure of the leaves."""
        bundle = self.bundle
        if bundle is None or bundle.groups is None or self.index is None:
            return self.structure
        return bundle.structures[self.index]

    def assign(self, leaves: Leaves | None, structure: Any) -> None:
        """Sets the value; `None` frees it."""
        if self.bundle is not None:
            self.bundle.unpack()
        self.leaves, self.structure = leaves, structure

    def advance(self, variable: Variable, step_delta: int | None) -> None:
        """Advances the host's copy by `step_delta`; `None` if that is unknown, which drops the copy."""
        if step_delta is None or self.host_value is None:
            self.host_value = None
            return
        value = self.host_value + step_delta
        self.host_value = value if _LEAST <= value <= _MOST else int(np.asarray(value).astype(variable.dtype))


class BufferBundle:
    """The values that a program has written, grouped as its next run takes them.

    As long as nothing else writes one of these variables, a run copies no value between buffers. Programs that write
    the same variables share one bundle.

    Args:
        buffers: The buffers of the variables that the program writes.
        host_counters: The buffers of the counters that the program leaves to the host.

    Example:
        A step writes `w` and `b`, and leaves the global step to the host. Each line is the state after a run.

        - The initializer has run: `w` = 1, `b` = 2 are in their buffers, the host value of the step is 0. The bundle is
          empty.
        - The step takes 1 and 2 from the buffers, and returns 3 and 4. The bundle is bound to its buffers: groups =
          ((3, 4), (), ()); the buffers refer to it (indices 0 and 1) and hold nothing; the host value is 1.
        - The step takes `groups` unchanged, and returns ((5, 6), (), ()): one assignment. The host value is 2.
        - `w.assign(9)` has a bundle of its own, of `w` alone. Before it is bound, the bundle of the step is unpacked,
          so that `b` = 6 is in its buffer; then `w` = 9 is in the new bundle.
        - The step finds its bundle empty, and gathers 9 and 6 again.

        In each line every value is held once, and donated from there: no array has two owners.

    Attributes:
        groups: The values; None if they are in the buffers.
        structures: The tree structure of each variable.
    """

    __slots__ = ("__weakref__", "_buffers", "_host_counters", "groups", "structures")

    def __init__(self, buffers: Sequence[VariableBuffer], host_counters: Sequence[VariableBuffer]) -> None:
        self._buffers, self._host_counters = buffers, host_counters
        self.groups: tuple[FlatValues, FlatValues, FlatValues] | None = None
        self.structures: Sequence[Any] = ()

    def leaves_at(self, index: int) -> Leaves:
        """Returns the leaves at an index."""
        assert self.groups is not None
        for group in self.groups[:2]:
            if index < len(group):
                return group[index]
            index -= len(group)
        return self.groups[2][index]

    # `groups` decides where the values are. It changes last: a Ctrl-C before that changes nothing.

    def bind(self, groups: tuple[FlatValues, FlatValues, FlatValues], structures: Sequence[Any]) -> None:
        """Makes this the bundle of its buffers, and unpacks their other bundles."""
        for index, buffer in [*enumerate(self._buffers), *((None, buffer) for buffer in self._host_counters)]:
            if buffer.bundle is not None:
                buffer.bundle.unpack()
            buffer.bundle, buffer.index = self, index
        self.structures = structures
        self.groups = groups
        for buffer in (*self._buffers, *self._host_counters):
            buffer.leaves = None

    def unpack(self) -> None:
        """Moves each value into its buffer."""
        if self.groups is not None:
            for buffer, leaves, tree in zip(self._buffers, itertools.chain(*self.groups), self.structures, strict=True):
                buffer.leaves, buffer.structure = leaves, tree
            for buffer in self._host_counters:
                buffer.leaves = None
            self.groups = None


@jax.jit
def _copy_leaves(leaves: Any) -> Any:
    return jax.tree.map(jnp.copy, leaves)


def _owned_copy(leaf: Any, dtype: Any, sharding: Any) -> jax.Array:
    """Returns a copy of `leaf` on the device, or with a sharding, that shares memory with nothing else."""
    if isinstance(leaf, jax.Array):
        return placement.device_put(
            jnp.copy(leaf) if dtype is None or leaf.dtype == dtype else leaf.astype(dtype), sharding
        )
    if dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.extended):
        problem = specs.describe_overflow(np.asarray(leaf), dtype)
        if problem:
            raise OverflowError(f"it {problem}")
    # JAX may use the memory of a NumPy array in place; only a private copy is safe.
    if sharding is None:
        return jnp.copy(jnp.asarray(leaf, dtype))
    return jnp.copy(placement.device_put(np.asarray(leaf, dtype), sharding))


class LocalStore(VariableStore):
    """Variables in this process, as arrays on its devices.

    `buffers`, `bundle` and `notify_step` are for programs, which read and write values in place; the caller holds the
    session's lock.
    """

    def __init__(self, graph: Graph, lock: threading.RLock | None = None) -> None:
        self._graph = graph
        self._lock = lock or threading.RLock()
        self.step_changes = 0
        self._buffers = collections.defaultdict[Variable, VariableBuffer](VariableBuffer)
        self._bundles: weakref.WeakValueDictionary[Any, BufferBundle] = weakref.WeakValueDictionary()
        self._global_step: Variable | None = None
        self._step_buffer: VariableBuffer | None = None
        self._step_changed = threading.Condition()
        self._waiting = 0

    @property
    def local(self) -> LocalStore:
        return self

    @property
    def default_sharding(self) -> jax.sharding.Sharding | None:
        return self._graph.default_sharding

    @property
    def mesh_context(self) -> jax.sharding.Sharding | None:
        return self._graph.mesh_context

    def read_leaves(self, variables: Iterable[Variable]) -> tuple[Leaves, ...]:
        buffers = self._buffers
        try:
            return tuple([self._resharded_leaves(variable, buffers[variable]) for variable in variables])
        except KeyError as error:
            variable: Variable = error.args[0]
            raise FailedPreconditionError(
                variable.op.node_def,
                variable.op,
                f"Variable {variable.op.name!r} has no value yet: run its initializer (global_variables_initializer), "
                f"restore a checkpoint, or use a MonitoredSession, which does either.",
            ) from None

    def _resharded_leaves(self, variable: Variable, buffer: VariableBuffer) -> Leaves:
        """Returns the leaves of a variable, resharded first if their shardings differ from the variable's."""
        leaves, shardings = buffer.materialize(variable), variable.shardings
        if not shardings or all(map(placement.is_on, leaves, shardings)):
            return leaves
        structure = buffer.treedef()
        leaves = tuple(map(placement.device_put, leaves, shardings))
        buffer.assign(leaves, structure)
        return leaves

    def structure(self, variable: Variable) -> Any:
        return self._buffers[variable].treedef()

    def notify_step(self) -> None:
        """Records a write of the global step."""
        self.step_changes += 1
        if self._waiting:
            with self._step_changed:
                self._step_changed.notify_all()

    def buffers(self, variables: Iterable[Variable]) -> list[VariableBuffer]:
        """Returns the buffers of variables."""
        return [self._buffers[variable] for variable in variables]

    def bundle(self, *groups: Sequence[Variable]) -> BufferBundle:
        """Returns the bundle of the variables that a program writes, by group; the last group are host counters."""
        key = tuple(map(tuple, groups))
        found = self._bundles.get(key)
        if found is None:
            *written, host_counters = groups
            buffers = self.buffers(itertools.chain(*written))
            found = self._bundles[key] = BufferBundle(buffers, self.buffers(host_counters))
        return found

    def read_counter(self, variable: Variable) -> int:
        buffer = self._buffers.get(variable)
        if buffer is not None and (known := buffer.host_value) is not None:
            return known
        # The next run may donate the value's memory.
        with self._lock:
            (leaves,) = self.read_leaves([variable])
            value = self._buffers[variable].host_value = int(np.asarray(leaves[0]))
            return value

    def step(self) -> int:
        if self._global_step is None:
            self._global_step = get_global_step(self._graph)
        if self._global_step is None:
            raise RuntimeError("The graph has no global step: call hookline.train.get_or_create_global_step() first.")
        return self.read_counter(self._global_step)

    def known_step(self) -> int | None:
        if self._step_buffer is None and self._global_step is not None:
            self._step_buffer = self._buffers.get(self._global_step)
        return None if self._step_buffer is None else self._step_buffer.host_value

    def wait_for_step(self, step: int, timeout_secs: float | None) -> int:
        deadline = None if timeout_secs is None else clock.monotonic() + timeout_secs
        while True:
            generation = self.step_changes
            if (now := self.step()) >= step:
                return now
            left = None if deadline is None else deadline - clock.monotonic()
            with self._step_changed:
                self._waiting += 1
                try:
                    moved = clock.wait_for(self._step_changed, lambda seen=generation: self.step_changes != seen, left)
                finally:
                    self._waiting -= 1
            if not moved:
                return self.step()

    def values(self, variables: Iterable[Variable]) -> dict[str, Any]:
        variables = list(variables)
        return self._by_name(variables, self.read_leaves(variables))

    def snapshot(self, variables: Iterable[Variable]) -> dict[str, Any]:
        variables = list(variables)
        return self._by_name(variables, _copy_leaves(self.read_leaves(variables)))

    def _by_name(self, variables: Sequence[Variable], values: Iterable[Leaves]) -> dict[str, Any]:
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
        converted = [(variable, *self._convert_value(variable, value, owned)) for variable, value in values.items()]
        counts = {variable: int(np.asarray(leaves[0])) for variable, leaves, _ in converted if is_counter(variable)}
        for variable, leaves, structure in converted:
            buffer = self._buffers[variable]
            buffer.assign(leaves, structure)
            buffer.host_value = counts.get(variable)
            if variable is self._global_step:
                self.notify_step()

    def _convert_value(self, variable: Variable, value: Any, owned: bool) -> tuple[Leaves, Any]:
        leaves, structure = jax.tree.flatten(value)
        dtypes: list[Any] = [None] * len(leaves)
        if variable.spec is not specs.UNKNOWN:
            dtypes = [leaf.dtype for leaf in jax.tree.leaves(variable.spec)]
        shardings: Sequence[Any] = variable.shardings or [None] * len(leaves)
        try:
            kept = tuple(
                placement.device_put(leaf, sharding)
                if owned and isinstance(leaf, jax.Array) and leaf.dtype == dtype
                else _owned_copy(leaf, dtype, sharding)
                for leaf, dtype, sharding in zip(leaves, dtypes, shardings, strict=True)
            )
        except (OverflowError, TypeError) as error:
            raise ValueError(f"Variable {variable.op.name!r} cannot hold the value to load: {error}") from None
        return kept, structure

    def free(self, variables: Iterable[Variable]) -> bool:
        for buffer in self.buffers(variables):
            buffer.assign(None, None)
            buffer.host_value = None
        return True

    def uninitialized(self, variables: Iterable[Variable]) -> list[str]:
        return [variable.op.name for variable in variables if not self._has_value(self._buffers.get(variable))]

    @staticmethod
    def _has_value(buffer: VariableBuffer | None) -> bool:
        return buffer is not None and (buffer.device_leaves() is not None or buffer.host_value is not None)

    def has_deleted_values(self) -> bool:
        return any(leaf.is_deleted() for buffer in self._buffers.values() for leaf in buffer.device_leaves() or ())

    def await_failure(self) -> BaseException | None:
        for buffer in list(self._buffers.values()):
            try:
                jax.block_until_ready(buffer.device_leaves())
            except Exception as error:
                return error
        return None

    def close(self) -> None:
        # A step of the session that is still referenced keeps no values alive.
        for bundle in list(self._bundles.values()):
            bundle.groups = None
        for buffer in self._buffers.values():
            buffer.bundle = buffer.leaves = None
