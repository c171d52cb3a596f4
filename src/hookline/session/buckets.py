"""Buckets: small variables that travel as one array of each dtype, because each array takes time of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hookline.graph import spec as specs
from hookline.graph.guard import counts_runs
from hookline.graph.variable import Variable, is_counter

Leaves = tuple[jax.Array, ...]
"""The arrays of one variable, or of a bucket."""

# An array of 16 KB gains a tenth, one of 32 KB loses as much: it is copied. Of more arrays at once a program, which may
# want one of them, becomes long.
_MOST_ARRAY_BYTES = 16384
_MOST_ARRAYS = 64


class Bucket:
    """Variables that programs take and return as one array of each dtype, one after the other.

    To a program and to the store it is what a variable is.

    Args:
        variables: What is in it.

    Attributes:
        variables: As above.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(variables)
        self._layout = _Layout.of([jax.tree.leaves(variable.spec) for variable in variables])

    def packed(self, values: Iterable[Leaves]) -> Leaves:
        """Returns the arrays for the values of its variables."""
        return _pack([*values], self._layout)

    def unpacked(self, arrays: Leaves) -> Sequence[Leaves]:
        """Returns the values of its variables."""
        return _unpack(arrays, self._layout)

    def given(self, arrays: Leaves) -> Iterable[tuple[Variable, Leaves]]:
        """Returns its variables and their values in a program that has been given the arrays."""
        return zip(self.variables, self._layout.split(arrays), strict=True)

    def returned(self, values: Sequence[Leaves], old: Leaves) -> Leaves:
        """Returns the arrays with which a program gives new values back.

        Args:
            values: Those of its variables.
            old: The values of one of them before the run.
        """
        # Both branches are the same. XLA fuses nothing into a branch, so it compiles each new value as it would compile
        # that alone: the same bits, and nothing is computed twice for two places in one array.
        return jax.lax.cond(jnp.ravel(old[0])[0] == 0, self._layout.join, self._layout.join, values)


class _Layout(NamedTuple):
    """Where which leaf is.

    Args:
        dtypes: Those of the arrays.
        leaves: Of each variable its leaves: in which array, the shape, and the places of the first and behind the last
            number.
    """

    dtypes: tuple[Any, ...]
    leaves: tuple[tuple[tuple[int, tuple[int, ...], int, int], ...], ...]

    @classmethod
    def of(cls, specs_by_variable: Sequence[Sequence[Any]]) -> _Layout:
        ends = dict.fromkeys((leaf.dtype for leaves in specs_by_variable for leaf in leaves), 0)
        dtypes = tuple(ends)

        def place(leaf: Any) -> tuple[int, tuple[int, ...], int, int]:
            start = ends[leaf.dtype]
            ends[leaf.dtype] += leaf.size
            return dtypes.index(leaf.dtype), leaf.shape, start, ends[leaf.dtype]

        return cls(dtypes, tuple(tuple(map(place, leaves)) for leaves in specs_by_variable))

    def join(self, values: Sequence[Leaves]) -> Leaves:
        parts: list[list[Any]] = [[] for _ in self.dtypes]
        for leaves, places in zip(values, self.leaves, strict=True):
            for leaf, (array, *_) in zip(leaves, places, strict=True):
                parts[array].append(jnp.ravel(jnp.asarray(leaf, self.dtypes[array])))
        return tuple(map(jnp.concatenate, parts))

    def split(self, arrays: Leaves) -> Sequence[Leaves]:
        def part(place: tuple[int, tuple[int, ...], int, int]) -> Any:
            array, shape, start, end = place
            return jax.lax.slice(arrays[array], (start,), (end,)).reshape(shape)

        return [tuple(map(part, places)) for places in self.leaves]


@functools.partial(jax.jit, static_argnums=1)
def _pack(values: Sequence[Leaves], layout: _Layout) -> Leaves:
    return layout.join(values)


@functools.partial(jax.jit, static_argnums=1)
def _unpack(arrays: Leaves, layout: _Layout) -> Sequence[Leaves]:
    return layout.split(arrays)


Held: TypeAlias = Variable | Bucket
"""What the store hands to a program as a whole."""


def held(holder: Held, leaves: Leaves) -> Iterable[tuple[Variable, Leaves]]:
    """Returns the variables and their values that a program was given as a whole."""
    return [(holder, leaves)] if isinstance(holder, Variable) else holder.given(leaves)


def variables_of(holders: Iterable[Held]) -> list[Variable]:
    """Returns the variables that are handed over."""
    return [v for holder in holders for v in ((holder,) if isinstance(holder, Variable) else holder.variables)]


def handed_over(variables: Iterable[Variable], buckets: Mapping[Variable, Bucket]) -> list[Held]:
    """Returns how variables are handed over: the buckets of those that are in one, and the others."""
    return [*dict.fromkeys(buckets.get(variable, variable) for variable in variables)]


def bucketed(variables: Iterable[Variable]) -> list[Bucket]:
    """Returns buckets for those of some variables for which they are worth it.

    That is on CPU with one device. On an accelerator the copies take longer than what is saved, and arrays may lie on
    several devices.
    """
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return []
    found: list[list[Variable]] = [[]]
    for variable in filter(_is_small, variables):
        if found[-1] and _count([*found[-1], variable]) > _MOST_ARRAYS:
            found.append([])
        found[-1].append(variable)
    return [Bucket(chosen) for chosen in found if _count(chosen) > 1]


def _count(variables: Sequence[Variable]) -> int:
    return sum(len(jax.tree.leaves(variable.spec)) for variable in variables)


def _is_small(variable: Variable) -> bool:
    """Whether all its arrays are, and it is no counter, of which the host keeps the value."""
    if variable.spec is specs.UNKNOWN or is_counter(variable) or counts_runs(variable):
        return False
    leaves = jax.tree.leaves(variable.spec)
    return bool(leaves) and all(map(_is_small_array, leaves))


def _is_small_array(leaf: Any) -> bool:
    if leaf.sharding is not None or not isinstance(leaf.dtype, np.dtype):  # A random key has another kind of dtype.
        return False
    return all(isinstance(d, int) for d in leaf.shape) and 0 < leaf.size * leaf.dtype.itemsize <= _MOST_ARRAY_BYTES
