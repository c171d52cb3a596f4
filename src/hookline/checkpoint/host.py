"""Copies of arrays on the host: what a save writes while the training goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

Bounds = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a piece of an array begins along each dimension, and before what it ends."""

# While one leaf is copied from its device, the next ones are under way.
_LEAVES_AT_ONCE = 4


@dataclasses.dataclass(frozen=True)
class HostCopy:
    """An array in the memory of the host.

    Attributes:
        array: The whole of it.
        bounds: The pieces in which it lay on its devices; one if each had all of it.
    """

    array: np.ndarray
    bounds: tuple[Bounds, ...]


def copies(arrays: Mapping[str, Any]) -> dict[str, HostCopy]:
    """Copies JAX arrays to the host; returns when that is done, so they may be donated then.

    It takes no memory on the devices. What is there several times comes once. NumPy arrays are not copied.
    """
    with ThreadPoolExecutor(_LEAVES_AT_ONCE) as pool:
        return dict(zip(arrays, pool.map(_copy, arrays.values()), strict=True))


def _copy(array: Any) -> HostCopy:
    if not isinstance(array, jax.Array):
        return HostCopy(array, (((0,) * array.ndim, array.shape),))
    shards = shards_of(array)
    bounds = tuple(found for found, _ in shards)
    # A view would keep the next run from writing in place: the state would be on the device twice.
    if len(shards) == 1 and not is_seen(shards[0][1]):
        return HostCopy(value_of(shards[0][1]), bounds)
    whole = np.empty(array.shape, array.dtype)
    for (start, stop), data in shards:
        whole[tuple(map(slice, start, stop))] = value_of(data)
    return HostCopy(whole, bounds)


def shards_of(array: jax.Array) -> list[tuple[Bounds, jax.Array]]:
    """Returns the parts of an array on their devices, each once."""
    found = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            parts = [part.indices(size) for part, size in zip(shard.index, array.shape, strict=True)]
            found.append(((tuple(part[0] for part in parts), tuple(part[1] for part in parts)), shard.data))
    return found


def is_seen(data: jax.Array) -> bool:
    """Whether NumPy may see the memory of the array itself, as it does on the CPU."""
    return data.sharding.memory_kind != "device" or any(device.platform == "cpu" for device in data.devices())


def value_of(data: jax.Array) -> np.ndarray:
    """Returns the value of an array of one device: a view where NumPy sees its memory.

    Otherwise an array keeps the value that was fetched from it, on the host, for as long as it lives. A second array of
    the same memory does not.
    """
    return np.asarray(jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data]))
