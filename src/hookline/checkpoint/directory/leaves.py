"""Conversion and comparison of variables, which hold pytrees, and a checkpoint's flat tree of named arrays."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import errors
from hookline.checkpoint.directory.manifest import Entry, Leaf
from hookline.errors import InvalidArgumentError
from hookline.graph.nodes.spec import UNKNOWN
from hookline.log import escape_line
from hookline.paths import flatten_with_paths

_IN_MANIFEST = {bool: "bool", int: "int", float: "float", str: "str"}
_SUPPORTED = "arrays (JAX or NumPy), typed PRNG keys, NumPy numbers, bool, int, float, str and bytes"
ADVICE = (
    "Restore with the graph that saved it, or choose with Saver(var_list=...): a list of the variables to restore, or "
    "a dict from the names in the checkpoint to variables."
)
MISSING, UNEXPECTED = "  missing in the checkpoint: ", "  only in the checkpoint: "
"""The beginnings of the error's lines about missing variables and leaves, and about unexpected ones."""
_TWICE = (
    "Was the graph built twice, as by a notebook's cell that is run again, so that '{0}' is a second one? Call "
    "hookline.reset_default_graph() first, or build it in `with hookline.Graph().as_default():`."
)


@dataclasses.dataclass(frozen=True)
class Match:
    """The parts to rebuild one variable: its leaves in the checkpoint, in the order of its structure."""

    leaves: tuple[Leaf, ...]
    structure: Any


def pack(values: Mapping[str, Any]) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Splits variables into the manifest's entries and the arrays to store, which have leaf names as keys.

    Raises:
        InvalidArgumentError: A leaf has a type that cannot be stored.
    """
    entries: dict[str, Entry] = {}
    stored: dict[str, Any] = {}
    taken: set[str] = set()
    for variable, value in values.items():
        pairs, structure = flatten_with_paths(value)
        described = []
        for path, leaf in pairs:
            name = _unique(f"{variable}/{path}" if path else variable, taken)
            described.append(_describe(path, name, leaf))
            array = _array_to_store(described[-1], leaf)
            if array is not None:
                stored[name] = array
        entries[variable] = Entry(tuple(described), _serialized(structure))
    return entries, stored


def _unique(name: str, taken: set[str]) -> str:
    # There may be a variable "a" with a leaf "b", and a variable "a/b".
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    taken.add(candidate)
    return candidate


def _describe(path: str, name: str, leaf: Any) -> Leaf:
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return Leaf(path, name, "key", leaf.shape, str(leaf.dtype), str(jax.random.key_impl(leaf)))
        return Leaf(path, name, "array", leaf.shape, str(leaf.dtype))
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm":
        return Leaf(path, name, "numpy" if isinstance(leaf, np.ndarray) else "scalar", leaf.shape, leaf.dtype.name)
    if type(leaf) in _IN_MANIFEST:
        kind = _IN_MANIFEST[type(leaf)]
        return Leaf(path, name, kind, dtype=kind, value=leaf)
    if isinstance(leaf, bytes):
        return Leaf(path, name, "bytes", (len(leaf),), "bytes")
    described = getattr(leaf, "dtype", None) or type(leaf).__name__
    raise InvalidArgumentError.from_message(
        f"Saver cannot store {name!r}, which is a {described}. It stores {_SUPPORTED}."
    )


def _array_to_store(leaf: Leaf, value: Any) -> Any:
    if leaf.kind in _IN_MANIFEST.values() or 0 in leaf.shape:
        return None  # Orbax refuses arrays without elements; the manifest describes them completely.
    if leaf.kind == "key":
        return jax.random.key_data(value)
    if leaf.kind == "bytes":
        return np.frombuffer(value, np.uint8)
    return np.asarray(value) if leaf.kind == "scalar" else value


def _serialized(structure: Any) -> str | None:
    try:
        return base64.b64encode(structure.serialize_using_proto()).decode()
    except ValueError:
        return None  # A custom node: only the graph's own variable has its structure.


def abstract(leaf: Leaf, sharding: Any) -> Any | None:
    """Returns the request to read a leaf: an abstract array, `np.ndarray`, or None if nothing is stored.

    Without a sharding it is `np.ndarray` for an array as well.
    """
    if leaf.kind in _IN_MANIFEST.values() or 0 in leaf.shape:
        return None
    if sharding is None or leaf.kind not in ("array", "key"):
        return np.ndarray
    shape, dtype = _key_data(leaf) if leaf.kind == "key" else (leaf.shape, jnp.dtype(leaf.dtype))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def fits_sharding(leaf: Leaf, sharding: Any) -> bool:
    """Returns whether an array of the leaf's shape can have that sharding; a value to be reshaped may not."""
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError:
        return False
    return True


def _key_data(leaf: Leaf) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of the data of a leaf with random keys."""
    one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=leaf.value)))
    return (*leaf.shape, *one.shape), one.dtype


def to_device(leaf: Leaf, read: Any) -> Any:
    """Moves the value read for a leaf to a device, unless it was saved from the host's memory."""
    return jnp.asarray(read) if leaf.kind in ("array", "key") else read


