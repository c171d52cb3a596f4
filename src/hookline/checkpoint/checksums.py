"""Checksums of a checkpoint's contents: a crc32c for each piece of an array, with the piece's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import google_crc32c
import jax
import numpy as np

# The library takes only bytes; this much of an array is copied at once.
_CHUNK_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Piece:
    """One stored piece of an array: all of it, unless it is spread over devices.

    Along each dimension it lies from `start` to before `stop`; the checksum is that of its bytes in C order.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    crc32c: int


def pieces_of(array: Any) -> tuple[Piece, ...]:
    """Returns the pieces of a JAX or NumPy array that this process holds, each once."""
    if not isinstance(array, jax.Array):
        return (Piece((0,) * np.ndim(array), np.shape(array), _crc32c(array)),)
    pieces = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            bounds = [part.indices(size) for part, size in zip(shard.index, array.shape, strict=True)]
            start, stop = tuple(bound[0] for bound in bounds), tuple(bound[1] for bound in bounds)
            pieces.append(Piece(start, stop, _crc32c(shard.data)))
    return tuple(pieces)


def are_of(pieces: Sequence[Piece], array: Any) -> bool:
    """Returns whether an array has these pieces."""
    host = np.asarray(array)
    return all(_crc32c(host[tuple(map(slice, piece.start, piece.stop))]) == piece.crc32c for piece in pieces)


def _crc32c(array: Any) -> int:
    flat = np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)
    total = 0
    for start in range(0, flat.size, _CHUNK_BYTES):
        total = google_crc32c.extend(total, flat[start : start + _CHUNK_BYTES].tobytes())
    return total
