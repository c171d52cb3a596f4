"""The updates of one transaction as one compiled function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from hookline import log
from hookline.distributed.updates import Input, PortableUpdate
from hookline.distributed.wire import Leaves, Structure, unpack_all
from hookline.errors import InvalidArgumentError
from hookline.graph.variable import check_value
from hookline.graph.views import take_path

logger = log.of(__name__)

Given = tuple[Leaves, Structure | None] | None
"""The value of an input: its leaves, and its structure unless it is one array; `None` if the server reads it itself."""

State = dict[str, tuple[Any, ...]]
"""The leaves of variables, by name."""


class UpdateProgram:
    """Applies a sequence of updates, compiled once.

    Args:
        updates: The updates, in the order in which they apply.
        structures: For each update, the structure of each of its inputs; `None` if the server reads the input itself.
        treedefs: The structures of the variables that have values.

    Attributes:
        taken: The variables whose old values it reads and overwrites.
        kept: The variables that it only reads.
    """

    def __init__(
        self, updates: Sequence[PortableUpdate], structures: Sequence[Sequence[Any]], treedefs: Mapping[str, Any]
    ) -> None:
        self._updates = list(updates)
        self._structures = [list(row) for row in structures]
        self.written = list(dict.fromkeys(name for update in updates for name in update.variables))
        needed = self._needed()
        self.taken = [name for name in needed if name in self.written]
        self.kept = [name for name in needed if name not in self.written]
        self._treedefs = {name: treedefs[name] for name in needed if name in treedefs}
        self.treedefs_out: list[Any] = []
        self.run = jax.jit(self._trace, donate_argnums=0)

    def _needed(self) -> list[str]:
        needed: dict[str, None] = {}
        written: set[str] = set()
        for update, row in zip(self._updates, self._structures, strict=True):
            read = [i.name for i in update.inputs if row[i.place] is None and i.kind == "variable"]
            read += () if update.overwrites else update.variables
            needed |= dict.fromkeys(name for name in read if name not in written)
            written.update(update.variables)
        return list(needed)

    def _trace(self, taken: State, kept: State, inputs: list[list[Any]]) -> list[tuple[Any, ...]]:
        # The body of a traced function runs only when JAX compiles.
        logger.info("Compiling %d updates of %s.", len(self._updates), ", ".join(self.written))
        values = {name: jax.tree.unflatten(self._treedefs[name], leaves) for name, leaves in (taken | kept).items()}
        outputs: dict[str, Any] = {}
        for update, row, given in zip(self._updates, self._structures, inputs, strict=True):
            try:
                outputs[update.name] = _apply(update, row, given, values, outputs)
            except Exception as error:
                error.add_note(f"hookline: while applying update {update.name!r} on its server")
                raise
        # No variable may share its memory with a received value or with another variable.
        seen = {id(leaf) for leaf in jax.tree.leaves((taken, kept, inputs))}

        def distinct(leaf: Any) -> Any:
            if id(leaf) in seen or not isinstance(leaf, Tracer):
                leaf = jnp.copy(leaf)
            seen.add(id(leaf))
            return leaf

        flat = [jax.tree.flatten(values[name]) for name in self.written]
        self.treedefs_out = [treedef for _, treedef in flat]
        return [tuple(distinct(leaf) for leaf in leaves) for leaves, _ in flat]


def _apply(
    update: PortableUpdate, row: list[Any], given: list[Any], values: dict[str, Any], outputs: Mapping[str, Any]
) -> Any:
    """Writes an update's new values into `values` and returns them in the update's structure."""

    def resolve(leaf: Any) -> Any:
        if not isinstance(leaf, Input):
            return leaf
        if row[leaf.place] is not None:
            value = jax.tree.unflatten(row[leaf.place], given[leaf.place])
        else:
            value = take_path(_read(update, leaf, values, outputs), leaf.path)
        # Its own containers, because a function may change its arguments.
        return jax.tree.map(lambda part: part, value)

    args = jax.tree.map(resolve, update.args, is_leaf=lambda leaf: isinstance(leaf, Input))
    olds = [None if update.overwrites else jax.tree.map(lambda part: part, values[v]) for v in update.variables]
    news = update.fn(jax.tree.unflatten(update.structure.treedef, olds), *args)
    kept = [
        _as_held(name, spec, new)
        for name, spec, new in zip(
            update.variables, update.specs, update.structure.treedef.flatten_up_to(news), strict=True
        )
    ]
    values.update(zip(update.variables, kept, strict=True))
    return jax.tree.unflatten(update.structure.treedef, kept)


def _read(update: PortableUpdate, source: Input, values: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    known = {"variable": values, "update": outputs}.get(source.kind, {})
    if source.name not in known:
        raise InvalidArgumentError(
            None,
            None,
            f"Update {update.name!r} needs the {source.kind} {source.name!r}, which neither came with it nor lives on "
            f"its server: give both variables to one update, or place them on one server.",
        )
    return known[source.name]


def _as_held(name: str, spec: Any, value: Any) -> Any:
    """Returns a new value with the variable's dtypes."""

    def cast(leaf: Any, dtype: Any) -> Any:
        return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(leaf, dtype)

    if spec is None:
        return jax.tree.map(lambda leaf: cast(leaf, jax.dtypes.result_type(leaf)), value)
    check_value(name, spec, value)
    return jax.tree.map(lambda leaf, wanted: cast(leaf, wanted.dtype), value, spec)


def unpack_inputs(given: Sequence[Given]) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns the leaves of an update's inputs, and their structures (`None`: the server reads it)."""
    leaves: list[Any] = []
    structures: list[Any] = []
    for item in given:
        leaves.append(() if item is None else unpack_all(item[0]))
        structures.append(None if item is None else _LEAF if item[1] is None else item[1].treedef)
    return leaves, tuple(structures)


_LEAF = jax.tree.structure(0)
