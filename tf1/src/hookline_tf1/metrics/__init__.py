"""`tf.metrics`: means over many batches. Each function returns the value and an operation that adds a batch to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import Tensor
from hookline.extend import specs
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.metrics._confusion import (
    auc,
    false_negatives,
    false_positives,
    precision,
    precision_at_thresholds,
    recall,
    recall_at_thresholds,
    true_negatives,
    true_positives,
)
from hookline_tf1.metrics._streaming import Collections, fitted, mean_of, paired, ratio, streaming

__all__ = [
    "accuracy",
    "auc",
    "false_negatives",
    "false_positives",
    "mean",
    "mean_absolute_error",
    "mean_cosine_distance",
    "mean_iou",
    "mean_per_class_accuracy",
    "mean_relative_error",
    "mean_squared_error",
    "mean_tensor",
    "percentage_below",
    "precision",
    "precision_at_thresholds",
    "recall",
    "recall_at_thresholds",
    "root_mean_squared_error",
    "true_negatives",
    "true_positives",
]

__getattr__, __dir__ = offered("tf.metrics", lambda: __all__)

Metric = tuple[Tensor, Tensor]
"""The value, and the operation that adds a batch and returns the new value."""


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the weighted mean of all values so far."""
    return _mean("mean", lambda values: values, (values,), weights, metrics_collections, updates_collections, name)


def accuracy(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the accuracy: the fraction of correct predictions."""
    return _compared("accuracy", _equal, labels, predictions, weights, metrics_collections, updates_collections, name)


def mean_absolute_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean absolute error."""
    return _compared(
        "mean_absolute_error", lambda labels, predictions: jnp.abs(predictions - labels), labels, predictions, weights,
        metrics_collections, updates_collections, name,
    )  # fmt: skip


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean squared error."""
    return _compared(
        "mean_squared_error", _squared, labels, predictions, weights, metrics_collections, updates_collections, name
    )


def root_mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the root mean squared error."""
    return _compared(
        "root_mean_squared_error", _squared, labels, predictions, weights, metrics_collections, updates_collections,
        name, value=lambda total, count: jnp.sqrt(ratio(total, count)),
    )  # fmt: skip


def mean_relative_error(
    labels: Any,
    predictions: Any,
    normalizer: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean relative error `|labels - predictions| / normalizer`; 0 where the normalizer is 0."""

    def errors(labels: Any, predictions: Any, normalizer: Any) -> Any:
        labels, predictions = paired(labels, predictions)
        return jnp.where(normalizer == 0, 0, jnp.abs(labels - predictions) / jnp.where(normalizer == 0, 1, normalizer))

    inputs = (labels, predictions, normalizer)
    return _mean("mean_relative_error", errors, inputs, weights, metrics_collections, updates_collections, name)


def mean_cosine_distance(
    labels: Any,
    predictions: Any,
    dim: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean cosine distance of vectors along `dim`."""

    def products(labels: Any, predictions: Any) -> Any:
        labels, predictions = paired(labels, predictions)
        return jnp.sum(labels * predictions, axis=dim, keepdims=True)

    return _mean(
        "mean_cosine_distance", products, (labels, predictions), weights, metrics_collections, updates_collections,
        name, value=lambda total, count: 1 - ratio(total, count),
    )  # fmt: skip


def percentage_below(
    values: Any,
    threshold: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the fraction of values below a threshold."""
    inputs = (values, threshold)
    return _mean(
        "percentage_below_threshold", jnp.less, inputs, weights, metrics_collections, updates_collections, name
    )


def mean_tensor(
    values: Any,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean of each element over all batches.

    Raises:
        ValueError: The shape of the values is unknown.
    """
    shape = specs.open_shape(values.spec) if isinstance(values, Tensor) else jnp.shape(values)
    if shape is None or None in shape:
        raise ValueError(f"tf.metrics.mean_tensor requires values of a known shape, got {shape}.")

    whole = tuple(dim for dim in shape if dim is not None)

    def measure(values: Any, weights: Any) -> tuple[Any, Any]:
        values = jnp.asarray(values, jnp.float32)
        weights = jnp.broadcast_to(1.0 if weights is None else fitted(weights, values), values.shape)
        return values * weights, weights

    return streaming("mean", name, {"total_tensor": whole, "count_tensor": whole}, measure, (values, weights), ratio,
                     metrics_collections, updates_collections)  # fmt: skip


def mean_per_class_accuracy(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean accuracy per class; the update operation returns the accuracy of each class."""

    def measure(labels: Any, predictions: Any, weights: Any) -> tuple[Any, Any]:
        labels, predictions = paired(jnp.ravel(labels), jnp.ravel(predictions))
        weights = jnp.broadcast_to(
            1.0 if weights is None else jnp.ravel(jnp.asarray(weights, jnp.float32)), labels.shape
        )
        zeros = jnp.zeros(num_classes)
        found = zeros.at[labels].add(weights * _equal(labels, predictions))
        return zeros.at[labels].add(weights), found

    return streaming(
        "mean_accuracy", name, {"total": (num_classes,), "count": (num_classes,)}, measure,
        (labels, predictions, weights), lambda total, count: jnp.mean(ratio(count, total)), metrics_collections,
        updates_collections, after=lambda total, count: ratio(count, total), classes={"labels": num_classes},
    )  # fmt: skip


def mean_iou(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Computes the mean intersection over union, over the classes that occurred."""

    def measure(labels: Any, predictions: Any, weights: Any) -> tuple[Any]:
        weights = 1.0 if weights is None else jnp.ravel(jnp.asarray(weights, jnp.float32))
        zeros = jnp.zeros((num_classes, num_classes))
        return (zeros.at[jnp.ravel(labels), jnp.ravel(predictions)].add(weights),)

    def value(confusion: Any) -> Any:
        both = jnp.diagonal(confusion)
        either = jnp.sum(confusion, 0) + jnp.sum(confusion, 1) - both
        return ratio(jnp.sum(ratio(both, either)), jnp.sum((either != 0).astype(jnp.float32)))

    shape = (num_classes, num_classes)
    return streaming("mean_iou", name, {"total_confusion_matrix": shape}, measure, (labels, predictions, weights),
                     value, metrics_collections, updates_collections, after=lambda confusion: confusion,
                     classes={"labels": num_classes, "predictions": num_classes})  # fmt: skip


def _equal(labels: Any, predictions: Any) -> Any:
    return (predictions.astype(labels.dtype) == labels).astype(jnp.float32)


def _squared(labels: Any, predictions: Any) -> Any:
    return jnp.square(predictions - labels)


def _compared(
    label: str, compare: Callable[[Any, Any], Any], labels: Any, predictions: Any, *rest: Any, **more: Any
) -> Metric:
    return _mean(label, lambda *pair: compare(*paired(*pair)), (labels, predictions), *rest, **more)


def _mean(
    label: str,
    values_of: Callable[..., Any],
    inputs: Sequence[Any],
    weights: Any,
    metrics_collections: Collections,
    updates_collections: Collections,
    name: str | None,
    value: Callable[[Any, Any], Any] = ratio,
) -> Metric:
    """Computes the mean of `values_of(*inputs)` over batches."""
    measure = functools.partial(_measured, values_of)
    return streaming(label, name, {"total": (), "count": ()}, measure, (*inputs, weights), value, metrics_collections,
                     updates_collections)  # fmt: skip


def _measured(values_of: Callable[..., Any], *inputs: Any) -> tuple[Any, Any]:
    return mean_of(values_of(*(jnp.asarray(value) for value in inputs[:-1])), inputs[-1])
