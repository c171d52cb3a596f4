"""Buckets: small variables that travel as one array of each dtype, because each array takes time of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import spec as specs
from hookline.graph.guard import counts_runs
from hookline.graph.variable import Variable, is_counter

Leaves = tuple[jax.Array, ...]
"""The arrays of one variable, or of a bucket."""

# In a bucket an array of 16 KB takes a tenth less time, one of 32 KB a tenth more, because it is copied.
_MOST_BYTES = 16384
# Compiling a program takes 15 to 40 ms longer for each array in a bucket.
_MOST_ARRAYS = 32


class Bucket:
    """Variables that programs take and return as one array of each dtype, one after the other.

    Args:
        variables: What is in it.

    Attributes:
        variables: As above.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(variables)
        self._layout = _layout(variables)
        self._dtypes = tuple(dict.fromkeys(place.dtype for places in self._layout for place in places))

    def packed(self, values: Iterable[Leaves]) -> Leaves:
        """Returns the arrays for the values of its variables."""
        by_dtype: dict[Any, list[Any]] = {dtype: [] for dtype in self._dtypes}
        for leaves, places in zip(values, self._layout, strict=True):
            for leaf, place in zip(leaves, places, strict=True):
                by_dtype[place.dtype].append(leaf)
        return _joined([*by_dtype.values()], self._dtypes)

    def value(self, arrays: Leaves, variable: Variable) -> Leaves:
        """Returns the value of one variable."""
        by_dtype = self._by_dtype(arrays)
        # Each array is cut out alone: XLA compiles one program for each shape, and no long one for all.
        return tuple(_cut(by_dtype[place.dtype], place.start, place.shape) for place in self._places(variable))

    def spliced(self, arrays: Leaves, variable: Variable, leaves: Leaves) -> Leaves:
        """Returns the arrays with another value for one variable."""
        by_dtype = self._by_dtype(arrays)
        for leaf, place in zip(leaves, self._places(variable), strict=True):
            by_dtype[place.dtype] = _put_in(by_dtype[place.dtype], leaf, place.start)
        return tuple(by_dtype.values())

    @jax.named_scope("buckets")
    def given(self, arrays: Leaves) -> dict[Variable, Leaves]:
        """Returns the values of its variables in a program that has been given the arrays."""

        def parts(arrays: Leaves) -> list[Leaves]:
            by_dtype = self._by_dtype(arrays)
            return [
                tuple(jax.lax.slice(by_dtype[p.dtype], (p.start,), (p.end,)).reshape(p.shape) for p in places)
                for places in self._layout
            ]

        return dict(zip(self.variables, _in_a_branch(parts, arrays, arrays), strict=True))

    @jax.named_scope("buckets")
    def returned(self, new: Mapping[Variable, Leaves], arrays: Leaves) -> Leaves:
        """Returns the arrays with which a program gives new values back.

        Args:
            new: The values of those variables that it changes.
            arrays: What it has been given.
        """
        by_dtype = self._by_dtype(arrays)
        parts: dict[Any, list[Any]] = {dtype: [] for dtype in self._dtypes}
        ends = dict.fromkeys(self._dtypes, 0)  # How far `parts` reaches.
        for variable, places in zip(self.variables, self._layout, strict=True):
            if variable not in new:
                continue
            for leaf, place in zip(new[variable], places, strict=True):
                if ends[place.dtype] < place.start:
                    parts[place.dtype].append(by_dtype[place.dtype][ends[place.dtype] : place.start])
                parts[place.dtype].append(jnp.asarray(leaf, place.dtype))
                ends[place.dtype] = place.end
        for dtype, end in ends.items():
            if end < by_dtype[dtype].size:
                parts[dtype].append(by_dtype[dtype][end:])
        return _in_a_branch(_concatenated, [*parts.values()], arrays)

    def _by_dtype(self, arrays: Leaves) -> dict[Any, Any]:
        return dict(zip(self._dtypes, arrays, strict=True))

    def _places(self, variable: Variable) -> list[_Place]:
        return self._layout[self.variables.index(variable)]


