"""Histograms: counted on the device, so that a few kilobytes are transferred instead of the values."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hookline import errors
from hookline.graph import placement

# A bucket is one value of a 32-bit float's exponent and first three fraction bits, for each sign. So there are eight
# buckets in an octave, found by a shift. Magnitudes below 2**-40 count as zero; those from 2**66 on share the last
# bucket.
_SHIFT = 20
_FIRST = (127 - 40) << 3
_LAST = ((127 + 66) << 3) - 1
_PER_SIGN = _LAST - _FIRST + 1
_MOST_VALUES = 2**32 - 1


class BucketCounts(NamedTuple):
    """The device's results for a histogram.

    Attributes:
        counts: Shape `(1697,)`; finite values in each bucket, from the most negative to the most positive.
        non_finite: Shape `()`; the number of values that are NaN or infinite. No other field counts them.
        total: Shape `()`; sum.
        squares: Shape `()`; sum of squares.
        least: Shape `()`; smallest value, infinity if there is none.
        most: Shape `()`; largest value, minus infinity if there is none.
    """

    counts: Any
    non_finite: Any
    total: Any
    squares: Any
    least: Any
    most: Any


def count(values: Any) -> BucketCounts:
    """Counts the values of a pytree into buckets. Meant for use inside `jax.jit`.

    Args:
        values: Pytree of arrays of real dtypes and any shapes, counted together as 32-bit floats.

    Raises:
        InvalidArgumentError: A leaf is complex or not a number, or there are 2**32 values or more.
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(values)]
    for leaf in leaves:
        if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
            raise errors.InvalidArgumentError(
                None, None, f"A histogram requires arrays of real numbers, got one of dtype {leaf.dtype}."
            )
    sizes = [leaf.size for leaf in leaves]
    if all(isinstance(size, int) for size in sizes) and sum(sizes) > _MOST_VALUES:
        raise errors.InvalidArgumentError(
            None, None, f"A histogram holds at most {_MOST_VALUES} values, got {sum(sizes)}: make several of them."
        )
    parts = [placement.whole(_count_leaf, leaf) for leaf in leaves] or [_count_leaf(jnp.zeros(0))]
    counts, non_finite, total, squares, least, most = (list(column) for column in zip(*parts, strict=True))
    return BucketCounts(
        sum(counts), sum(non_finite), sum(total), sum(squares), jnp.stack(least).min(), jnp.stack(most).max()
    )


def _count_leaf(leaf: jax.Array) -> BucketCounts:
    values = leaf.astype(jnp.float32)
    finite = jnp.isfinite(values)
    weights = finite.astype(jnp.uint32)
    known = jnp.where(finite, values, 0)
    bits = lax.bitcast_convert_type(known, jnp.int32)
    magnitude = jnp.clip((bits & 0x7FFFFFFF) >> _SHIFT, _FIRST - 1, _LAST) - (_FIRST - 1)
    bucket = jnp.where(bits < 0, -magnitude, magnitude) + _PER_SIGN
    counts = jnp.zeros(2 * _PER_SIGN + 1, jnp.uint32).at[bucket].add(weights, mode="promise_in_bounds")
    return BucketCounts(
        counts,
        jnp.sum(~finite, dtype=jnp.uint32),
        known.sum(),
        jnp.sum(known * known),
        jnp.min(values, where=finite, initial=jnp.inf),
        jnp.max(values, where=finite, initial=-jnp.inf),
    )


def _limits() -> np.ndarray:
    """Returns the upper limit of each bucket."""
    edges = (np.arange(_FIRST, _LAST + 1, dtype=np.int32) << _SHIFT).view(np.float32).astype(np.float64)
    return np.concatenate([-edges[::-1], edges, [np.finfo(np.float64).max]])


def encode(tag: str, counted: BucketCounts) -> bytes:
    """Returns the serialized `Summary` of the result of `count`, on the host."""
    from hookline.summary.protos import Summary

    counts = np.asarray(counted.counts)
    used = np.flatnonzero(counts)
    # The bucket before a used one marks the lower limit of that one; other empty buckets are left out.
    kept = np.union1d(used, np.maximum(used - 1, 0))
    summary = Summary()
    histogram = summary.value.add(tag=tag).histo
    histogram.num = float(counts.sum(dtype=np.uint64))
    if histogram.num:
        histogram.min = float(counted.least)
        histogram.max = float(counted.most)
        histogram.sum = float(counted.total)
        histogram.sum_squares = float(counted.squares)
        histogram.bucket_limit.extend(_limits()[kept].tolist())
        histogram.bucket.extend(counts[kept].tolist())
    return summary.SerializeToString()
