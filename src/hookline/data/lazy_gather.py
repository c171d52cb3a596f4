"""Gathers rows of arrays lazily, into aligned memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_ALIGNMENT, _SMALL_BYTES = 64, 2**14


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array, aligned so that XLA on CPU takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    if size < _SMALL_BYTES or dtype.hasobject:  # A copy takes no longer.
        return np.empty(shape, dtype)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class LazyGather:
    """Some rows of an array, as an array: rows that are not read are not copied.

    Args:
        array: The array.
        chosen: The indices of the rows, in one dimension or more.
        filled: The number of indices in use, in the first dimension; the rows of the others are undefined.

    Example:
        >>> rows = LazyGather(np.arange(10.0), np.array([7, 1, 4]))
        >>> rows.shape, rows[1:].tolist(), np.asarray(rows).tolist()
        ((3,), [1.0, 4.0], [7.0, 1.0, 4.0])
    """

    __slots__ = ("_num_used", "array", "indices")

    def __init__(self, array: np.ndarray, chosen: np.ndarray, filled: int | None = None) -> None:
        self.array, self.indices, self._num_used = array, chosen, filled

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return *self.indices.shape, *self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.indices.ndim + self.array.ndim - 1

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.indices.size * (self.array.size // len(self.array))

    @property
    def nbytes(self) -> int:
        """The number of bytes of the gathered rows."""
        return self.size * self.array.itemsize

    def __getitem__(self, index: Any) -> np.ndarray:
        """Returns a part of the rows in new memory; the index consists of slices and integers."""
        index = index if isinstance(index, tuple) else (index,)
        leading_axes = self.indices.ndim
        indices = self.indices[index[:leading_axes]]
        rows = aligned_empty((*np.shape(indices), *self.array.shape[1:]), self.dtype)
        filled = slice(self._num_used) if index[:1] in ((), (slice(None),)) else ...
        # No index is out of bounds; with mode="raise" NumPy gathers into a copy first.
        self.array.take(indices[filled], 0, out=rows[filled], mode="clip")
        kept = sum(isinstance(item, slice) for item in index[:leading_axes]) + max(leading_axes - len(index), 0)
        return rows[(slice(None),) * kept + index[leading_axes:]] if len(index) > leading_axes else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all rows."""
        if copy is False:
            raise ValueError("Rows are gathered into new memory.")
        return self[()].astype(dtype or self.dtype, copy=False)


def stack(leaves: Sequence[LazyGather], capacity: int) -> LazyGather:
    """Stacks rows of one array into a block of length `capacity`; the unused rows are undefined."""
    chosen = np.zeros((capacity, *leaves[0].indices.shape), leaves[0].indices.dtype)
    np.stack([leaf.indices for leaf in leaves], out=chosen[: len(leaves)])
    return LazyGather(leaves[0].array, chosen, len(leaves))
