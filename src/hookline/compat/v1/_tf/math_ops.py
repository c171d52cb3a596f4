"""Functions that scripts rarely need: of counting, of ordering, and those with names of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special

from hookline.compat.v1._machinery import dtypes
from hookline.compat.v1._machinery.graphs import control_dependencies
from hookline.compat.v1._machinery.nodes import convert_to_tensor
from hookline.compat.v1._machinery.op_table import functions, row
from hookline.compat.v1._rules import index_bounds
from hookline.compat.v1._rules.index_bounds import Divides, Within
from hookline.compat.v1._tf import check_ops

_assert_at_least_0, _assert_less = check_ops.PUBLIC["assert_non_negative"], check_ops.PUBLIC["assert_less"]


def _nonzero(x: Any, axis: Any, keepdims: Any, dtype: Any, indices: Any) -> Any:
    axis = indices if axis is None else axis
    axis = tuple(axis) if isinstance(axis, list) else axis
    return jnp.sum(jnp.asarray(x) != 0, axis=axis, keepdims=bool(keepdims)).astype(dtype)


def _confusion(labels: Any, predictions: Any, classes: Any, dtype: Any, weights: Any) -> Any:
    counted = jnp.ones((), dtype) if weights is None else jnp.asarray(weights).astype(dtype)
    places = tuple(jnp.ravel(jnp.asarray(given)).astype(int) for given in (labels, predictions))
    return jnp.zeros((int(classes), int(classes)), dtype).at[places].add(counted)


def _bins(values: Any, limits: Any, bins: Any, dtype: Any) -> Any:
    low, high = limits[0], limits[1]
    places = jnp.clip(jnp.floor((jnp.ravel(values) - low) / (high - low) * bins), 0, bins - 1).astype(int)
    return jnp.zeros(int(bins), dtype).at[places].add(1)


def _sorted(values: Any, axis: Any, direction: Any) -> Any:
    return jnp.take_along_axis(values, _order(values, axis, direction), axis)


def _order(values: Any, axis: Any, direction: Any) -> Any:
    return jnp.argsort(values, axis=axis, descending=_descends(direction), stable=True).astype(jnp.int32)


def _descends(direction: Any) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction requires 'ASCENDING' or 'DESCENDING', got {direction!r}.")
    return direction == "DESCENDING"


def _inverse(places: Any) -> Any:
    count = jnp.arange(places.shape[0], dtype=places.dtype)
    return jnp.zeros_like(places).at[places].set(count)


def _quotient(x: Any, y: Any) -> Any:
    dtype = jnp.result_type(x, y)
    x, y = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    # XLA divides constants when it compiles, and the process dies of a whole 0.
    return jax.lax.div(x, jnp.where(y == 0, 1, y) if jnp.issubdtype(dtype, jnp.integer) else y)


def _clipped(t: Any, limit: Any) -> Any:
    average = jnp.sqrt(jnp.sum(jnp.square(t))) / t.size
    return t * limit / jnp.maximum(average, limit)


def _log_beta(x: Any) -> Any:
    return jnp.sum(special.gammaln(x), axis=-1) - special.gammaln(jnp.sum(x, axis=-1))


TABLE = [
    row("argsort", "values, @axis=-1, -direction='ASCENDING', ~stable=False, name=None", _order, "argsort"),
    row("clip_by_average_norm", "t, clip_norm, name=None", _clipped, "clip_by_average_norm"),
    row("confusion_matrix", "labels, predictions, @num_classes, -dtype=int32, name=None, weights=None",
        _confusion, "confusion_matrix"),
    row("count_nonzero", "input_tensor, @axis=None, -keepdims=None, -dtype=int64, name=None, @reduction_indices=None; "
        "keep_dims=keepdims", _nonzero, "count_nonzero"),
    row("cross", "a, b, name=None", lambda a, b: jnp.cross(a, b)),
    row("histogram_fixed_width", "values, value_range, @nbins=100, -dtype=int32, name=None", _bins,
        "histogram_fixed_width"),
    row("igamma", "a, x, name=None", special.gammainc),
    row("igammac", "a, x, name=None", special.gammaincc),
    row("invert_permutation", "x, name=None", _inverse, within=(Within("x", lambda x: index_bounds.shape(x)[0]),)),
    row("lbeta", "x, name=None", _log_beta, "lbeta"),
    row("roll", "input, @shift, @axis, name=None", lambda x, shift, axis: jnp.roll(x, shift, axis)),
    row("scalar_mul", "scalar, x, name=None", lambda scalar, x: scalar * x, "mul"),
    row("sort", "values, @axis=-1, -direction='ASCENDING', name=None", _sorted, "sort"),
    row("truncatediv", "x, y, name=None", _quotient, "TruncateDiv",
        within=(Divides("y", lambda x, y: x),)),
]  # fmt: skip

FUNCTIONS = functions(TABLE)


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    dtype: Any = dtypes.int32,
    name: str | None = None,
    weights: Any = None,
) -> Any:
    """`tf.confusion_matrix`. As there, a class that is not among them is an error of the run."""
    if num_classes is None:
        raise ValueError("tf.confusion_matrix requires num_classes: XLA has to know the shape of the result.")
    classes = [convert_to_tensor(given) for given in (labels, predictions)]
    known = [check for given in classes for check in (_assert_at_least_0(given), _assert_less(given, num_classes))]
    with control_dependencies(known):
        return FUNCTIONS["confusion_matrix"](*classes, num_classes, dtype, name, weights)


PUBLIC = {**FUNCTIONS, "confusion_matrix": confusion_matrix}
