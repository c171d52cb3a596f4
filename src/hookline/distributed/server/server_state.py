"""The values of one parameter server, and the compiled programs that update them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hookline import log
from hookline.distributed.protocol import Leaves, Structure, decode_leaves, encode_leaves
from hookline.distributed.worker.updates import Input, PortableUpdate
from hookline.errors import FailedPreconditionError, InvalidArgumentError
from hookline.graph.nodes.views import get_at_path
from hookline.graph.variable import check_value

logger = log.get_logger(__name__)

InputValue = tuple[Leaves, Structure | None] | None
"""An input: its leaves, and its tree structure (`None` for one array). Or only `None`: the server reads the input."""

State = dict[str, tuple[Any, ...]]
"""The leaves of variables, by name."""


class UpdateProgram:
    """A compiled sequence of updates.

    Args:
        updates: The updates, in the order in which they apply.
        structures: For each update, the treedefs of its inputs; `None` for an input that the server reads itself.
        treedefs: The treedefs of the variables that have values, by name.

    Attributes:
        written: The variables that it writes.
        donated: The variables that it reads and writes; their old values are donated.
        read_only: The variables that it only reads.
        treedefs_out: The treedefs of the new values of `written`. Tracing sets them, so they exist when the first `run`
            returns. Later runs have the same, because programs are cached by the treedefs of inputs and variables.
        run: Maps the leaves of `donated` and of `read_only`, both by name, and the leaves of the inputs, to the new
            leaves of `written`.
    """

    def __init__(
        self, updates: Sequence[PortableUpdate], structures: Sequence[Sequence[Any]], treedefs: Mapping[str, Any]
    ) -> None:
        self._updates = list(updates)
        self._structures = [list(row) for row in structures]
        self.written = list(dict.fromkeys(name for update in updates for name in update.variables))
        needed = self._needed()
        self.donated = [name for name in needed if name in self.written]
        self.read_only = [name for name in needed if name not in self.written]
        self._treedefs = {name: treedefs[name] for name in needed if name in treedefs}
        self.treedefs_out: list[Any] = []
        self.run = jax.jit(self._trace, donate_argnums=0)

    def _needed(self) -> list[str]:
        """Returns the variables whose values from before the program are read."""
        needed: dict[str, None] = {}
        written: set[str] = set()
        for update, treedefs in zip(self._updates, self._structures, strict=True):
            read = [i.name for i in update.inputs if treedefs[i.index] is None and i.kind == "variable"]
            read += () if update.overwrites else update.variables
            needed |= dict.fromkeys(name for name in read if name not in written)
            written.update(update.variables)
        return list(needed)

    def _trace(self, donated: State, read_only: State, inputs: list[list[Any]]) -> list[tuple[Any, ...]]:
        # This runs only when JAX traces, once per compilation.
        logger.info("Compiling %d updates of %s.", len(self._updates), ", ".join(self.written))
        values = {
            name: jax.tree.unflatten(self._treedefs[name], leaves) for name, leaves in (donated | read_only).items()
        }
        outputs: dict[str, Any] = {}
        for update, treedefs, given in zip(self._updates, self._structures, inputs, strict=True):
            try:
                outputs[update.name] = _apply(update, treedefs, given, values, outputs)
            except Exception as error:
                error.add_note(f"hookline: while applying update {update.name!r} on its server")
                raise
        # No variable may share its memory with a received value or with another variable.
        seen = {id(leaf) for leaf in jax.tree.leaves((donated, read_only, inputs))}

        def distinct(leaf: Any) -> Any:
            if id(leaf) in seen or not isinstance(leaf, Tracer):
                leaf = jnp.copy(leaf)
            seen.add(id(leaf))
            return leaf

        flat = [jax.tree.flatten(values[name]) for name in self.written]
        self.treedefs_out = [treedef for _, treedef in flat]
        return [tuple(distinct(leaf) for leaf in leaves) for leaves, _ in flat]


def _apply(
    update: PortableUpdate, treedefs: list[Any], given: list[Any], values: dict[str, Any], outputs: Mapping[str, Any]
) -> Any:
    """Writes an update's new values into `values` and returns them in the update's structure."""

    def resolve(leaf: Any) -> Any:
        if not isinstance(leaf, Input):
            return leaf
        if treedefs[leaf.index] is not None:
            value = jax.tree.unflatten(treedefs[leaf.index], given[leaf.index])
        else:
            value = get_at_path(_read(update, leaf, values, outputs), leaf.path)
        # Copies the containers, because `fn` may mutate its arguments.
        return jax.tree.map(lambda part: part, value)

    args = jax.tree.map(resolve, update.args, is_leaf=lambda leaf: isinstance(leaf, Input))
    olds = [None if update.overwrites else jax.tree.map(lambda part: part, values[v]) for v in update.variables]
    news = update.fn(jax.tree.unflatten(update.structure.treedef, olds), *args)
    new_values = [
        _cast_to_spec(name, spec, new)
        for name, spec, new in zip(
            update.variables, update.specs, update.structure.treedef.flatten_up_to(news), strict=True
        )
    ]
    values.update(zip(update.variables, new_values, strict=True))
    return jax.tree.unflatten(update.structure.treedef, new_values)


def _read(update: PortableUpdate, source: Input, values: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    known = {"variable": values, "update": outputs}.get(source.kind, {})
    if source.name not in known:
        raise InvalidArgumentError.from_message(
            f"Update {update.name!r} reads the {source.kind} {source.name!r}, which was not sent with it and is not on "
            f"its server. Assign their variables to one server (ClusterOptions.placement) or write them in one update.",
        )
    return known[source.name]


def _cast_to_spec(name: str, spec: Any, value: Any) -> Any:
    """Returns a new value with the variable's dtypes."""

    def cast(leaf: Any, dtype: Any) -> Any:
        return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(leaf, dtype)

    if spec is None:
        return jax.tree.map(lambda leaf: cast(leaf, jax.dtypes.result_type(leaf)), value)
    check_value(name, spec, value)
    return jax.tree.map(lambda leaf, wanted: cast(leaf, wanted.dtype), value, spec)


