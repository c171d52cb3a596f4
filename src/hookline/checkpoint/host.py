"""Copies of arrays on the host, which a save writes while the training continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

Bounds = tuple[tuple[int, ...], tuple[int, ...]]
"""The first index of a piece of an array along each dimension, and the index after the last."""

# The number of leaves that are copied from their devices at the same time.
_LEAVES_AT_ONCE = 4


@dataclasses.dataclass(frozen=True)
class HostCopy:
    """An array in the memory of the host.

    Attributes:
        array: The whole array. If no process has that, a JAX array with the pieces of this process.
        bounds: The pieces that this process stores: those on its devices; a single one if each device had all of it.
    """

    array: np.ndarray | jax.Array
    bounds: tuple[Bounds, ...]


def copies(arrays: Mapping[str, Any], is_chief: bool = True) -> dict[str, HostCopy]:
    """Copies this process's part of arrays to the host; once it returns, the arrays may be donated.

    It takes no memory on the devices. Replicated pieces are copied once. NumPy arrays are not copied. Of several
    processes, the chief stores the arrays that it has whole.
    """
    with ThreadPoolExecutor(_LEAVES_AT_ONCE) as pool:
        found = pool.map(lambda array: _copy(array, is_chief), arrays.values())
        return {name: copy for name, copy in zip(arrays, found, strict=True) if copy is not None}


def _copy(array: Any, is_chief: bool) -> HostCopy | None:
    if isinstance(array, jax.Array) and is_split(array):
        bounds = tuple(found for found, _ in shards_of(array, replica=0))
        return HostCopy(_held(array), bounds) if bounds or is_chief else None
    if not is_chief:
        return None
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


def _held(array: jax.Array) -> jax.Array:
    """Returns an array with the same pieces in the host's memory."""
    place, held = array.sharding, []
    if not is_seen(array):
        place = place.with_memory_kind("pinned_host")
    for shard in array.addressable_shards:
        there = jax.sharding.SingleDeviceSharding(shard.device, memory_kind=place.memory_kind)
        # Where NumPy sees the memory itself, JAX would not copy it.
        data = np.array(value_of(shard.data)) if is_seen(shard.data) else shard.data
        held.append(jax.device_put(data, there))
    return jax.block_until_ready(jax.make_array_from_single_device_arrays(array.shape, place, held))


def is_split(array: jax.Array) -> bool:
    """Returns whether the chief lacks a part of an array, so that several processes store it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return False
    places = array.sharding.devices_indices_map(array.shape).items()
    every = {_bounds(index, array.shape) for _, index in places}
    return every != {_bounds(index, array.shape) for device, index in places if device.process_index == 0}


def shards_of(array: jax.Array, replica: int | None = None) -> list[tuple[Bounds, jax.Array]]:
    """Returns the parts of an array on the devices of this process, each once; or only those of one replica."""
    found: dict[Bounds, jax.Array] = {}
    for shard in array.addressable_shards:
        if replica is None or shard.replica_id == replica:
            found.setdefault(_bounds(shard.index, array.shape), shard.data)
    return list(found.items())


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    parts = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return tuple(part[0] for part in parts), tuple(part[1] for part in parts)


def is_seen(data: jax.Array) -> bool:
    """Returns whether NumPy may use the memory of the array directly, as it does on the CPU."""
    return data.sharding.memory_kind != "device" or any(device.platform == "cpu" for device in data.devices())


def value_of(data: jax.Array) -> np.ndarray:
    """Returns the value of an array on one device: a view if NumPy can use its memory.

    Otherwise a JAX array would cache its fetched value on the host for as long as it lives. So the value is fetched
    from a second array with the same memory.
    """
    return np.asarray(jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data]))
