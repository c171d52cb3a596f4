"""Confusion metrics: true and false positives and negatives, precision, recall, and the area under a curve."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import Tensor
from hookline_tf1.metrics._streaming import Collections, fitted, paired, ratio, streaming

_EPSILON = 1e-6
_AROUND = 1e-7
_NAMES = {
    "tp": "true_positives",
    "fp": "false_positives",
    "fn": "false_negatives",
    "tn": "true_negatives",
}


def true_positives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Counts true positives."""
    return _count("tp", labels, predictions, weights, metrics_collections, updates_collections, name)


def false_positives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Counts false positives."""
    return _count("fp", labels, predictions, weights, metrics_collections, updates_collections, name)


def false_negatives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Counts false negatives."""
    return _count("fn", labels, predictions, weights, metrics_collections, updates_collections, name)


def true_negatives(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Counts true negatives."""
    return _count("tn", labels, predictions, weights, metrics_collections, updates_collections, name)


def precision(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the precision: true positives over all predicted positives."""
    return _counted("precision", ("tp", "fp"), _share, (labels, predictions, weights), name,
                    metrics_collections, updates_collections, suffix="/count")  # fmt: skip


def recall(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the recall: true positives over all actual positives."""
    return _counted("recall", ("tp", "fn"), _share, (labels, predictions, weights), name,
                    metrics_collections, updates_collections, suffix="/count")  # fmt: skip


def precision_at_thresholds(
    labels: Any,
    predictions: Any,
    thresholds: Sequence[float],
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the precision at each threshold."""
    return _counted("precision_at_thresholds", ("tp", "fp"), _share_at, (labels, predictions, weights), name,
                    metrics_collections, updates_collections, thresholds=thresholds)  # fmt: skip


def recall_at_thresholds(
    labels: Any,
    predictions: Any,
    thresholds: Sequence[float],
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the recall at each threshold."""
    return _counted("recall_at_thresholds", ("tp", "fn"), _share_at, (labels, predictions, weights), name,
                    metrics_collections, updates_collections, thresholds=thresholds)  # fmt: skip


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the area under the ROC or precision-recall curve, from counts at many thresholds.

    Args:
        labels: The true labels, 0 or 1.
        predictions: Numbers between 0 and 1.
        weights: One number, or one for each prediction.
        num_thresholds: How many thresholds, evenly spaced.
        metrics_collections: Collections to add the value to.
        updates_collections: Collections to add the operation to.
        curve: `ROC`, or `PR` for precision over recall.
        name: The name scope.
        summation_method: `trapezoidal`, `careful_interpolation`, `minoring` or `majoring`.
        thresholds: Other thresholds, between 0 and 1.

    Raises:
        ValueError: The curve or method is unknown.
    """
    if curve not in ("ROC", "PR"):
        raise ValueError(f"tf.metrics.auc: the curve is 'ROC' or 'PR', got {curve!r}.")
    if summation_method not in ("trapezoidal", "careful_interpolation", "minoring", "majoring"):
        raise ValueError(f"tf.metrics.auc: there is no summation_method {summation_method!r}.")
    inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)] if thresholds is None else thresholds
    at = [-_AROUND, *sorted(inner), 1 + _AROUND]
    area = _interpolated if (curve, summation_method) == ("PR", "careful_interpolation") else _area
    value = functools.partial(area, curve == "ROC", summation_method)
    return _counted("auc", ("tp", "fn", "tn", "fp"), value, (labels, predictions, weights), name,
                    metrics_collections, updates_collections, thresholds=at)  # fmt: skip


def _area(roc: bool, method: str, tp: Any, fn: Any, tn: Any, fp: Any) -> Any:
    found = (tp + _EPSILON) / (tp + fn + _EPSILON)
    x, y = (fp / (fp + tn + _EPSILON), found) if roc else (found, (tp + _EPSILON) / (tp + fp + _EPSILON))
    left, right = y[:-1], y[1:]
    if method == "minoring":
        height = jnp.minimum(left, right)
    else:
        height = jnp.maximum(left, right) if method == "majoring" else (left + right) / 2
    return jnp.sum((x[:-1] - x[1:]) * height)


def _interpolated(roc: bool, method: str, tp: Any, fn: Any, tn: Any, fp: Any) -> Any:
    """Interpolates the area under the precision-recall curve, which bends between points (Davis et al., 2006)."""
    gained, positive = tp[:-1] - tp[1:], tp + fp
    slope = ratio(gained, positive[:-1] - positive[1:])
    start = tp[1:] - slope * positive[1:]
    both = (positive[:-1] > 0) & (positive[1:] > 0)
    growth = jnp.where(both, positive[:-1] / jnp.where(both, positive[1:], 1), 1)
    return jnp.sum(ratio(slope * (gained + start * jnp.log(growth)), tp[1:] + fn[1:]))


def _share(part: Any, rest: Any) -> Any:
    return ratio(part, part + rest)


def _share_at(part: Any, rest: Any) -> Any:
    return part / (part + rest + _AROUND)


def _count(which: str, labels: Any, predictions: Any, weights: Any, metrics: Any, updates: Any, name: Any) -> Any:
    measure = functools.partial(_outcomes, (which,), None)
    inputs = (labels, predictions, weights)
    return streaming(_NAMES[which], name, {"count": ()}, measure, inputs, lambda count: count, metrics, updates)


def _counted(
    label: str,
    which: tuple[str, ...],
    value: Callable[..., Any],
    inputs: tuple[Any, ...],
    name: str | None,
    metrics_collections: Collections,
    updates_collections: Collections,
    *,
    thresholds: Sequence[float] | None = None,
    suffix: str = "",
) -> tuple[Tensor, Tensor]:
    shape = () if thresholds is None else (len(thresholds),)
    sums = {_NAMES[kind] + suffix: shape for kind in which}
    measure = functools.partial(_outcomes, which, None if thresholds is None else tuple(thresholds))
    return streaming(label, name, sums, measure, inputs, value, metrics_collections, updates_collections)


def _outcomes(
    which: tuple[str, ...], thresholds: tuple[float, ...] | None, labels: Any, predictions: Any, weights: Any
) -> tuple[Any, ...]:
    """Counts true and false positives and negatives, at each threshold if thresholds are given."""
    labels, predictions = paired(labels, predictions)
    weights = jnp.broadcast_to(1.0 if weights is None else fitted(weights, predictions), predictions.shape)
    actual, weights = jnp.ravel(labels.astype(bool)), jnp.ravel(weights)
    if thresholds is None:
        predicted = jnp.ravel(predictions.astype(bool))
    else:
        predicted = jnp.ravel(predictions.astype(jnp.float32)) > jnp.asarray(thresholds, jnp.float32)[:, None]
    outcomes = {
        "tp": predicted & actual,
        "fp": predicted & ~actual,
        "fn": ~predicted & actual,
        "tn": ~predicted & ~actual,
    }
    return tuple(jnp.sum(outcomes[kind] * weights, axis=-1) for kind in which)
