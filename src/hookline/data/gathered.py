"""Rows of an array that are gathered when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hookline.data.memory import room


class Gathered:
    """Chosen rows of an array, as an array: of those that nobody asks for, none is copied.

    Args:
        array: The array.
        chosen: The numbers of its rows, of one dimension or more.
        filled: How many of them somebody looks at, in the first dimension: what is behind is anything.

    Example:
        >>> rows = Gathered(np.arange(10.0), np.array([7, 1, 4]))
        >>> rows.shape, rows[1:].tolist(), np.asarray(rows).tolist()
        ((3,), [1.0, 4.0], [7.0, 1.0, 4.0])
    """

    __slots__ = ("_filled", "array", "chosen")

    def __init__(self, array: np.ndarray, chosen: np.ndarray, filled: int | None = None) -> None:
        self.array, self.chosen, self._filled = array, chosen, filled

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return *self.chosen.shape, *self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return self.chosen.ndim + self.array.ndim - 1

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.chosen.size * (self.array.size // len(self.array))

    @property
    def nbytes(self) -> int:
        """How much memory they take, gathered."""
        return self.size * self.array.itemsize

    def __getitem__(self, index: Any) -> np.ndarray:
        """Returns a part of it, which is new memory; the index is of slices and integers."""
        index = index if isinstance(index, tuple) else (index,)
        lead = self.chosen.ndim
        chosen = self.chosen[index[:lead]]
        rows = room((*np.shape(chosen), *self.array.shape[1:]), self.dtype)
        filled = slice(self._filled) if index[:1] in ((), (slice(None),)) else ...
        # No number is out of bounds; where NumPy has to look for one, it gathers into a copy first.
        self.array.take(chosen[filled], 0, out=rows[filled], mode="clip")
        kept = sum(isinstance(item, slice) for item in index[:lead]) + max(lead - len(index), 0)
        return rows[(slice(None),) * kept + index[lead:]] if len(index) > lead else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all of it."""
        if copy is False:
            raise ValueError("Rows are gathered into new memory.")
        return self[()].astype(dtype or self.dtype, copy=False)


def stacked(leaves: Sequence[Gathered], capacity: int) -> Gathered:
    """Returns rows of one array as a block with room for `capacity`; what is behind them is anything."""
    chosen = np.zeros((capacity, *leaves[0].chosen.shape), leaves[0].chosen.dtype)
    np.stack([leaf.chosen for leaf in leaves], out=chosen[: len(leaves)])
    return Gathered(leaves[0].array, chosen, len(leaves))
