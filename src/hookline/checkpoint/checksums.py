"""Checksums of a checkpoint's contents: a crc32c for each piece of an array, with the piece's place."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import jax
import numpy as np

from hookline.checkpoint.host import Bounds, HostCopy, is_seen, shards_of, value_of

# The library takes only bytes. This much of an array is copied at once, and also fetched at once if the array is not in
# the host's memory.
_BLOCK_BYTES = 4 * 2**20
_ONES, _POLYNOMIAL = 0xFFFFFFFF, 0x82F63B78

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One stored piece of an array: all of it, unless it is spread over devices.

    Along each dimension it has the indices from `start` to before `stop`. The checksum is over its bytes in C order.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    crc32c: int


def pieces_of(copy: HostCopy) -> tuple[Piece, ...]:
    """Returns the pieces of an array that this process stores, from its copy on the host."""
    size, take = copy.array.dtype.itemsize, _Taking(copy.array)
    return tuple(Piece(*bounds, _crc32c(bounds, size, take)) for bounds in copy.bounds)


def by_name(stored: Mapping[str, HostCopy]) -> dict[str, list[Any]]:
    """Returns the pieces of arrays that this process stores, by their names, as values of JSON."""
    return {name: [dataclasses.astuple(piece) for piece in pieces_of(copy)] for name, copy in stored.items()}


def are_of(pieces: Sequence[Piece], array: Any) -> bool:
    """Returns whether a JAX or NumPy array has these pieces, regardless of its present layout."""
    return compare(pieces, array) == {}


Shares = Mapping[str, int]
"""A process's shares in the checksums of pieces that no process has whole, by the numbers of piece and replica."""


def compare(pieces: Sequence[Piece], array: Any) -> Shares | None:
    """Compares this process's part of an array with the checksums of its pieces, regardless of its present layout.

    Returns:
        None if a piece differs. Else this process's shares in the checksums of the pieces that it has in part; see
        `make_up`.
    """
    size, shares = array.dtype.itemsize, {}
    here, replicas = _Taking(array), {}
    for number, piece in enumerate(pieces):
        bounds = piece.start, piece.stop
        if here.covers(bounds):
            if _crc32c(bounds, size, here) != piece.crc32c:
                return None
            continue
        replicas = replicas or {replica: _Taking(array, replica) for replica in _replicas(array)}
        for replica, take in replicas.items():
            if take.meets(bounds):
                shares[f"{number} {replica}"] = _share(bounds, size, take)
    return shares


def make_up(pieces: Sequence[Piece], shares: Sequence[Shares]) -> bool:
    """Returns whether the shares of all processes make up the checksums of the pieces."""
    keys = set[str]().union(*shares)
    sums = {key: functools.reduce(operator.xor, (share.get(key, 0) for share in shares)) for key in keys}
    return all(total == pieces[int(key.split()[0])].crc32c for key, total in sums.items())


def _share(bounds: Bounds, itemsize: int, take: _Taking) -> int:
    """Returns a share in the checksum of a piece: the checksum with zeros in place of missing parts.

    A checksum is a linear function of the bytes plus the checksum of zeros alone. So shares are added by exclusive or,
    and the checksum of zeros must be in them once: the process that has the first element includes it.
    """
    total, first = _crc32c(bounds, itemsize, take), (bounds[0], tuple(start + 1 for start in bounds[0]))
    return total if take.meets(first) else total ^ _of_zeros(0, _size(*bounds) * itemsize)


def _crc32c(bounds: Bounds, itemsize: int, take: _Taking) -> int:
    total = 0
    for index in _blocks(bounds, itemsize):
        block = take(index)
        if block is None:
            total = _of_zeros(total, math.prod(part.stop - part.start for part in index) * itemsize)
        else:
            total = google_crc32c.extend(total, block.tobytes())
    return total


def _of_zeros(total: int, count: int) -> int:
    """Returns a checksum extended by this many zeros."""
    return _through(_zeros(count), total ^ _ONES) ^ _ONES if count else total


def _through(columns: Sequence[int], register: int) -> int:
    """Returns the product of a matrix of bits, column by column, and a vector of bits."""
    found = 0
    for bit, column in enumerate(columns):
        if register >> bit & 1:
            found ^= column
    return found


