from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookline import errors
from hookline.summary import Summary, encode

compiled = jax.jit(encode.count_buckets)


def histogram(values: Any) -> Any:
    (value,) = Summary.FromString(encode.histogram("w", jax.device_get(compiled(values)))).value
    return value.histo


# Of one size, so that a single program is compiled for all of them.
@given(hnp.arrays(np.float32, 50, elements=st.floats(width=32, allow_subnormal=False)))
def test_histogram_agrees_with_its_values(values: np.ndarray):
    finite = values[np.isfinite(values)].astype(np.float64)
    got = histogram(values)
    assert got.num == sum(got.bucket) == len(finite)
    if not len(finite):
        return
    assert (got.min, got.max) == (finite.min(), finite.max())
    assert list(got.bucket_limit) == sorted(set(got.bucket_limit))
    # Each bucket counts the values between its limits; values on a limit belong to one of the two.
    cumulated = np.cumsum(got.bucket)
    for limit, count in zip(got.bucket_limit, cumulated, strict=True):
        assert np.sum(finite < limit) <= count <= np.sum(finite <= limit)


def test_buckets_are_narrow():
    values = np.linspace(0.5, 1.5, 1000, dtype=np.float32)
    got = histogram(values)
    limits = np.array(got.bucket_limit)
    assert np.all(limits[1:] / limits[:-1] < 1.13)
    assert got.sum == pytest.approx(values.sum(), rel=1e-5)
    assert got.sum_squares == pytest.approx((values**2).sum(), rel=1e-5)


def test_gap_between_values_stays_a_gap():
    got = histogram(np.array([1.0, 1.0, 100.0], np.float32))
    edges = [-np.inf, *got.bucket_limit]
    used = [(edges[i], edges[i + 1], count) for i, count in enumerate(got.bucket) if count]
    assert used == [(1.0, 1.125, 2.0), (96.0, 104.0, 1.0)]


def test_all_leaves_of_a_pytree_are_counted_together():
    tree = {
        "bool": jnp.array([True, False]),
        "int8": jnp.array([-3], jnp.int8),
        "bfloat16": jnp.full((2, 2), 1.5, jnp.bfloat16),
        "empty": jnp.zeros((0, 3)),
        "number": 2.0,
    }
    got = histogram(tree)
    assert (got.num, got.min, got.max, got.sum) == (8.0, -3.0, 2.0, 6.0)


@pytest.mark.parametrize("values", [np.zeros(0, np.float32), {}, np.array([np.nan, np.inf], np.float32)])
def test_no_values_make_an_empty_histogram(values: Any):
    got = histogram(values)
    assert (got.num, got.min, got.max, list(got.bucket)) == (0.0, 0.0, 0.0, [])


def test_nan_and_infinities_are_counted_separately():
    counted = compiled(np.array([1.0, np.nan, np.inf, -np.inf, 2.0], np.float32))
    assert int(counted.non_finite) == 3
    assert float(counted.total) == 3.0
    assert int(counted.counts.sum()) == 2


def test_extreme_values_are_not_lost():
    values = np.array([-3.4e38, -1e-45, 0.0, -0.0, 1e-30, 3.4e38], np.float32)
    got = histogram(values)
    assert got.num == 6
    assert sorted(count for count in got.bucket if count) == [1.0, 1.0, 4.0]


def test_complex_values_and_keys_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="complex64"):
        encode.count_buckets(jnp.ones(2, jnp.complex64))
    with pytest.raises(errors.InvalidArgumentError, match="key"):
        encode.count_buckets(jax.random.key(0))


def test_more_values_than_a_bucket_can_count_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="at most 4294967295 values, got 4294967296"):
        jax.eval_shape(encode.count_buckets, [jax.ShapeDtypeStruct((2**16, 2**15), jnp.bool_)] * 2)


def test_only_a_few_kilobytes_are_transferred():
    assert sum(leaf.nbytes for leaf in compiled(jnp.zeros(100_000))) < 8000
