"""`tf.contrib.seq2seq`: the cross entropy of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline_tf1 import math, nn
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops

__all__ = ["sequence_loss"]

__getattr__, __dir__ = offered("tf.contrib.seq2seq", lambda: __all__)


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Computes the weighted cross entropy of sequences of classes.

    Args:
        logits: A number for each example, step and class.
        targets: The class of each example and step.
        weights: The weight of each example and step.
        average_across_timesteps: Whether to return the weighted mean over the steps.
        average_across_batch: Whether to return the weighted mean over the examples.
        sum_over_timesteps: Whether to sum over the steps, divided by the number of steps with a weight.
        sum_over_batch: Likewise over the examples.
        softmax_loss_function: `fn(labels=..., logits=...)` instead of the cross entropy, called with flat arguments.
        name: Name scope of the operations.

    Raises:
        ValueError: Both a mean and a sum over the same dimension are requested, or a rank is wrong.
    """
    logits, targets, weights = map(convert_to_tensor, (logits, targets, weights))
    for what, tensor, rank in (("logits", logits, 3), ("targets", targets, 2), ("weights", weights, 2)):
        if tensor.shape.ndims not in (None, rank):
            raise ValueError(f"sequence_loss: {what} must have {rank} dimensions, got the shape {tensor.shape}.")
    if (average_across_timesteps and sum_over_timesteps) or (average_across_batch and sum_over_batch):
        raise ValueError("sequence_loss: either the mean or the sum over the steps, and over the batch, not both.")
    loss_fn = softmax_loss_function or nn.sparse_softmax_cross_entropy_with_logits
    reshape, add = array_ops.reshape, math.reduce_sum
    mean_over = [axis for axis, is_mean in enumerate((average_across_batch, average_across_timesteps)) if is_mean]
    sum_over = [axis for axis, is_sum in enumerate((sum_over_batch, sum_over_timesteps)) if is_sum]
    with name_scope(name, "sequence_loss"):
        flat = reshape(logits, [-1, array_ops.shape(logits)[2]])
        found = loss_fn(labels=reshape(targets, [-1]), logits=flat) * reshape(weights, [-1])
        found = reshape(found, array_ops.shape(logits)[:2])
        if mean_over:
            return _ratio(add(found, mean_over), add(weights, mean_over))
        if sum_over:
            some = math.cast(math.not_equal(weights, 0), found.dtype)
            return _ratio(add(found, sum_over), add(some, sum_over))
        return found


def _ratio(total: Any, count: Any) -> Any:
    return math.div_no_nan(total, count)
