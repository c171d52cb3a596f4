"""Norms and differences of arrays on the host, computed in blocks, without a copy of a large variable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

_BLOCK = 2**17


@dataclasses.dataclass(frozen=True)
class Size:
    """The L2 norm of an array, and its counts of NaNs and infinities, which the norm includes."""

    norm: float
    nans: int
    infs: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two arrays of one shape.

    Attributes:
        largest: The largest absolute difference of two elements; NaN if only one of them is NaN.
        relative: The norm of the difference over the norm of the first array; infinite if only the latter is 0.
        elements: The number of elements that differ.
        total: The number of elements.
    """

    largest: float
    relative: float
    elements: int
    total: int


def size_of(array: np.ndarray) -> Size:
    """Measures an array of numbers.

    Example:
        >>> size_of(np.array([3.0, 4.0]))
        Size(norm=5.0, nans=0, infs=0)
    """
    norm, nans, infs = 0.0, 0, 0
    for block in _blocks(array):
        wide = _wide(block)
        nans += int(np.isnan(wide).sum())
        infs += int(np.isinf(wide).sum())
        norm = _hypot(norm, float(np.linalg.norm(wide)))
    return Size(norm, nans, infs)


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Compares two arrays of one shape. A NaN equals a NaN.

    Example:
        >>> difference(np.array([3.0, 4.0, 0.0]), np.array([3.0, 4.5, 0.0]))
        Difference(largest=0.5, relative=0.1, elements=1, total=3)
    """
    largest, norm, before, elements = 0.0, 0.0, 0.0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        for one, other in zip(_blocks(a), _blocks(b), strict=True):
            wide, far = _wide(one), _wide(other)
            alike = (one == other) if one.dtype == other.dtype else (wide == far)
            same = np.asarray(alike, bool) | (np.isnan(wide) & np.isnan(far))
            apart = np.abs(np.where(same, 0, far - wide))
            elements += int(same.size - same.sum())
            largest = float(np.maximum(largest, apart.max()))
            norm, before = _hypot(norm, float(np.linalg.norm(apart))), _hypot(before, float(np.linalg.norm(wide)))
    relative = 0.0 if not elements else norm / before if before else math.inf
    return Difference(largest, relative, elements, a.size)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _wide(block: np.ndarray) -> np.ndarray:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)


def _hypot(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else math.hypot(one, other)
