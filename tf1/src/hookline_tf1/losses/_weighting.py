"""Weights, reduces and collects losses, for all of `tf.losses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from hookline import GraphKeys, Tensor
from hookline_tf1._machinery.graphs import add_to_collection, get_default_graph
from hookline_tf1._machinery.nodes import argument, node
from hookline_tf1._rules.index_bounds import Within


class Reduction:
    """The reduction of a batch of losses to one number."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS = SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Returns all reductions."""
        return cls.NONE, cls.SUM, cls.MEAN, cls.SUM_BY_NONZERO_WEIGHTS, cls.SUM_OVER_BATCH_SIZE

    @classmethod
    def validate(cls, key: str) -> None:
        """Raises `ValueError` for anything else."""
        if key not in cls.all():
            raise ValueError(f"tf.losses: reduction is one of {', '.join(cls.all())}, got {key!r}.")


def add_loss(loss: Tensor, loss_collection: str | None = GraphKeys.LOSSES) -> None:
    """Adds a loss of your own to the losses that `get_total_loss` sums."""
    if loss_collection:
        add_to_collection(loss_collection, loss)


Rule = Callable[..., tuple[Any, Any]]
"""Takes the inputs and the weights; returns the losses and their weights."""


def weighted_loss(
    scope: str | None,
    label: str,
    rule: Rule,
    inputs: tuple[Any, ...],
    weights: Any,
    loss_collection: str | None,
    reduction: str,
    within: tuple[Within, ...] = (),
) -> Tensor:
    """Computes a loss by a rule, weights, reduces and collects it.

    Args:
        scope: The name scope; `label` if None.
        label: The name of the loss.
        rule: `rule(*inputs, weights)` returns the unreduced losses and their weights.
        inputs: The arguments of the rule.
        weights: One number, or one for each loss.
        loss_collection: The collection to add the loss to.
        reduction: One of `Reduction`.
        within: The bounds of inputs that are indices; their arguments are `inputs` and `weights`.
    """
    Reduction.validate(reduction)
    if any(given is None for given in (*inputs, weights)):
        raise ValueError(f"tf.losses: {label} requires labels, predictions (or logits) and weights; one is None.")

    def value(inputs: tuple[Any, ...], weights: Any) -> Any:
        losses, weights = rule(*inputs, jnp.asarray(weights))
        dtype = losses.dtype
        losses, weights = losses.astype(jnp.float32), weights.astype(jnp.float32)
        return _reduced(losses, weights, reduction).astype(dtype)

    given = {"inputs": tuple(argument(item) for item in inputs), "weights": argument(weights)}
    return collected(scope, label, lambda: node(value, "value", given, kind=label, within=within), loss_collection)


def collected(scope: str | None, label: str, make: Callable[[], Tensor], loss_collection: str | None) -> Tensor:
    """Creates a loss in its name scope, adds it to a collection and returns it."""
    with get_default_graph().name_scope(scope or label):
        loss = make()
    add_loss(loss, loss_collection)
    return loss


def elementwise(losses_of: Callable[[Any, Any], Any]) -> Rule:
    """Returns a rule that computes losses from labels and predictions of one shape and dtype."""

    def rule(labels: Any, predictions: Any, weights: Any) -> tuple[Any, Any]:
        labels, predictions = alike(labels, predictions)
        losses = losses_of(labels, predictions)
        return losses, beside(weights, losses)

    return rule


def alike(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Casts labels to the dtype of predictions; their shapes must be the same."""
    predictions = jnp.asarray(predictions)
    if not jnp.issubdtype(predictions.dtype, jnp.floating):
        predictions = predictions.astype(jnp.float32)
    labels = jnp.asarray(labels).astype(predictions.dtype)
    if labels.shape != predictions.shape:
        raise ValueError(
            f"tf.losses: the shapes {labels.shape} of labels and {predictions.shape} of predictions differ."
        )
    return labels, predictions


def beside(weights: Any, losses: Any) -> Any:
    """Returns weights that broadcast with the losses: of the same rank, or one number."""
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    elif weights.ndim and weights.ndim == losses.ndim - 1 and losses.shape[-1] == 1:
        weights = weights[..., None]
    fits = not weights.ndim or (
        weights.ndim == losses.ndim and all(w in (1, n) for w, n in zip(weights.shape, losses.shape, strict=True))
    )
    if not fits:
        raise ValueError(f"tf.losses: weights of shape {weights.shape} do not fit losses of shape {losses.shape}.")
    return weights


def _reduced(losses: Any, weights: Any, reduction: str) -> Any:
    weighted = losses * weights
    if reduction == Reduction.NONE:
        return weighted
    total = jnp.sum(weighted)
    if reduction == Reduction.MEAN:
        return ratio(total, jnp.sum(jnp.broadcast_to(weights, losses.shape)))
    if reduction == Reduction.SUM_BY_NONZERO_WEIGHTS:
        return ratio(total, jnp.sum(jnp.broadcast_to(weights != 0, losses.shape).astype(losses.dtype)))
    return total if reduction == Reduction.SUM else jnp.mean(weighted)


def ratio(total: Any, count: Any) -> Any:
    """Computes `total / count`; where the count is 0, the result and its gradient are 0."""
    return jnp.where(count == 0, 0, total / jnp.where(count == 0, 1, count))
