"""Functions of `tf` that scripts rarely need: counting, sorting, and special functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special

from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import control_dependencies
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._machinery.op_definitions import Plain, Static, Unused, computed_by, ops_in
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Divides, Within
from hookline_tf1._tf import check_ops


def _nonzero(x: Any, axis: Any, keepdims: Any, dtype: Any, indices: Any) -> Any:
    axis = indices if axis is None else axis
    axis = tuple(axis) if isinstance(axis, list) else axis
    return jnp.sum(jnp.asarray(x) != 0, axis=axis, keepdims=bool(keepdims)).astype(dtype)


def _confusion(labels: Any, predictions: Any, classes: Any, dtype: Any, weights: Any) -> Any:
    counted = jnp.ones((), dtype) if weights is None else jnp.asarray(weights).astype(dtype)
    indices = tuple(jnp.ravel(jnp.asarray(given)).astype(int) for given in (labels, predictions))
    return jnp.zeros((int(classes), int(classes)), dtype).at[indices].add(counted)


def _bins(values: Any, limits: Any, bins: Any, dtype: Any) -> Any:
    low, high = limits[0], limits[1]
    indices = jnp.clip(jnp.floor((jnp.ravel(values) - low) / (high - low) * bins), 0, bins - 1).astype(int)
    return jnp.zeros(int(bins), dtype).at[indices].add(1)


def _sorted(values: Any, axis: Any, direction: Any) -> Any:
    return jnp.take_along_axis(values, _order(values, axis, direction), axis)


def _order(values: Any, axis: Any, direction: Any) -> Any:
    return jnp.argsort(values, axis=axis, descending=_descends(direction), stable=True).astype(jnp.int32)


def _descends(direction: Any) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction requires 'ASCENDING' or 'DESCENDING', got {direction!r}.")
    return direction == "DESCENDING"


def _inverse(indices: Any) -> Any:
    count = jnp.arange(indices.shape[0], dtype=indices.dtype)
    return jnp.zeros_like(indices).at[indices].set(count)


def _quotient(x: Any, y: Any) -> Any:
    dtype = jnp.result_type(x, y)
    x, y = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    # XLA folds divisions of constants, and an integer division by 0 would kill the process.
    return jax.lax.div(x, jnp.where(y == 0, 1, y) if jnp.issubdtype(dtype, jnp.integer) else y)


def _clipped(t: Any, limit: Any) -> Any:
    average = jnp.sqrt(jnp.sum(jnp.square(t))) / t.size
    return t * limit / jnp.maximum(average, limit)


def _log_beta(x: Any) -> Any:
    return jnp.sum(special.gammaln(x), axis=-1) - special.gammaln(jnp.sum(x, axis=-1))


@computed_by(_order, "argsort")
def argsort(
    values: Any, axis: Static = -1, direction: Plain = "ASCENDING", stable: Unused = False, name: str | None = None
) -> Any: ...


@computed_by(_clipped, "clip_by_average_norm")
def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None) -> Any: ...


@computed_by(_confusion, "confusion_matrix")
def _confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Static,
    dtype: Plain = dtypes.int32,
    name: str | None = None,
    weights: Any = None,
) -> Any: ...


@computed_by(_nonzero, "count_nonzero", earlier={"keep_dims": "keepdims"})
def count_nonzero(
    input_tensor: Any,
    axis: Static = None,
    keepdims: Plain = None,
    dtype: Plain = dtypes.int64,
    name: str | None = None,
    reduction_indices: Static = None,
) -> Any: ...


@computed_by(lambda a, b: jnp.cross(a, b))
def cross(a: Any, b: Any, name: str | None = None) -> Any: ...


@computed_by(_bins, "histogram_fixed_width")
def histogram_fixed_width(
    values: Any, value_range: Any, nbins: Static = 100, dtype: Plain = dtypes.int32, name: str | None = None
) -> Any: ...


@computed_by(special.gammainc)
def igamma(a: Any, x: Any, name: str | None = None) -> Any: ...


@computed_by(special.gammaincc)
def igammac(a: Any, x: Any, name: str | None = None) -> Any: ...


@computed_by(_inverse, within=(Within("x", lambda x: index_bounds.shape(x)[0]),))
def invert_permutation(x: Any, name: str | None = None) -> Any: ...


@computed_by(_log_beta, "lbeta")
def lbeta(x: Any, name: str | None = None) -> Any: ...


@computed_by(lambda x, shift, axis: jnp.roll(x, shift, axis))
def roll(input: Any, shift: Static, axis: Static, name: str | None = None) -> Any: ...


@computed_by(lambda scalar, x: scalar * x, "mul")
def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any: ...


@computed_by(_sorted, "sort")
def sort(values: Any, axis: Static = -1, direction: Plain = "ASCENDING", name: str | None = None) -> Any: ...


@computed_by(_quotient, "TruncateDiv", within=(Divides("y", lambda x, y: x),))
def truncatediv(x: Any, y: Any, name: str | None = None) -> Any: ...


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    dtype: Any = dtypes.int32,
    name: str | None = None,
    weights: Any = None,
) -> Any:
    """`tf.confusion_matrix`. A class out of range is an error of the run."""
    if num_classes is None:
        raise ValueError("tf.confusion_matrix requires num_classes: XLA has to know the shape of the result.")
    labels, predictions = convert_to_tensor(labels), convert_to_tensor(predictions)
    known = [
        check
        for given in (labels, predictions)
        for check in (check_ops.assert_non_negative(given), check_ops.assert_less(given, num_classes))
    ]
    with control_dependencies(known):
        return _confusion_matrix(labels, predictions, num_classes, dtype, name, weights)


PUBLIC = [*ops_in(globals()), "confusion_matrix"]