@functools.lru_cache(1024)
def _zeros(count: int) -> tuple[int, ...]:
    """Returns the effect of this many zeros on each bit of a checksum's register, as the columns of a matrix."""
    if count == 1:
        columns = [1 << bit for bit in range(32)]
        for _ in range(8):
            columns = [column >> 1 ^ (_POLYNOMIAL if column & 1 else 0) for column in columns]
        return tuple(columns)
    half = _zeros(count // 2)
    columns = [_through(half, column) for column in half]
    return tuple(_through(_zeros(1), column) for column in columns) if count % 2 else tuple(columns)


def _blocks(bounds: Bounds, itemsize: int) -> Iterator[Index]:
    """Yields the blocks of a piece, in C order; each is contiguous in the piece and has at most `_BLOCK_BYTES`."""
    start, stop = bounds
    axis, step_bytes = len(start), itemsize
    while axis and step_bytes * (stop[axis - 1] - start[axis - 1]) <= _BLOCK_BYTES:
        axis -= 1
        step_bytes *= stop[axis] - start[axis]
    whole = tuple(map(slice, start[axis:], stop[axis:]))
    if not axis:
        yield whole
        return
    step, end = max(1, _BLOCK_BYTES // step_bytes), stop[axis - 1]
    for place in itertools.product(*map(range, start[: axis - 1], stop[: axis - 1])):
        rows = tuple(slice(at, at + 1) for at in place)
        for first in range(start[axis - 1], end, step):
            yield (*rows, slice(first, min(first + step, end)), *whole)


def _replicas(array: jax.Array) -> set[int]:
    return {shard.replica_id for shard in array.addressable_shards}


class _Taking:
    """Assembles blocks of an array from its parts: those in this process, or those of one replica."""

    def __init__(self, array: Any, replica: int | None = None) -> None:
        self._dtype = array.dtype
        if isinstance(array, jax.Array):
            self._parts = [(bounds, _reading(data)) for bounds, data in shards_of(array, replica)]
        else:
            self._parts = [(((0,) * array.ndim, array.shape), array.__getitem__)]

    def covers(self, bounds: Bounds) -> bool:
        """Returns whether the parts hold all of a piece."""
        return sum(_size(*_common(part, bounds)) for part, _ in self._parts) == _size(*bounds)

    def meets(self, bounds: Bounds) -> bool:
        """Returns whether the parts hold any of a piece."""
        return any(_size(*_common(part, bounds)) for part, _ in self._parts)

    def __call__(self, index: Index) -> Any:
        """Returns a block, with zeros in place of missing parts; None if all of it is missing."""
        wanted = tuple(part.start for part in index), tuple(part.stop for part in index)
        block = None
        for bounds, read in self._parts:
            common = _common(bounds, wanted)
            if not _size(*common):
                continue
            found = read(_within(common, bounds[0]))
            if common == wanted:
                return found
            if block is None:
                block = np.zeros([part.stop - part.start for part in index], self._dtype)
            block[_within(common, wanted[0])] = found
        return block


def _common(one: Bounds, other: Bounds) -> Bounds:
    return tuple(map(max, one[0], other[0])), tuple(map(min, one[1], other[1]))


def _size(start: Sequence[int], stop: Sequence[int]) -> int:
    return math.prod(max(last - first, 0) for first, last in zip(start, stop, strict=True))


def _within(bounds: Bounds, origin: Sequence[int]) -> Index:
    return tuple(slice(first - at, last - at) for first, last, at in zip(*bounds, origin, strict=True))


def _reading(data: jax.Array) -> Callable[[Index], Any]:
    """Returns a function that brings a part of an array on one device to the host."""
    if is_seen(data):
        host = value_of(data)
        return lambda index: host[index]

    # Inside a mesh JAX would refuse an array on one device of it.
    alone = jax.sharding.Mesh(np.array(list(data.devices())), ("device",))

    def read(index: Index) -> Any:
        sizes = [part.stop - part.start for part in index]
        if tuple(sizes) == data.shape:
            return value_of(data)
        with jax.set_mesh(alone):
            return np.asarray(jax.lax.dynamic_slice(data, [part.start for part in index], sizes))

    return read
