"""`tf.math` and the functions of arrays in `tf` itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1._machinery import casts, dtypes, subgradients
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.op_definitions import Listed, Plain, Static, Unused, computed_by, ops_in
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1.math._elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    conj,
    cos,
    cosh,
    digamma,
    div,
    div_no_nan,
    divide,
    equal,
    erf,
    erfc,
    exp,
    expm1,
    floor,
    floor_div,
    floordiv,
    floormod,
    greater,
    greater_equal,
    is_finite,
    is_inf,
    is_nan,
    less,
    less_equal,
    lgamma,
    log,
    log1p,
    log_sigmoid,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mod,
    multiply,
    negative,
    not_equal,
    pow,
    realdiv,
    reciprocal,
    rint,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    squared_difference,
    subtract,
    tan,
    tanh,
    truediv,
)


def _axis(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _reduction(fn: Any) -> Any:
    def reduce(x: Any, axis: Any, keepdims: Any) -> Any:
        x = jnp.asarray(x)
        return fn(x, axis=_axis(axis), keepdims=bool(keepdims)).astype(x.dtype)

    return reduce


def _mean(x: Any, axis: Any, keepdims: Any) -> Any:
    return casts.mean(x, _axis(axis), bool(keepdims))


def _to(cast: Any, dtype: Any) -> Any:
    return lambda x: cast(x, dtypes.canonical(dtype))


def _of_dims(fn: Any) -> Any:
    def reduce(x: Any, axis: Any, keepdims: Any) -> Any:
        return fn(x, axis=_axis(axis), keepdims=bool(keepdims), dtype=np.asarray(x).dtype)

    return reduce


def _extreme_of_dims(fn: Any) -> Any:
    return lambda x, axis, keepdims: fn(x, axis=_axis(axis), keepdims=bool(keepdims))


def _matmul(a: Any, b: Any, transpose_a: Any, transpose_b: Any, adjoint_a: Any, adjoint_b: Any) -> Any:
    if min(jnp.ndim(a), jnp.ndim(b)) < 2:
        raise ValueError(f"Shape must be rank 2 but is rank {min(jnp.ndim(a), jnp.ndim(b))}")
    a = jnp.swapaxes(a, -1, -2) if transpose_a or adjoint_a else a
    b = jnp.swapaxes(b, -1, -2) if transpose_b or adjoint_b else b
    return jnp.matmul(jnp.conj(a) if adjoint_a else a, jnp.conj(b) if adjoint_b else b)


def _arg(fn: Any) -> Any:
    def index(x: Any, axis: Any, dtype: Any) -> Any:
        return fn(x, axis=0 if axis is None else axis).astype(dtype)

    return index


def _add_n(inputs: Any) -> Any:
    inputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    total = jnp.asarray(inputs[0])
    for item in inputs[1:]:
        total = total + item
    return total


def clipped_by_norm(x: Any, clip_norm: Any, axes: Any) -> Any:
    total = jnp.sum(jnp.square(x), axis=_axis(axes), keepdims=True)
    # The root has no gradient at 0.
    norm = jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), total)
    return x * clip_norm / subgradients.maximum(norm, clip_norm)


def _cumulated(fn: Any) -> Any:
    def cumulate(x: Any, axis: Any, exclusive: Any, reverse: Any) -> Any:
        x = jnp.flip(x, axis) if reverse else x
        found = fn(x, axis=axis)
        if exclusive:
            first = jnp.full_like(jax.lax.slice_in_dim(found, 0, 1, axis=axis), 1 if fn is jnp.cumprod else 0)
            rest = jax.lax.slice_in_dim(found, 0, found.shape[axis] - 1, axis=axis)
            found = jnp.concatenate([first, rest], axis=axis)
        return jnp.flip(found, axis) if reverse else found

    return cumulate


def _tensordot(a: Any, b: Any, axes: Any) -> Any:
    return jnp.tensordot(a, b, axes=axes if isinstance(axes, int) else tuple(map(_axis, axes)))


def _range(start: Any, limit: Any, delta: Any, dtype: Any) -> Any:
    start, limit = (0, start) if limit is None else (start, limit)
    return as_plain(np.arange(start, limit, delta), dtype)


def as_plain(array: Any, dtype: Any = None) -> Any:
    """Converts Python numbers to an array of the dtype that they have in a tensor."""
    return dtypes.narrowed(array, dtype or {"f": np.float32, "i": np.int32}[array.dtype.kind])


def _segments(fn: Any) -> Any:
    return lambda data, ids, num_segments: fn(data, ids, num_segments)


# A negative segment id means no segment.
_SEGMENTS = (Within("segment_ids", lambda data, segment_ids, num_segments: num_segments, drops_negative=True),)


def _segment_means(data: Any, ids: Any, num_segments: Any) -> Any:
    data, ids = jnp.asarray(data), jnp.asarray(ids)
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, num_segments)
    counts = jnp.maximum(counts, 1).reshape(-1, *(1,) * (data.ndim - ids.ndim))
    return jax.ops.segment_sum(data, ids, num_segments) / counts


@computed_by(_matmul, "MatMul")
def matmul(
    a: Any,
    b: Any,
    transpose_a: Plain = False,
    transpose_b: Plain = False,
    adjoint_a: Plain = False,
    adjoint_b: Plain = False,
    a_is_sparse: Unused = False,
    b_is_sparse: Unused = False,
    name: str | None = None,
) -> Any: ...


@computed_by(_tensordot)
def tensordot(a: Any, b: Any, axes: Static, name: str | None = None) -> Any: ...


@computed_by(_add_n)
def add_n(inputs: Listed, name: str | None = None) -> Any: ...


@computed_by(_add_n)
def accumulate_n(inputs: Listed, shape: Unused = None, tensor_dtype: Unused = None, name: str | None = None) -> Any: ...


@computed_by(casts.cast, earlier={"DstT": "dtype"}, twin=casts.cast_dims, before=casts.cut)
def cast(x: Any, dtype: Plain, name: str | None = None) -> Any: ...


@computed_by(
    _to(casts.cast, dtypes.float32),
    twin=_to(casts.cast_dims, dtypes.float32),
    before=lambda x: casts.cut(x, dtypes.float32),
)
def to_float(x: Any, name: str | None = None) -> Any: ...


@computed_by(
    _to(casts.cast, dtypes.float64),
    twin=_to(casts.cast_dims, dtypes.float64),
    before=lambda x: casts.cut(x, dtypes.float64),
)
def to_double(x: Any, name: str | None = None) -> Any: ...


@computed_by(
    _to(casts.cast, dtypes.int32), twin=_to(casts.cast_dims, dtypes.int32), before=lambda x: casts.cut(x, dtypes.int32)
)
def to_int32(x: Any, name: str | None = None) -> Any: ...


@computed_by(
    _to(casts.cast, dtypes.int64), twin=_to(casts.cast_dims, dtypes.int64), before=lambda x: casts.cut(x, dtypes.int64)
)
def to_int64(x: Any, name: str | None = None) -> Any: ...


@computed_by(casts.saturated)
def saturate_cast(value: Any, dtype: Plain, name: str | None = None) -> Any: ...


@computed_by(lambda t, low, high: subgradients.maximum(subgradients.minimum(t, high), low), "clip_by_value")
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any: ...


@computed_by(clipped_by_norm, "clip_by_norm")
def clip_by_norm(t: Any, clip_norm: Any, axes: Static = None, name: str | None = None) -> Any: ...


@computed_by(
    _reduction(jnp.sum), "Sum", earlier={"reduction_indices": "axis", "keep_dims": "keepdims"}, twin=_of_dims(np.sum)
)
def reduce_sum(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(_mean, "Mean", earlier={"reduction_indices": "axis", "keep_dims": "keepdims"})
def reduce_mean(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(
    _reduction(jnp.prod), "Prod", earlier={"reduction_indices": "axis", "keep_dims": "keepdims"}, twin=_of_dims(np.prod)
)
def reduce_prod(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(
    _reduction(jnp.max),
    "Max",
    earlier={"reduction_indices": "axis", "keep_dims": "keepdims"},
    twin=_extreme_of_dims(np.max),
)
def reduce_max(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(
    _reduction(jnp.min),
    "Min",
    earlier={"reduction_indices": "axis", "keep_dims": "keepdims"},
    twin=_extreme_of_dims(np.min),
)
def reduce_min(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(_reduction(jnp.all), "All", earlier={"reduction_indices": "axis", "keep_dims": "keepdims"})
def reduce_all(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(_reduction(jnp.any), "Any", earlier={"reduction_indices": "axis", "keep_dims": "keepdims"})
def reduce_any(input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None) -> Any: ...


@computed_by(
    _reduction(jax.scipy.special.logsumexp),
    "ReduceLogSumExp",
    earlier={"reduction_indices": "axis", "keep_dims": "keepdims"},
)
def reduce_logsumexp(
    input_tensor: Any, axis: Static = None, keepdims: Plain = None, name: str | None = None
) -> Any: ...


@computed_by(
    lambda x, axis, dimension, dtype: _arg(jnp.argmax)(x, dimension if axis is None else axis, dtype), "ArgMax"
)
def argmax(
    input: Any,
    axis: Static = None,
    name: str | None = None,
    dimension: Static = None,
    output_type: Plain = dtypes.int64,
) -> Any: ...


@computed_by(
    lambda x, axis, dimension, dtype: _arg(jnp.argmin)(x, dimension if axis is None else axis, dtype), "ArgMin"
)
def argmin(
    input: Any,
    axis: Static = None,
    name: str | None = None,
    dimension: Static = None,
    output_type: Plain = dtypes.int64,
) -> Any: ...


@computed_by(_cumulated(jnp.cumsum))
def cumsum(
    x: Any, axis: Static = 0, exclusive: Plain = False, reverse: Plain = False, name: str | None = None
) -> Any: ...


@computed_by(_cumulated(jnp.cumprod))
def cumprod(
    x: Any, axis: Static = 0, exclusive: Plain = False, reverse: Plain = False, name: str | None = None
) -> Any: ...


@computed_by(_segments(jax.ops.segment_sum), within=_SEGMENTS)
def unsorted_segment_sum(data: Any, segment_ids: Any, num_segments: Static, name: str | None = None) -> Any: ...


@computed_by(_segment_means, within=_SEGMENTS)
def unsorted_segment_mean(data: Any, segment_ids: Any, num_segments: Static, name: str | None = None) -> Any: ...


@computed_by(_segments(jax.ops.segment_min), within=_SEGMENTS)
def unsorted_segment_min(data: Any, segment_ids: Any, num_segments: Static, name: str | None = None) -> Any: ...


@computed_by(_segments(jax.ops.segment_max), within=_SEGMENTS)
def unsorted_segment_max(data: Any, segment_ids: Any, num_segments: Static, name: str | None = None) -> Any: ...


@computed_by(_range, "range", twin=_range)
def range(
    start: Static, limit: Static = None, delta: Static = 1, dtype: Plain = None, name: str | None = None
) -> Any: ...


@computed_by(jnp.linspace)
def lin_space(start: Any, stop: Any, num: Static, name: str | None = None) -> Any: ...


@computed_by(jnp.linspace, "LinSpace")
def linspace(start: Any, stop: Any, num: Static, name: str | None = None) -> Any: ...


@computed_by(lambda x: jnp.trace(x, axis1=-2, axis2=-1))
def trace(x: Any, name: str | None = None) -> Any: ...


PUBLIC = ops_in(globals())
__getattr__, __dir__ = offered("tf.math", lambda: PUBLIC)
