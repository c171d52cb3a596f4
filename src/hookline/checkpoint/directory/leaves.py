"""Conversion between the pytrees in variables and the flat tree of named arrays in a checkpoint."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint.directory.manifest import Entry, Leaf
from hookline.errors import InvalidArgumentError
from hookline.paths import with_paths

_IN_MANIFEST = {bool: "bool", int: "int", float: "float", str: "str"}
_SUPPORTED = "arrays (JAX or NumPy), typed PRNG keys, NumPy numbers, bool, int, float, str and bytes"


def pack(values: Mapping[str, Any]) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Splits variables into the manifest's entries and the arrays to store, which have leaf names as keys.

    Raises:
        InvalidArgumentError: A leaf has a type that cannot be stored.
    """
    entries: dict[str, Entry] = {}
    stored: dict[str, Any] = {}
    taken: set[str] = set()
    for variable, value in values.items():
        pairs, structure = with_paths(value)
        described = []
        for path, leaf in pairs:
            name = _unique(f"{variable}/{path}" if path else variable, taken)
            described.append(_describe(path, name, leaf))
            array = _stored(described[-1], leaf)
            if array is not None:
                stored[name] = array
        entries[variable] = Entry(tuple(described), _serialized(structure))
    return entries, stored


def _unique(name: str, taken: set[str]) -> str:
    # Variable "a" with a leaf "b" and a variable "a/b" may stand side by side.
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


def _stored(leaf: Leaf, value: Any) -> Any:
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


def may_lie(leaf: Leaf, sharding: Any) -> bool:
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


def on_device(leaf: Leaf, read: Any) -> Any:
    """Returns the value read for a leaf, on a device, unless it was saved from the host's memory."""
    return jnp.asarray(read) if leaf.kind in ("array", "key") else read


def unpack(leaf: Leaf, stored: Any) -> Any:
    """Returns the leaf as it was saved; `stored` is the value of `on_device` for it, None if nothing is stored."""
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
