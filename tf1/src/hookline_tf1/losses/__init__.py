"""`tf.losses`: losses of a batch, weighted, reduced to a number, and collected in `GraphKeys.LOSSES`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hookline import GraphKeys, Tensor, constant, op
from hookline_tf1._machinery import subgradients
from hookline_tf1._machinery.graphs import get_collection
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import argument
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1.losses._weighting import (
    Reduction,
    add_loss,
    alike,
    beside,
    collected,
    elementwise,
    ratio,
    weighted_loss,
)
from hookline_tf1.nn import _cross_entropy

__all__ = [
    "Reduction",
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_loss",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "huber_loss",
    "log_loss",
    "mean_pairwise_squared_error",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]

__getattr__, __dir__ = offered("tf.losses", lambda: __all__)


_BY_NONZERO = Reduction.SUM_BY_NONZERO_WEIGHTS
_LOSSES = GraphKeys.LOSSES


def absolute_difference(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the absolute difference `|predictions - labels|`."""
    rule = elementwise(lambda labels, predictions: subgradients.absolute(predictions - labels))
    return weighted_loss(scope, "absolute_difference", rule, (labels, predictions), weights, loss_collection, reduction)


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the squared error `(predictions - labels) ** 2`."""
    rule = elementwise(lambda labels, predictions: jnp.square(predictions - labels))
    return weighted_loss(scope, "mean_squared_error", rule, (labels, predictions), weights, loss_collection, reduction)


def huber_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the Huber loss: quadratic up to `delta`, linear from there on."""
    rule = elementwise(lambda labels, predictions: optax.huber_loss(predictions, labels, delta=delta))
    return weighted_loss(scope, "huber_loss", rule, (labels, predictions), weights, loss_collection, reduction)


def log_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the binary cross entropy of probabilities."""
    rule = elementwise(
        lambda labels, predictions: (
            -labels * jnp.log(predictions + epsilon) - (1 - labels) * jnp.log(1 - predictions + epsilon)
        )
    )
    return weighted_loss(scope, "log_loss", rule, (labels, predictions), weights, loss_collection, reduction)


def hinge_loss(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the hinge loss `max(0, 1 - t * logits)`, where t is -1 or 1 for a label 0 or 1."""
    rule = elementwise(lambda labels, logits: jax.nn.relu(1 - (2 * labels - 1) * logits))
    return weighted_loss(scope, "hinge_loss", rule, (labels, logits), weights, loss_collection, reduction)


def cosine_distance(
    labels: Any,
    predictions: Any,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
    dim: int | None = None,
) -> Tensor:
    """Computes the cosine distance: 1 minus the product of unit vectors along `axis`."""
    along = dim if axis is None else axis
    if along is None:
        raise ValueError("cosine_distance requires axis, got None.")
    rule = elementwise(lambda labels, predictions: 1 - jnp.sum(predictions * labels, axis=along, keepdims=True))
    return weighted_loss(
        scope, "cosine_distance_loss", rule, (labels, predictions), weights, loss_collection, reduction
    )


def mean_pairwise_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
) -> Tensor:
    """Computes the mean squared error of the pairwise differences within each example."""

    def rule(labels: Any, predictions: Any, weights: Any) -> Any:
        labels, predictions = alike(labels, predictions)
        difference, weights = predictions - labels, jnp.asarray(weights, predictions.dtype)
        weights = weights.reshape(weights.shape + (1,) * (difference.ndim - weights.ndim if weights.ndim else 0))
        within = tuple(range(1, difference.ndim))

        def sums(values: Any) -> Any:
            return jnp.sum(jnp.broadcast_to(values, difference.shape), axis=within, keepdims=True)

        count = sums((weights != 0).astype(difference.dtype))
        squares = ratio(sums(difference**2), jnp.maximum(count - 1, 0))
        means = ratio(sums(difference) ** 2, jnp.maximum(count * (count - 1), 0))
        return jnp.sum(2 * (squares - means) * weights)

    label, inputs = "mean_pairwise_squared_error", [argument(item) for item in (labels, predictions, weights)]
    return collected(scope, label, lambda: op(rule, name="value").node(*inputs), loss_collection)


def sigmoid_cross_entropy(
    multi_class_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the sigmoid cross entropy."""

    def cross_entropy(labels: Any, logits: Any) -> Any:
        if label_smoothing > 0:
            labels = labels * (1 - label_smoothing) + 0.5 * label_smoothing
        return _cross_entropy.sigmoid_cross_entropy(labels, logits)

    rule, inputs = elementwise(cross_entropy), (multi_class_labels, logits)
    return weighted_loss(scope, "sigmoid_cross_entropy_loss", rule, inputs, weights, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the softmax cross entropy with one-hot labels."""

    def cross_entropy(labels: Any, logits: Any) -> Any:
        if label_smoothing > 0:
            labels = labels * (1 - label_smoothing) + label_smoothing / labels.shape[-1]
        return _cross_entropy.cross_entropy(jax.lax.stop_gradient(labels), logits, -1)

    rule, inputs = elementwise(cross_entropy), (onehot_labels, logits)
    return weighted_loss(scope, "softmax_cross_entropy_loss", rule, inputs, weights, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Computes the softmax cross entropy with integer labels."""

    def rule(labels: Any, logits: Any, weights: Any) -> tuple[Any, Any]:
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        if labels.ndim == logits.ndim and labels.shape[-1] == 1:
            labels = labels[..., 0]
        losses = _cross_entropy.sparse_cross_entropy(labels, logits)
        return losses, beside(weights, losses)

    label = "sparse_softmax_cross_entropy_loss"
    within = Within(
        "labels", lambda inputs, **_: index_bounds.shape(inputs[1])[-1], picked=lambda args: args["inputs"][0]
    )
    return weighted_loss(scope, label, rule, (labels, logits), weights, loss_collection, reduction, (within,))


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: str = _BY_NONZERO,
) -> Tensor:
    """Weights and reduces losses of your own."""

    def rule(losses: Any, weights: Any) -> tuple[Any, Any]:
        return jnp.asarray(losses), beside(weights, jnp.asarray(losses))

    return weighted_loss(scope, "weighted_loss", rule, (losses,), weights, loss_collection, reduction)


def get_losses(scope: str | None = None, loss_collection: str = _LOSSES) -> list[Tensor]:
    """Returns the losses made so far; with `scope`, only names that begin with it."""
    return get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Returns the regularization losses of variables."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """Sums the regularization losses of variables; 0 if there are none."""
    losses = get_regularization_losses(scope)
    return _sum(losses, name) if losses else constant(0.0, name=name)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Returns the sum of all losses made so far.

    Raises:
        ValueError: There are no losses.
    """
    losses = [*get_losses(scope), *(get_regularization_losses(scope) if add_regularization_losses else [])]
    if not losses:
        raise ValueError("get_total_loss: there is no loss in the collection; create one with tf.losses or add_loss.")
    return _sum(losses, name)


def _sum(losses: list[Tensor], name: str) -> Tensor:
    return op(lambda losses: functools.reduce(jnp.add, losses), name=name)(losses)
