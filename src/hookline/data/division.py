"""The division of an array among processes that run in step: each has the part for its devices."""

from __future__ import annotations

import collections
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Index = tuple[slice, ...]
Blocks = tuple[tuple[int, ...], ...]
"""The numbers of blocks in each dimension."""


class Division:
    """The parts of arrays that processes have under a sharding.

    The devices split each dimension into blocks. The part of a process is made of its devices' blocks in ascending
    order, so all parts together are the array.

    Args:
        sharding: The sharding.
        ndim: The number of dimensions.

    Attributes:
        parts: For each process, the indices of its blocks in each dimension: equal for processes with the same part.

    Raises:
        ValueError: The parts of processes differ in form.
    """

    def __init__(self, sharding: jax.NamedSharding, ndim: int) -> None:
        names = [*sharding.spec, *[None] * (ndim - len(sharding.spec))]
        self._counts = tuple(count_of(sharding.mesh, axes) for axes in names)
        held: dict[int, set[tuple[int, ...]]] = collections.defaultdict(set)
        for device, index in sharding.devices_indices_map(self._counts).items():
            held[device.process_index].add(tuple([part.start or 0 for part in index]))
        self.parts: list[Blocks] = [
            tuple(tuple(sorted({block[dim] for block in held[process]})) for dim in range(ndim))
            for process in sorted(held)
        ]
        forms = {tuple(map(len, part)) for part in self.parts}
        whole = all(
            len(held[process]) == math.prod(map(len, part))
            for process, part in zip(sorted(held), self.parts, strict=True)
        )
        if len(forms) > 1 or not whole:
            raise ValueError(
                f"Processes that run in step require parts of one form, and under {sharding} their forms differ. Order "
                f"the devices of the mesh by process."
            )
        self._own = self.parts[sorted(held).index(jax.process_index())]

    def blocks(self, dim: int) -> int:
        """Returns the number of blocks in a dimension of a process's part."""
        return len(self._own[dim])

    def whole(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the shape of an array, given the shape of a part."""
        return tuple(
            [length * count // len(own) for length, count, own in zip(shape, self._counts, self._own, strict=True)]
        )

    def here(self, index: Index | None, shape: tuple[int, ...]) -> Index:
        """Returns the index of a block of the array within the part of this process, which has this shape."""
        found = []
        for place, length, own, count in zip(index or (), shape, self._own, self._counts, strict=True):
            if count == 1:
                found.append(slice(None))
                continue
            size = length // len(own)
            begin = own.index((place.start or 0) // size) * size if size else 0
            found.append(slice(begin, begin + size))
        return tuple(found)


@functools.lru_cache(maxsize=256)
def division(sharding: jax.NamedSharding, ndim: int) -> Division:
    """Returns the division of arrays with this number of dimensions."""
    return Division(sharding, ndim)


def count_of(mesh: Any, axes: Any) -> int:
    """Returns the number of blocks into which these axes of a mesh split a dimension."""
    return math.prod(mesh.shape[name] for name in names_of(axes))


def names_of(axes: Any) -> list[str]:
    """Returns the names in an entry of a `PartitionSpec`."""
    return [axes] if isinstance(axes, str) else list(axes) if isinstance(axes, tuple) else []


def spread(leaf: Any, sharding: Any, *, is_part: bool) -> jax.Array:
    """Returns an array over a sharding in several processes, each of which fills its own devices.

    It uses no collective and no program.

    Args:
        leaf: The whole array, or the part of this process.
        sharding: The sharding.
        is_part: Whether it is a part.
    """
    if isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = np.asarray(leaf)
    if not is_part:
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
    divided, shape = division(sharding, leaf.ndim), leaf.shape
    return jax.make_array_from_callback(divided.whole(shape), sharding, lambda index: leaf[divided.here(index, shape)])
