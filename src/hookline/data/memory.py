"""Uninitialised memory for arrays."""

from __future__ import annotations

import math

import numpy as np

_ALIGNMENT, _SMALL_BYTES = 64, 2**14


def room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array, aligned so that XLA on CPU takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    if size < _SMALL_BYTES or dtype.hasobject:  # A copy takes no longer.
        return np.empty(shape, dtype)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
