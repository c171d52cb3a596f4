"""Copies of arrays on the host, which a save writes while the training continues; and checksums of their pieces.

Each stored piece of an array has a crc32c, recorded with the bounds of the piece.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import jax
import numpy as np

from hookline.coordination import progress

Bounds = tuple[tuple[int, ...], tuple[int, ...]]
"""The first index of a piece of an array along each dimension, and the index after the last."""

# google_crc32c accepts only bytes, so an array is copied in blocks of this size; an array that is not in the host's
# memory is also fetched in such blocks.
_BLOCK_BYTES = 4 * 2**20
_ONES, _POLYNOMIAL = 0xFFFFFFFF, 0x82F63B78

_Index = tuple[slice, ...]

# The number of leaves that are copied from their devices at the same time.
_LEAVES_AT_ONCE = 4


@dataclasses.dataclass(frozen=True)
class HostCopy:
    """An array in the memory of the host.

    Attributes:
        array: The whole array; or, if several processes store it, a JAX array with the pieces of this process.
        bounds: The pieces that this process stores: those on its devices, or one if each device had the whole array.
    """

    array: np.ndarray | jax.Array
    bounds: tuple[Bounds, ...]


def copy_to_host(arrays: Mapping[str, Any], is_chief: bool = True) -> dict[str, HostCopy]:
    """Copies this process's part of arrays to the host; after that, the arrays may be donated.

    It uses no device memory. Replicated pieces are copied once. NumPy arrays are not copied. In multi-process SPMD,
    arrays that the chief has whole are stored by the chief alone.
    """
    with ThreadPoolExecutor(_LEAVES_AT_ONCE) as pool:
        found = pool.map(lambda array: _copy(array, is_chief), arrays.values())
        return {name: copy for name, copy in zip(arrays, found, strict=True) if copy is not None}


def _copy(array: Any, is_chief: bool) -> HostCopy | None:
    progress.count += 1
    if isinstance(array, jax.Array) and is_split(array):
        bounds = tuple(found for found, _ in shards_of(array, replica=0))
        return HostCopy(_copy_shards(array), bounds) if bounds or is_chief else None
    if not is_chief:
        return None
    if not isinstance(array, jax.Array):
        return HostCopy(array, (((0,) * array.ndim, array.shape),))
    shards = shards_of(array)
    bounds = tuple(found for found, _ in shards)
    # A view would prevent the next run from writing in place: the state would be on the device twice.
    if len(shards) == 1 and not is_host_visible(shards[0][1]):
        return HostCopy(to_numpy(shards[0][1]), bounds)
    whole = np.empty(array.shape, array.dtype)
    for (start, stop), data in shards:
        whole[tuple(map(slice, start, stop))] = to_numpy(data)
    return HostCopy(whole, bounds)


def _copy_shards(array: jax.Array) -> jax.Array:
    """Returns an array with the same pieces in the host's memory."""
    sharding, held = array.sharding, []
    if not is_host_visible(array):
        sharding = sharding.with_memory_kind("pinned_host")
    for shard in array.addressable_shards:
        there = jax.sharding.SingleDeviceSharding(shard.device, memory_kind=sharding.memory_kind)
        # Where NumPy can view the memory, `device_put` would not copy it.
        data = np.array(to_numpy(shard.data)) if is_host_visible(shard.data) else shard.data
        held.append(jax.device_put(data, there))
    return jax.block_until_ready(jax.make_array_from_single_device_arrays(array.shape, sharding, held))