def unpack_inputs(given: Sequence[InputValue]) -> tuple[list[Any], tuple[Any, ...]]:
    """Decodes an update's inputs: their leaves, and their treedefs (`None` if the server reads the input itself)."""
    leaves: list[Any] = []
    structures: list[Any] = []
    for item in given:
        leaves.append(() if item is None else decode_leaves(item[0]))
        structures.append(None if item is None else _LEAF if item[1] is None else item[1].treedef)
    return leaves, tuple(structures)


_LEAF = jax.tree.structure(0)


@dataclass(frozen=True, slots=True)
class Put:
    """Sets a variable to a value."""

    name: str
    leaves: Leaves
    structure: Structure


@dataclass(frozen=True, slots=True)
class Apply:
    """Applies a registered update to the values of its inputs."""

    name: str
    inputs: Sequence[InputValue]


WriteOp = Put | Apply


class Prepared(NamedTuple):
    """A part of a transaction, ready to be applied."""

    puts: Sequence[Put]
    increments: Mapping[str, int]
    program: UpdateProgram | None
    inputs: Any


class ServerState:
    """Values by name, and a copy of the global step as a Python int, if this server owns it.

    Attributes:
        step: The global step; 0 without one.
        has_lost_values: Whether a program that failed has consumed old values, which were donated to it.
    """

    def __init__(self, step_name: str | None) -> None:
        self._step_name = step_name
        self._values: dict[str, tuple[Any, ...]] = {}
        self._treedefs: dict[str, Any] = {}
        self._updates: dict[str, PortableUpdate] = {}
        self._programs: dict[Any, UpdateProgram] = {}
        self._checked: set[Any] = set()
        # Guards the values: pulls that wait for a state read them in their own threads.
        self._lock = threading.RLock()
        self.step = 0
        self.has_lost_values = False

    # Reading ----------------------------------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Returns the names of the variables that have values."""
        return frozenset(self._values)

    def values(self, names: Sequence[str]) -> dict[str, Leaves]:
        """Returns encoded values.

        They may be NumPy views of the state's buffers, without a copy. An update leaves them intact, although it
        donates the state: JAX does not reuse a donated buffer that has an external reference.
        """
        with self._lock:
            return {name: encode_leaves(self._leaves_of(name)) for name in names}

    def structures(self, names: Sequence[str]) -> dict[str, Structure]:
        """Returns the tree structures of variables."""
        for name in names:
            self._leaves_of(name)
        return {name: Structure(self._treedefs[name]) for name in names}

    def _leaves_of(self, name: str) -> tuple[Any, ...]:
        if name not in self._values:
            raise FailedPreconditionError.from_message(
                f"Variable {name!r} has no value yet: the chief has to run its initializer or restore a checkpoint "
                f"(a MonitoredTrainingSession does either).",
            )
        return self._values[name]

    # Changing ---------------------------------------------------------------------------------------------------

    def register(self, updates: Sequence[PortableUpdate]) -> None:
        """Registers updates, by name."""
        self._updates.update((update.name, update) for update in updates)

    def check(self, entries: Sequence[WriteOp]) -> None:
        """Raises the errors that `apply` would raise for types and missing values, but changes nothing."""
        prepared = self.prepare(entries)
        if prepared.program is not None:
            # The key has the shapes, because a variable whose spec has open dimensions may have changed its shape.
            given = (*self._program_inputs(prepared.program), prepared.inputs)
            key = (id(prepared.program), *((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(given)))
            if key not in self._checked:
                prepared.program.run.eval_shape(*given)
                self._checked.add(key)

    def prepare(self, entries: Sequence[WriteOp]) -> Prepared:
        """Prepares entries for `apply`.

        Raises:
            FailedPreconditionError: A variable has no value, an update is unknown, or the global step would overflow.
        """
        puts = [entry for entry in entries if isinstance(entry, Put)]
        applied = [(self._update(entry.name), entry.inputs) for entry in entries if isinstance(entry, Apply)]
        increments = self._counter_increments([update for update, _ in applied], {put.name for put in puts})
        self._check_step_fits(increments)
        rest = [(update, given) for update, given in applied if update.variables[0] not in increments]
        if not rest:
            return Prepared(puts, increments, None, [])
        unpacked = [unpack_inputs(given) for _, given in rest]
        program = self._program([update for update, _ in rest], [structures for _, structures in unpacked])
        for name in (*program.donated, *program.read_only):
            self._leaves_of(name)
        return Prepared(puts, increments, program, [leaves for leaves, _ in unpacked])

    def _update(self, name: str) -> PortableUpdate:
        if name not in self._updates:
            raise FailedPreconditionError.from_message(
                f"Update {name!r} is not registered on this server: the chief has to initialise the servers first."
            )
        return self._updates[name]

    def _counter_increments(self, updates: Sequence[PortableUpdate], put: set[str]) -> dict[str, int]:
        """Returns the increments of counters that nothing else in the transaction reads or writes."""
        increments: dict[str, int] = {}
        others = set(put)
        for update in updates:
            others.update(source.name for source in update.inputs if source.kind != "value")
            if update.increment is None:
                others.update(update.variables)
        for update in updates:
            name = update.variables[0]
            if update.increment is not None and name not in others and update.name not in others:
                self._leaves_of(name)
                increments[name] = increments.get(name, 0) + update.increment
        return increments

    def _check_step_fits(self, increments: Mapping[str, int]) -> None:
        name = self._step_name
        if name is not None and name in increments:
            dtype, wanted = self._values[name][0].dtype, self.step + increments[name]
            if wanted > np.iinfo(dtype).max:
                raise FailedPreconditionError.from_message(
                    f"The global step {name!r} cannot count to {wanted}: its dtype is {dtype}. Set jax_enable_x64 in "
                    f"every process before the graph is built.",
                )

    def _program(self, updates: Sequence[PortableUpdate], structures: Sequence[Any]) -> UpdateProgram:
        key = (
            tuple(update.name for update in updates),
            tuple(structures),
            tuple(
                self._treedefs.get(n) for u in updates for n in (*u.variables, *(source.name for source in u.inputs))
            ),
        )
        if key not in self._programs:
            self._programs[key] = UpdateProgram(updates, structures, self._treedefs)
        return self._programs[key]

    def _program_inputs(self, program: UpdateProgram) -> tuple[dict[str, Any], dict[str, Any]]:
        return {n: self._values[n] for n in program.donated}, {n: self._values[n] for n in program.read_only}

    def apply(self, prepared: Prepared, last_step: int | None) -> bool:
        """Applies all changes or none.

        Returns:
            False, without any change, if it would change the global step and the step is `last_step` or more.
        """
        with self._lock:
            step_name, program = self._step_name, prepared.program
            new: dict[str, Any] = {}
            increment = prepared.increments.get(step_name, 0) if step_name is not None else 0
            computes_step = program is not None and step_name in program.written
            if last_step is not None and (increment or computes_step) and self.step >= last_step:
                return False
            step = self.step + increment
            if program is not None:
                olds = self._program_inputs(program)
                try:
                    new = dict(zip(program.written, program.run(*olds, prepared.inputs), strict=True))
                except BaseException:  # The old values were donated, but the program may not have consumed them.
                    self.has_lost_values = any(
                        leaf.is_deleted() for leaf in jax.tree.leaves(olds[0]) if isinstance(leaf, jax.Array)
                    )
                    raise
            if computes_step:
                assert step_name is not None
                step = int(np.asarray(new[step_name][0]))
            for put in prepared.puts:
                self._values[put.name] = tuple(jnp.array(leaf) for leaf in decode_leaves(put.leaves))
                self._treedefs[put.name] = put.structure.treedef
                if put.name == step_name:
                    step = int(np.asarray(self._values[put.name][0]))
            self._values.update(new)
            if program is not None:
                self._treedefs.update(zip(program.written, program.treedefs_out, strict=True))
            for name, increment in prepared.increments.items():
                (old,) = self._values[name]
                self._values[name] = (np.asarray(np.asarray(old) + np.asarray(increment, old.dtype), old.dtype),)
            self.step = step
            return True