def unpack(leaf: Leaf, stored: Any) -> Any:
    """Returns the leaf as it was saved; `stored` is the result of `to_device`, or None if nothing is stored."""
    if leaf.kind in _IN_MANIFEST.values():
        return leaf.value
    if leaf.kind == "bytes":
        return b"" if stored is None else stored.tobytes()
    if leaf.kind == "key":
        data = jnp.zeros(*_key_data(leaf)) if stored is None else stored
        return jax.random.wrap_key_data(data, impl=leaf.value)
    if stored is None:
        make: Callable[..., Any] = jnp.zeros if leaf.kind == "array" else np.zeros
        return make(leaf.shape, jnp.dtype(leaf.dtype))
    return stored[()] if leaf.kind == "scalar" else stored


def nbytes(leaf: Leaf) -> int:
    """Returns the approximate number of bytes that reading the leaf takes."""
    if leaf.kind in ("array", "numpy", "key"):
        shape, dtype = _key_data(leaf) if leaf.kind == "key" else (leaf.shape, jnp.dtype(leaf.dtype))
        return math.prod(shape) * dtype.itemsize
    return 0 if leaf.kind != "bytes" else leaf.shape[0]


# A checkpoint and the variables of a graph.


def match_variables(
    path: str,
    variables: Mapping[str, Entry],
    wanted: Mapping[str, Any],
    *,
    reshape: bool = False,
    what: str = "the variables to restore; nothing was changed",
    where: str = "the graph",
    advice: str = ADVICE,
) -> dict[str, Match]:
    """Matches the variables of a checkpoint with those of a graph, by name and by the paths of their leaves.

    A checkpoint may hold more variables: a graph for evaluation has no optimizer. `wanted` has, by name in the
    checkpoint, the spec of the variable to restore, or `UNKNOWN`. With `reshape` another shape with as many elements
    fits too. `what`, `where` and `advice` are parts of the error's text: what the checkpoint does not fit, where the
    other shape or dtype is, and the remedy.

    Raises:
        NotFoundError: A variable or leaf is missing in the checkpoint.
        InvalidArgumentError: Nothing is missing, but a structure, shape or dtype differs.
    """
    missing: list[str] = []
    unexpected: list[str] = []
    different: list[str] = []
    matches = {}
    for name, spec in wanted.items():
        entry = variables.get(name)
        if entry is None:
            missing.append(name)
        elif spec is UNKNOWN:
            matches[name] = Match(entry.leaves, entry.treedef)
            if matches[name].structure is None:
                different.append(
                    f"{name} is built of the user's own containers, which the graph does not know yet: run its "
                    f"initializer before restoring"
                )
        else:
            pairs, structure = flatten_with_paths(spec)
            saved = {leaf.path: leaf for leaf in entry.leaves}
            matches[name] = Match(tuple(saved[path] for path, _ in pairs if path in saved), structure)
            for leaf_path, leaf_spec in pairs:
                full, leaf = _full(name, leaf_path), saved.pop(leaf_path, None)
                if leaf is None:
                    missing.append(full)
                    continue
                if not _fits(leaf.shape, leaf_spec.shape, reshape):
                    shown = tuple(dim if isinstance(dim, int) else None for dim in leaf_spec.shape)
                    different.append(f"{full} has shape {leaf.shape} in the checkpoint, {shown} in {where}")
                if leaf.dtype != str(leaf_spec.dtype):
                    different.append(f"{full} has dtype {leaf.dtype} in the checkpoint, {leaf_spec.dtype} in {where}")
            unexpected += [_full(name, leaf_path) for leaf_path in saved]
    if not (missing or unexpected or different):
        return matches
    spare = sorted(set(variables) - set(wanted))
    lines = [f"Checkpoint '{path}' does not fit {what}."]
    lines += [escape_line(f"{MISSING}{name}") for name in missing]
    lines += [escape_line(f"{UNEXPECTED}{name}") for name in unexpected + (spare if missing else [])]
    lines += [escape_line(f"  different: {line}") for line in different]
    lines += [_TWICE.format(name) for name in missing if _is_duplicate(name, wanted)][:1]
    lines.append(advice)
    kind = errors.NotFoundError if missing else errors.InvalidArgumentError
    raise kind.from_message("\n".join(lines))


def _is_duplicate(name: str, wanted: Mapping[str, Any]) -> bool:
    """Returns whether the graph has added a number to a variable's name, because another variable has that name."""
    first, _, number = name.rpartition("_")
    return number.isdigit() and first in wanted


def reshape_like(spec: Any, value: Any) -> Any:
    """Reshapes a value to the shapes of a spec that it otherwise fits."""
    if spec is UNKNOWN:
        return value
    return jax.tree.map(lambda array, leaf: array.reshape(leaf.shape), value, spec)


def _full(name: str, leaf_path: str) -> str:
    return f"{name}/{leaf_path}" if leaf_path else name


def _fits(saved: tuple[int, ...], spec: tuple[Any, ...], reshape: bool) -> bool:
    if reshape and all(isinstance(dim, int) for dim in spec):
        return math.prod(saved) == math.prod(spec)
    return len(saved) == len(spec) and all(
        not isinstance(dim, int) or dim == length for length, dim in zip(saved, spec, strict=True)
    )
