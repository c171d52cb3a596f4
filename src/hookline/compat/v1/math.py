"""`tf.math` and the functions of arrays in `tf` itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.compat.v1._machinery import casts, dtypes, subgradients
from hookline.compat.v1._machinery.namespaces import offered
from hookline.compat.v1._machinery.op_table import functions, row
from hookline.compat.v1._rules.index_bounds import Divides, Within


def _divided(x: Any, y: Any) -> Any:
    """Division as Python 2 had it: whole numbers stay whole."""
    whole = jnp.issubdtype(jnp.result_type(x, y), jnp.integer)
    return jnp.floor_divide(x, y) if whole else jnp.true_divide(x, y)


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
    # The root of 0 has no gradient.
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
    """Returns an array of Python's numbers in the dtype that they have in a tensor."""
    return dtypes.narrowed(array, dtype or {"f": np.float32, "i": np.int32}[array.dtype.kind])


def _segments(fn: Any) -> Any:
    return lambda data, ids, num_segments: fn(data, ids, num_segments)


# A segment below 0 stands for none.
_SEGMENTS = (Within("segment_ids", lambda data, segment_ids, num_segments: num_segments, drops_negative=True),)


def _segment_means(data: Any, ids: Any, num_segments: Any) -> Any:
    data, ids = jnp.asarray(data), jnp.asarray(ids)
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, data.dtype), ids, num_segments)
    counts = jnp.maximum(counts, 1).reshape(-1, *(1,) * (data.ndim - ids.ndim))
    return jax.ops.segment_sum(data, ids, num_segments) / counts


def _elementwise(names: dict[str, Any]) -> list[Any]:
    return [row(name, "x, name=None", fn) for name, fn in names.items()]


_DIVIDING = ("div", "floordiv", "floor_div", "mod", "floormod")
_DIVISOR = (Divides("y", lambda x, y: x),)


def _binary(names: dict[str, tuple[Any, str, Any]]) -> list[Any]:
    return [
        row(name, "x, y, name=None", fn, op, twin=twin, within=_DIVISOR if name in _DIVIDING else ())
        for name, (fn, op, twin) in names.items()
    ]


_REDUCED = "input_tensor, @axis=None, -keepdims=None, name=None; reduction_indices=axis, keep_dims=keepdims"

