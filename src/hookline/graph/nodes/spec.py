"""Specs: the shapes and dtypes of a value before it is computed, including open dimensions.

A spec is a pytree of `jax.ShapeDtypeStruct` leaves, or `UNKNOWN`. An open dimension is a symbol of `jax.export`. Open
dimensions at the same index share one symbol. So a batch of images and its batch of labels have the same unknown
length, as in practice, and `jax.eval_shape` can reason about both. The symbol never binds: feeds are checked against
the declared shape alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np


class _Unknown:
    """The spec of a value about which nothing is known."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
_SCOPE: list[Any] = []


def symbol(name: str) -> Any:
    """Returns the symbol of this name."""
    if not _SCOPE:
        _SCOPE.append(jax.export.SymbolicScope())
    return jax.export.symbolic_shape(name, scope=_SCOPE[0])[0]


def array_spec(dtype: Any, shape: Sequence[int | None]) -> jax.ShapeDtypeStruct:
    """Returns the spec of an array with this dtype and shape; `None` stands for an open dimension.

    Raises:
        TypeError: `dtype` is not a dtype, or the shape is not a sequence of integers and `None`.
        ValueError: A dimension is negative.
    """
    shape = shape.tolist() if isinstance(shape, np.ndarray) else shape
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"A shape is a sequence of integers and None, such as [None, 3], got {shape!r}.")
    for dim in shape:
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int | np.integer)):
            raise TypeError(f"A shape is a sequence of integers and None, got {dim!r} in {shape!r}.")
        if dim is not None and dim < 0:
            raise ValueError(f"A dimension is never negative, got {shape!r}; write None for one that is open.")
    dims = tuple(symbol(f"d{i}") if dim is None else int(dim) for i, dim in enumerate(shape))
    return jax.ShapeDtypeStruct(dims, canonical_dtype(dtype))


def canonical_dtype(dtype: Any) -> Any:
    """Returns the dtype that JAX uses for `dtype`: 64 bits become 32 unless `jax_enable_x64` is set."""
    try:
        # The given dtype is canonicalised on purpose, without JAX's warning about it.
        return jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    except (TypeError, ValueError):
        raise TypeError(f"{dtype!r} is not a dtype: use one such as 'float32', numpy.int32 or jnp.bfloat16.") from None


def of_value(value: Any) -> Any:
    """Returns the spec of a concrete pytree of arrays and numbers."""
    return jax.eval_shape(lambda x: x, value)


def placed_sharding(leaf: Any) -> Any | None:
    """Returns the sharding of an array on a mesh, or away from JAX's default device; else `None`."""
    if not getattr(leaf, "committed", False):
        return None
    is_on_mesh = isinstance(leaf.sharding, jax.NamedSharding)
    return leaf.sharding if is_on_mesh or leaf.devices() != jnp.zeros(()).devices() else None


def is_array(spec: Any) -> bool:
    """Returns whether `spec` describes one array, not a larger structure or nothing at all."""
    return isinstance(spec, jax.ShapeDtypeStruct)


def open_shape(spec: Any) -> tuple[int | None, ...] | None:
    """Returns the shape with `None` for open dimensions, or `None` if `spec` is not one array."""
    if not is_array(spec):
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in spec.shape)


def describe(spec: Any) -> str:
    """Describes a spec in short: `float32[?,3]`, a larger structure with such leaves, or `unknown`."""
    if spec is UNKNOWN:
        return "unknown"

    def leaf(array: Any) -> str:
        dims = ",".join("?" if dim is None else str(dim) for dim in open_shape(array) or ())
        return f"{array.dtype}[{dims}]"

    return leaf(spec) if is_array(spec) else f"{jax.tree.map(leaf, spec)}".replace("'", "")


def has_open_dims(spec: Any) -> bool:
    """Returns whether a spec has open dimensions."""
    return any(not isinstance(dim, int) for leaf in jax.tree.leaves(spec) for dim in getattr(leaf, "shape", ()))


def infer(call: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """Returns the spec of `call(*values)` for values of the given specs.

    Nothing is computed. If `call` raises on fully known shapes, the error is the caller's and passes through, at the
    line that built the op. With open dimensions it may only mean that JAX cannot reason about the symbol
    (`int(x.shape[0])`, two lengths that happen to agree): the spec is then `UNKNOWN`, and the first run decides.
    """
    if any(spec is UNKNOWN for spec in specs):
        return UNKNOWN
    try:
        return jax.eval_shape(call, *specs)
    except Exception:
        if any(has_open_dims(spec) for spec in specs):
            return UNKNOWN
        raise


def is_compatible_shape(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Returns whether `wanted` allows `shape`."""
    return len(shape) == len(wanted) and all(w is None or w == s for w, s in zip(wanted, shape, strict=True))


def describe_mismatch(declared_spec: Any, shape: tuple[int, ...], dtype: Any) -> str | None:
    """Describes how an array of `shape` and `dtype` contradicts the declared spec; `None` if it does not."""
    wanted = open_shape(declared_spec)
    assert wanted is not None
    if not is_compatible_shape(shape, wanted):
        return f"has shape {shape}, but {wanted} is required (None: any length)"
    if not same_kind(dtype, declared_spec.dtype):
        return f"has dtype {dtype}, which cannot be cast to {declared_spec.dtype} without changing its kind"
    return None


def describe_overflow(value: np.ndarray, dtype: Any) -> str | None:
    """Describes the numbers of `value` that do not fit into `dtype`, which is of the same kind; `None` if all fit.

    Integers would wrap, and finite floating point numbers would become infinite. The values are read only if the dtypes
    do not decide it.
    """
    given, wanted = _dtype_range(value.dtype), _dtype_range(dtype)
    if not value.size or given is None or wanted is None or (wanted[0] <= given[0] and given[1] <= wanted[1]):
        return None
    low, high = value.min(), value.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        finite = value[np.isfinite(value)]
        low, high = finite.min(initial=0), finite.max(initial=0)
    if wanted[0] <= low and high <= wanted[1]:
        return None
    if jnp.issubdtype(dtype, jnp.integer):
        held = low if low == high else f"integers from {low} to {high}"
        return f"holds {held}, but {dtype} holds only {wanted[0]} to {wanted[1]}"
    beyond = high if high > wanted[1] else low
    return f"holds {beyond:g}, which {dtype} cannot hold (its largest is {wanted[1]:g})"


@functools.cache
def _dtype_range(dtype: Any) -> tuple[float, float] | None:
    """Returns the smallest and the largest number of a dtype; `None` if it holds no numbers, or complex ones."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    if jnp.issubdtype(dtype, jnp.floating):
        return float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)
    return None


def same_kind(given: Any, wanted: Any) -> bool:
    """Returns whether `given` casts to `wanted` within its kind or to a later one: integers, floats, complex.

    Within a kind every width is fine (float64 to float32); integers may become floats, floats never integers.
    """
    if given == wanted:
        return True
    if jnp.issubdtype(given, jax.dtypes.extended) or jnp.issubdtype(wanted, jax.dtypes.extended):
        return False
    ranks = (np.bool_, np.integer, np.floating, np.complexfloating)

    def rank(dtype: Any) -> int:
        return next((i for i, kind in enumerate(ranks) if jnp.issubdtype(dtype, kind)), -1)

    given_rank, wanted_rank = rank(given), rank(wanted)
    return 0 < given_rank <= wanted_rank or given_rank == wanted_rank == 0