class _Place(NamedTuple):
    """Where in the array of its dtype one array is.

    Args:
        dtype: The dtype.
        shape: Its shape.
        start: The place of its first number.
        end: The place behind its last.
    """

    dtype: Any
    shape: tuple[int, ...]
    start: int
    end: int


def _layout(variables: Iterable[Variable]) -> list[list[_Place]]:
    ends: dict[Any, int] = {}

    def place(leaf: Any) -> _Place:
        start = ends.get(leaf.dtype, 0)
        ends[leaf.dtype] = start + leaf.size
        return _Place(leaf.dtype, leaf.shape, start, ends[leaf.dtype])

    return [[*map(place, jax.tree.leaves(variable.spec))] for variable in variables]


def _in_a_branch(function: Callable[[Any], Any], values: Any, arrays: Leaves) -> Any:
    """Returns `function(values)`, which XLA fuses with nothing before it or behind it.

    It compiles the rest as it would for arrays that travel alone: with the same bits, in the same time. Without this it
    reads a part of an array more slowly than a whole one and sums it up in another order, and computes some new values
    twice, for two places in an array.
    """
    return jax.lax.cond(arrays[0][0] == 0, function, function, values)  # Either branch is right.


def _concatenated(parts: Sequence[Sequence[Any]]) -> Leaves:
    return tuple(jnp.concatenate([*map(jnp.ravel, of_dtype)]) for of_dtype in parts)


@functools.partial(jax.jit, static_argnums=1)
def _joined(parts: Sequence[Sequence[Any]], dtypes: tuple[Any, ...]) -> Leaves:
    return tuple(map(jnp.asarray, _concatenated(parts), dtypes))


@functools.partial(jax.jit, static_argnums=2)
def _cut(array: jax.Array, start: int, shape: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_slice(array, (start,), (int(np.prod(shape)),)).reshape(shape)


@jax.jit
def _put_in(array: jax.Array, leaf: jax.Array, start: int) -> jax.Array:
    return jax.lax.dynamic_update_slice(array, jnp.ravel(leaf), (start,))


Carrier: TypeAlias = Variable | Bucket
"""What the store hands to a program as a whole."""


def variables_of(carriers: Iterable[Carrier]) -> list[Variable]:
    """Returns the variables that travel with these."""
    return [v for carrier in carriers for v in ((carrier,) if isinstance(carrier, Variable) else carrier.variables)]


def carriers_of(variables: Iterable[Variable], buckets: Mapping[Variable, Bucket]) -> list[Carrier]:
    """Returns with what variables travel: the buckets of those that are in one, and the others."""
    return [*dict.fromkeys(buckets.get(variable, variable) for variable in variables)]


def bucket_for(variables: Iterable[Variable]) -> Bucket | None:
    """Returns a bucket for those of some variables that are small; None if that is not worth it.

    It is on CPU with one device. On an accelerator a copy is a kernel of its own and a branch waits for its condition,
    and arrays may lie on several devices.
    """
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return None
    chosen, count = [], 0
    for variable in filter(_is_small, variables):
        arrays = len(jax.tree.leaves(variable.spec))
        if count + arrays <= _MOST_ARRAYS:
            chosen.append(variable)
            count += arrays
    return Bucket(chosen) if count > 1 else None


def _is_small(variable: Variable) -> bool:
    """Whether its arrays are small, and it is no counter, of which the host keeps the value."""
    if variable.spec is specs.UNKNOWN or is_counter(variable) or counts_runs(variable):
        return False
    leaves = jax.tree.leaves(variable.spec)
    return bool(leaves) and all(map(_is_small_array, leaves))


def _is_small_array(leaf: Any) -> bool:
    if leaf.sharding is not None or not isinstance(leaf.dtype, np.dtype):  # A random key has another kind of dtype.
        return False
    return all(isinstance(d, int) for d in leaf.shape) and 0 < leaf.size * leaf.dtype.itemsize <= _MOST_BYTES