TABLE = [
    *_elementwise(
        {
            "abs": subgradients.absolute,
            "acos": jnp.arccos,
            "acosh": jnp.arccosh,
            "asin": jnp.arcsin,
            "asinh": jnp.arcsinh,
            "atan": jnp.arctan,
            "atanh": jnp.arctanh,
            "ceil": jnp.ceil,
            "conj": jnp.conj,
            "cos": jnp.cos,
            "cosh": jnp.cosh,
            "digamma": jax.scipy.special.digamma,
            "erf": jax.scipy.special.erf,
            "erfc": jax.scipy.special.erfc,
            "exp": jnp.exp,
            "expm1": jnp.expm1,
            "floor": jnp.floor,
            "is_finite": jnp.isfinite,
            "is_inf": jnp.isinf,
            "is_nan": jnp.isnan,
            "lgamma": jax.scipy.special.gammaln,
            "log": jnp.log,
            "log1p": jnp.log1p,
            "log_sigmoid": jax.nn.log_sigmoid,
            "logical_not": jnp.logical_not,
            "reciprocal": jnp.reciprocal,
            "rint": jnp.rint,
            "rsqrt": jax.lax.rsqrt,
            "sigmoid": jax.nn.sigmoid,
            "sign": jnp.sign,
            "sin": jnp.sin,
            "sinh": jnp.sinh,
            "sqrt": jnp.sqrt,
            "square": jnp.square,
            "tan": jnp.tan,
            "tanh": jnp.tanh,
        }
    ),
    row("negative", "x, name=None", jnp.negative, "Neg", twin=lambda x: -x),
    row("round", "x, name=None", jnp.round),
    *_binary(
        {
            "add": (jnp.add, "Add", np.add),
            "subtract": (jnp.subtract, "Sub", np.subtract),
            "multiply": (jnp.multiply, "Mul", np.multiply),
            "divide": (jnp.true_divide, "truediv", None),
            "truediv": (jnp.true_divide, "truediv", None),
            "div": (_divided, "div", np.floor_divide),
            "div_no_nan": (lambda x, y: jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y)), "div_no_nan", None),
            "realdiv": (jnp.true_divide, "RealDiv", None),
            "floordiv": (jnp.floor_divide, "floordiv", np.floor_divide),
            "floor_div": (jnp.floor_divide, "FloorDiv", np.floor_divide),
            "mod": (jnp.mod, "FloorMod", np.mod),
            "floormod": (jnp.mod, "FloorMod", np.mod),
            "pow": (jnp.power, "Pow", None),
            "maximum": (subgradients.maximum, "Maximum", np.maximum),
            "minimum": (subgradients.minimum, "Minimum", np.minimum),
            "squared_difference": (lambda x, y: jnp.square(x - y), "SquaredDifference", None),
            "atan2": (jnp.arctan2, "Atan2", None),
            "equal": (jnp.equal, "Equal", None),
            "not_equal": (jnp.not_equal, "NotEqual", None),
            "less": (jnp.less, "Less", None),
            "less_equal": (jnp.less_equal, "LessEqual", None),
            "greater": (jnp.greater, "Greater", None),
            "greater_equal": (jnp.greater_equal, "GreaterEqual", None),
            "logical_and": (jnp.logical_and, "LogicalAnd", None),
            "logical_or": (jnp.logical_or, "LogicalOr", None),
            "logical_xor": (jnp.logical_xor, "LogicalXor", None),
        }
    ),
    row("matmul", "a, b, -transpose_a=False, -transpose_b=False, -adjoint_a=False, -adjoint_b=False, "
        "~a_is_sparse=False, ~b_is_sparse=False, name=None", _matmul, "MatMul"),
    row("tensordot", "a, b, @axes, name=None", _tensordot, "Tensordot"),
    row("add_n", "*inputs, name=None", _add_n, "AddN"),
    row("accumulate_n", "*inputs, ~shape=None, ~tensor_dtype=None, name=None", _add_n),
    row("cast", "x, -dtype, name=None; DstT=dtype", casts.cast, twin=casts.cast_dims,
        before=casts.cut),
    *[row(name, "x, name=None", _to(casts.cast, dtype), op, twin=_to(casts.cast_dims, dtype),
          before=lambda x, dtype=dtype: casts.cut(x, dtype))
      for name, op, dtype in [("to_float", "ToFloat", dtypes.float32), ("to_double", "ToDouble", dtypes.float64),
                              ("to_int32", "ToInt32", dtypes.int32), ("to_int64", "ToInt64", dtypes.int64)]],
    row("saturate_cast", "value, -dtype, name=None", casts.saturated),
    row("clip_by_value", "t, clip_value_min, clip_value_max, name=None",
        lambda t, low, high: subgradients.maximum(subgradients.minimum(t, high), low), "clip_by_value"),
    row("clip_by_norm", "t, clip_norm, @axes=None, name=None", clipped_by_norm, "clip_by_norm"),
    row("reduce_sum", _REDUCED,
        _reduction(jnp.sum), "Sum", twin=_of_dims(np.sum)),
    row("reduce_mean", _REDUCED,
        _mean, "Mean"),
    row("reduce_prod", _REDUCED,
        _reduction(jnp.prod), "Prod", twin=_of_dims(np.prod)),
    row("reduce_max", _REDUCED,
        _reduction(jnp.max), "Max", twin=_extreme_of_dims(np.max)),
    row("reduce_min", _REDUCED,
        _reduction(jnp.min), "Min", twin=_extreme_of_dims(np.min)),
    row("reduce_all", _REDUCED,
        _reduction(jnp.all), "All"),
    row("reduce_any", _REDUCED,
        _reduction(jnp.any), "Any"),
    row("reduce_logsumexp",
        _REDUCED,
        _reduction(jax.scipy.special.logsumexp), "ReduceLogSumExp"),
    row("argmax", "input, @axis=None, name=None, @dimension=None, -output_type=int64",
        lambda x, axis, dimension, dtype: _arg(jnp.argmax)(x, dimension if axis is None else axis, dtype), "ArgMax"),
    row("argmin", "input, @axis=None, name=None, @dimension=None, -output_type=int64",
        lambda x, axis, dimension, dtype: _arg(jnp.argmin)(x, dimension if axis is None else axis, dtype), "ArgMin"),
    row("cumsum", "x, @axis=0, -exclusive=False, -reverse=False, name=None", _cumulated(jnp.cumsum)),
    row("cumprod", "x, @axis=0, -exclusive=False, -reverse=False, name=None", _cumulated(jnp.cumprod)),
    row("unsorted_segment_sum", "data, segment_ids, @num_segments, name=None", _segments(jax.ops.segment_sum),
        within=_SEGMENTS),
    row("unsorted_segment_mean", "data, segment_ids, @num_segments, name=None", _segment_means,
        within=_SEGMENTS),
    row("unsorted_segment_min", "data, segment_ids, @num_segments, name=None", _segments(jax.ops.segment_min),
        within=_SEGMENTS),
    row("unsorted_segment_max", "data, segment_ids, @num_segments, name=None", _segments(jax.ops.segment_max),
        within=_SEGMENTS),
    row("range", "@start, @limit=None, @delta=1, -dtype=None, name=None", _range, "range", twin=_range),
    row("lin_space", "start, stop, @num, name=None", jnp.linspace, "LinSpace"),
    row("linspace", "start, stop, @num, name=None", jnp.linspace, "LinSpace"),
    row("trace", "x, name=None", lambda x: jnp.trace(x, axis1=-2, axis2=-1)),
]  # fmt: skip


FUNCTIONS = functions(TABLE)
globals().update(FUNCTIONS)

PUBLIC = [*FUNCTIONS]
__getattr__, __dir__ = offered("tf.math", lambda: PUBLIC)
