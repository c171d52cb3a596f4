"""Checksums of a checkpoint's contents: a crc32c for each piece of an array, with the piece's place."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import google_crc32c
import jax
import numpy as np

from hookline.checkpoint.host import Bounds, HostCopy, is_seen, shards_of, value_of

# The library takes only bytes. So much of an array is copied at once, and where it is not in the host's memory, so much
# of it is fetched at once.
_BLOCK_BYTES = 4 * 2**20

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One stored piece of an array: all of it, unless it is spread over devices.

    Along each dimension it lies from `start` to before `stop`; the checksum is that of its bytes in C order.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    crc32c: int


def pieces_of(copy: HostCopy) -> tuple[Piece, ...]:
    """Returns the pieces of an array, from its copy on the host."""
    size = copy.array.dtype.itemsize
    return tuple(Piece(*bounds, _crc32c(bounds, size, lambda index: copy.array[index])) for bounds in copy.bounds)


def are_of(pieces: Sequence[Piece], array: Any) -> bool:
    """Returns whether a JAX or NumPy array has these pieces, however it is laid out now."""
    take = _taking(array)
    size = array.dtype.itemsize
    return all(_crc32c((piece.start, piece.stop), size, take) == piece.crc32c for piece in pieces)


def _crc32c(bounds: Bounds, itemsize: int, take: Callable[[Index], Any]) -> int:
    total = 0
    for index in _blocks(bounds, itemsize):
        total = google_crc32c.extend(total, take(index).tobytes())
    return total


def _blocks(bounds: Bounds, itemsize: int) -> Iterator[Index]:
    """Yields the blocks of a piece, in C order; each lies in one row of bytes and has `_BLOCK_BYTES` at the most."""
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


def _taking(array: Any) -> Callable[[Index], Any]:
    """Returns what puts a block together from the shards of an array."""
    if not isinstance(array, jax.Array):
        return lambda index: array[index]
    shards = [(bounds, _reading(data)) for bounds, data in shards_of(array)]

    def take(index: Index) -> Any:
        block = None
        for (start, stop), read in shards:
            common = [
                slice(max(part.start, first), min(part.stop, last))
                for part, first, last in zip(index, start, stop, strict=True)
            ]
            if any(part.start >= part.stop for part in common):
                continue
            found = read(tuple(slice(p.start - at, p.stop - at) for p, at in zip(common, start, strict=True)))
            if len(shards) == 1:
                return found
            if block is None:
                block = np.empty([part.stop - part.start for part in index], array.dtype)
            block[tuple(slice(p.start - q.start, p.stop - q.start) for p, q in zip(common, index, strict=True))] = found
        return block

    return take


def _reading(data: jax.Array) -> Callable[[Index], Any]:
    """Returns what brings a part of an array of one device to the host."""
    if is_seen(data):
        host = value_of(data)
        return lambda index: host[index]

    # Inside a mesh JAX would refuse what lies on one device of it.
    alone = jax.sharding.Mesh(np.array(list(data.devices())), ("device",))

    def read(index: Index) -> Any:
        sizes = [part.stop - part.start for part in index]
        if tuple(sizes) == data.shape:
            return value_of(data)
        with jax.set_mesh(alone):
            return np.asarray(jax.lax.dynamic_slice(data, [part.start for part in index], sizes))

    return read
