"""Streaming metrics: sums in local variables, an update that adds a batch, and a value from the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from hookline import GraphKeys, Tensor, Variable, op, update
from hookline_tf1._machinery.graphs import add_to_collection, get_default_graph
from hookline_tf1._machinery.nodes import argument, node
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._rules.static_arguments import in_order

Collections = Iterable[str] | None


def streaming(
    label: str,
    name: str | None,
    sums: Mapping[str, tuple[int, ...]],
    measure: Callable[..., tuple[Any, ...]],
    inputs: tuple[Any, ...],
    value: Callable[..., Any],
    metrics_collections: Collections,
    updates_collections: Collections,
    after: Callable[..., Any] | None = None,
    classes: Mapping[str, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the value of a metric, and an operation that adds a batch and returns the new value.

    Args:
        label: The name of the metric.
        name: The name scope; by default `label`.
        sums: The names and shapes of the variables.
        measure: `measure(*inputs)` returns the amounts that a batch adds to the variables.
        inputs: Labels, predictions, weights and the like.
        value: `value(*sums)` returns the metric.
        metrics_collections: Collections to add the value to.
        updates_collections: Collections to add the operation to.
        after: The result of the update operation; by default the value.
        classes: The number of classes, by the names of the first inputs, which hold class indices.

    References:
        The functions of `tf.metrics`. A run that fetches both returns the value from before the run.
    """
    with get_default_graph().name_scope(name or label):
        variables = tuple(local_sum(shape, name) for name, shape in sums.items())
        given = [argument(value) for value in inputs]
        classes = classes or {}
        names = [*classes, *(f"input_{i}" for i in range(len(classes), len(given)))]
        within = tuple(Within(name, lambda count=count, **_: count) for name, count in classes.items())
        batch = node(in_order(measure), "batch", dict(zip(names, given, strict=True)), within=within)
        result = op(value, name="value")(*variables)
        added = update(variables, _added, batch, name="assign_add")
        update_op = op(lambda sums: (after or value)(*sums), name="update_op")(added)
    for collections, tensor in ((metrics_collections, result), (updates_collections, update_op)):
        for collection in collections or ():
            add_to_collection(collection, tensor)
    return result, update_op


def local_sum(shape: tuple[int, ...], name: str, dtype: Any = jnp.float32) -> Variable:
    """Creates a local variable of a metric, which starts at zero."""
    keys = [GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES]
    return Variable(lambda: jnp.zeros(shape, dtype), name=name, trainable=False, collections=keys)


def mean_of(values: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the weighted sum of values, and the sum of their weights."""
    values = jnp.asarray(values, jnp.float32)
    if weights is None:
        return jnp.sum(values), jnp.asarray(values.size, jnp.float32)
    weights = jnp.broadcast_to(fitted(weights, values), values.shape)
    return jnp.sum(values * weights), jnp.sum(weights)


def paired(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Squeezes a last dimension of 1 that only labels or predictions have; returns both.

    Raises:
        ValueError: Their shapes differ.
    """
    labels, predictions = jnp.asarray(labels), jnp.asarray(predictions)
    if labels.ndim == predictions.ndim + 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    elif predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions[..., 0]
    if labels.shape != predictions.shape:
        raise ValueError(f"tf.metrics: labels of shape {labels.shape} and predictions of {predictions.shape} differ.")
    return labels, predictions


def fitted(weights: Any, values: Any) -> Any:
    """Converts weights to float32 of the values' rank, or to one number."""
    weights = jnp.asarray(weights, jnp.float32)
    if weights.ndim == values.ndim + 1 and weights.shape[-1] == 1:
        return weights[..., 0]
    return weights[..., None] if weights.ndim and weights.ndim == values.ndim - 1 else weights


def ratio(part: Any, whole: Any) -> Any:
    """Computes `part / whole`, or 0 where `whole` is not positive."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)


def _added(sums: tuple[Any, ...], batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(old + new.astype(old.dtype) for old, new in zip(sums, batch, strict=True))