def is_split(array: jax.Array) -> bool:
    """Returns whether the chief lacks a part of an array, so that several processes must store it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return False
    slices = array.sharding.devices_indices_map(array.shape).items()
    every = {_bounds(index, array.shape) for _, index in slices}
    return every != {_bounds(index, array.shape) for device, index in slices if device.process_index == 0}


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


def is_host_visible(data: jax.Array) -> bool:
    """Returns whether NumPy may use the memory of the array directly, as it does on the CPU."""
    return data.sharding.memory_kind != "device" or any(device.platform == "cpu" for device in data.devices())


def to_numpy(data: jax.Array) -> np.ndarray:
    """Returns the value of an array on one device: a view if NumPy can use its memory.

    The value is fetched through a second JAX array with the same memory, because a JAX array caches its fetched value
    on the host as long as it lives.
    """
    return np.asarray(jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data]))


# Checksums ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Piece:
    """One stored piece of an array: the whole array, unless it is sharded over devices.

    Along each dimension it has the indices from `start` up to, not including, `stop`. The checksum is over its bytes in
    C order.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    crc32c: int


def pieces_of(copy: HostCopy) -> tuple[Piece, ...]:
    """Returns the pieces of an array that this process stores, from its copy on the host."""
    parts = _Parts(copy.array)
    return tuple(Piece(*bounds, parts.crc32c(bounds)) for bounds in copy.bounds)


def checksums(stored: Mapping[str, HostCopy]) -> dict[str, list[Any]]:
    """Returns the pieces of arrays that this process stores, by the arrays' names, as JSON values."""
    return {name: [dataclasses.astuple(piece) for piece in pieces_of(copy)] for name, copy in stored.items()}


PartialChecksums = Mapping[str, int]
"""A process's partial checksums of pieces that it has only in part, by the numbers of piece and replica."""


def compare_checksums(pieces: Sequence[Piece], array: Any) -> PartialChecksums | None:
    """Compares this process's part of an array with the checksums of the stored pieces, in any present layout.

    Returns:
        None if a piece differs. Else the partial checksums of the pieces that this process has only in part; see
        `partials_match`.
    """
    own, replicas, partials = _Parts(array), {}, {}
    for number, piece in enumerate(pieces):
        bounds = piece.start, piece.stop
        if own.cover(bounds):
            if own.crc32c(bounds) != piece.crc32c:
                return None
            continue
        replicas = replicas or {
            replica: _Parts(array, replica) for replica in {shard.replica_id for shard in array.addressable_shards}
        }
        for replica, parts in replicas.items():
            if parts.meet(bounds):
                partials[f"{number} {replica}"] = parts.share(bounds)
    return partials


def partials_match(pieces: Sequence[Piece], partials: Sequence[PartialChecksums]) -> bool:
    """Returns whether the partial checksums of all processes combine to the checksums of the pieces."""
    keys = set[str]().union(*partials)
    sums = {key: functools.reduce(operator.xor, (share.get(key, 0) for share in partials)) for key in keys}
    return all(total == pieces[int(key.split()[0])].crc32c for key, total in sums.items())


def _extend_with_zeros(total: int, count: int) -> int:
    """Returns a checksum extended by this many zero bytes."""
    return _multiply_bits(_zeros(count), total ^ _ONES) ^ _ONES if count else total


def _multiply_bits(columns: Sequence[int], register: int) -> int:
    """Returns the product of a matrix of bits, column by column, and a vector of bits."""
    found = 0
    for bit, column in enumerate(columns):
        if register >> bit & 1:
            found ^= column
    return found


