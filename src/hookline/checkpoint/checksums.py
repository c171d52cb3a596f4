"""Checksums of a checkpoint's contents: a crc32c for each piece of an array, with the piece's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import jax
import numpy as np

# The library takes only bytes; this much of an array is copied at once.
_CHUNK_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Piece:
    """One stored piece of an array: all of it, unless it is spread over devices.

    Attributes:
        start: Its first index along each dimension.
        stop: The index after its last one along each dimension.
        crc32c: The checksum of its bytes in C order.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    crc32c: int


def pieces_of(array: Any) -> tuple[Piece, ...]:
    """Returns the pieces of a JAX or NumPy array that this process holds, each once.

    Example:
        >>> pieces_of(np.zeros((2, 3), np.float32))
        (Piece(start=(0, 0), stop=(2, 3), crc32c=2231102702),)
    """
    if not isinstance(array, jax.Array):
        return (Piece((0,) * np.ndim(array), np.shape(array), crc32c(array)),)
    pieces = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            bounds = [part.indices(size) for part, size in zip(shard.index, array.shape, strict=True)]
            start, stop = tuple(bound[0] for bound in bounds), tuple(bound[1] for bound in bounds)
            pieces.append(Piece(start, stop, crc32c(shard.data)))
    return tuple(pieces)


def are_of(pieces: Sequence[Piece], array: Any) -> bool:
    """Returns whether an array has these pieces."""
    host = np.asarray(array)
    return all(crc32c(host[tuple(map(slice, piece.start, piece.stop))]) == piece.crc32c for piece in pieces)


def crc32c(array: Any) -> int:
    """Returns the crc32c of the bytes of an array in C order.

    References:
        RFC 3720, appendix B.4.
    """
    flat = np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)
    return of_chunks(flat[i : i + _CHUNK_BYTES].tobytes() for i in range(0, flat.size, _CHUNK_BYTES))


def of_chunks(chunks: Iterable[bytes]) -> int:
    """Returns the crc32c of bytes that come in chunks."""
    total = 0
    for chunk in chunks:
        total = google_crc32c.extend(total, chunk)
    return total