@functools.lru_cache(1024)
def _zeros(count: int) -> tuple[int, ...]:
    """Returns the effect of this many zero bytes on each bit of a checksum's register, as the columns of a matrix."""
    if count == 1:
        columns = [1 << bit for bit in range(32)]
        for _ in range(8):
            columns = [column >> 1 ^ (_POLYNOMIAL if column & 1 else 0) for column in columns]
        return tuple(columns)
    half = _zeros(count // 2)
    columns = [_multiply_bits(half, column) for column in half]
    return tuple(_multiply_bits(_zeros(1), column) for column in columns) if count % 2 else tuple(columns)


def _blocks(bounds: Bounds, itemsize: int) -> Iterator[Bounds]:
    """Yields the blocks of a piece, in C order; each is contiguous in the piece and has at most `_BLOCK_BYTES`."""
    start, stop = bounds
    axis, step_bytes = len(start), itemsize
    while axis and step_bytes * (stop[axis - 1] - start[axis - 1]) <= _BLOCK_BYTES:
        axis -= 1
        step_bytes *= stop[axis] - start[axis]
    if not axis:
        yield bounds
        return
    step, end = max(1, _BLOCK_BYTES // step_bytes), stop[axis - 1]
    for corner in itertools.product(*map(range, start[: axis - 1], stop[: axis - 1])):
        after = tuple(at + 1 for at in corner)
        for first in range(start[axis - 1], end, step):
            yield (*corner, first, *start[axis:]), (*after, min(first + step, end), *stop[axis:])


class _Parts:
    """The parts of an array in this process, or only those of one replica, and their checksums."""

    def __init__(self, array: Any, replica: int | None = None) -> None:
        self._dtype = array.dtype
        if isinstance(array, jax.Array):
            shards = shards_of(array, replica)
            self._parts = [(bounds, to_numpy(data) if is_host_visible(data) else data) for bounds, data in shards]
        else:
            self._parts = [(((0,) * array.ndim, array.shape), array)]

    def cover(self, bounds: Bounds) -> bool:
        """Returns whether the parts contain all of a piece."""
        return sum(_size(_intersection(part, bounds)) for part, _ in self._parts) == _size(bounds)

    def meet(self, bounds: Bounds) -> bool:
        """Returns whether the parts contain any of a piece."""
        return any(_size(_intersection(part, bounds)) for part, _ in self._parts)

    def share(self, bounds: Bounds) -> int:
        """Returns the partial checksum of a piece: the checksum with zeros in place of missing parts.

        A checksum is a linear function of the bytes plus the checksum of zeros alone, where plus is exclusive or. So
        partial checksums combine by exclusive or, if exactly one of them includes the checksum of zeros: that of the
        process with the first element.
        """
        total, first = self.crc32c(bounds), (bounds[0], tuple(start + 1 for start in bounds[0]))
        return total if self.meet(first) else total ^ _extend_with_zeros(0, _size(bounds) * self._dtype.itemsize)

    def crc32c(self, bounds: Bounds) -> int:
        """Returns the checksum of a piece, with zeros in place of missing parts."""
        total = 0
        for within in _blocks(bounds, self._dtype.itemsize):
            block = self._block(within)
            progress.count += 1
            if block is None:
                total = _extend_with_zeros(total, _size(within) * self._dtype.itemsize)
            else:
                total = google_crc32c.extend(total, block.tobytes())
        return total

    def _block(self, wanted: Bounds) -> Any:
        """Returns a block, with zeros in place of missing parts; None if all of it is missing."""
        block = None
        for bounds, part in self._parts:
            common = _intersection(bounds, wanted)
            if not _size(common):
                continue
            inside = _relative_index(common, bounds[0])
            found = _fetched(part, inside) if isinstance(part, jax.Array) else part[inside]
            if common == wanted:
                return found
            if block is None:
                block = np.zeros([stop - start for start, stop in zip(*wanted, strict=True)], self._dtype)
            block[_relative_index(common, wanted[0])] = found
        return block


def _intersection(one: Bounds, other: Bounds) -> Bounds:
    return tuple(map(max, one[0], other[0])), tuple(map(min, one[1], other[1]))


def _size(bounds: Bounds) -> int:
    return math.prod(max(stop - start, 0) for start, stop in zip(*bounds, strict=True))


def _relative_index(bounds: Bounds, origin: Sequence[int]) -> _Index:
    return tuple(slice(first - at, last - at) for first, last, at in zip(*bounds, origin, strict=True))


def _fetched(data: jax.Array, index: _Index) -> np.ndarray:
    """Fetches a part of an array on one device, whose memory NumPy cannot use."""
    sizes = [part.stop - part.start for part in index]
    if tuple(sizes) == data.shape:
        return to_numpy(data)
    # In the context of a larger mesh, JAX would refuse an array on one of its devices.
    with jax.set_mesh(jax.sharding.Mesh(np.array(list(data.devices())), ("device",))):
        return np.asarray(jax.lax.dynamic_slice(data, [part.start for part in index], sizes))
