"""`tf.contrib.losses`, which is also `slim.losses`: the losses of `tf.losses`, with the predictions first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline_tf1 import losses
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.losses._weighting import add_loss

__all__ = [
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "log_loss",
    "mean_pairwise_squared_error",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
    "sum_of_squares",
]

__getattr__, __dir__ = offered("tf.contrib.losses", lambda: __all__)

get_losses = losses.get_losses
get_regularization_losses = losses.get_regularization_losses


def _turned(name: str, loss: Callable[..., Any]) -> Callable[..., Any]:
    def made(predictions: Any, labels: Any, weights: Any = 1.0, scope: Any = None) -> Any:
        return loss(labels, predictions, weights, scope=scope)

    made.__name__, made.__doc__ = name, f"`tf.losses.{loss.__name__}`, with the predictions first."
    return made


absolute_difference = _turned("absolute_difference", losses.absolute_difference)
mean_squared_error = sum_of_squares = _turned("mean_squared_error", losses.mean_squared_error)
mean_pairwise_squared_error = _turned("mean_pairwise_squared_error", losses.mean_pairwise_squared_error)


def log_loss(predictions: Any, labels: Any = None, weights: Any = 1.0, epsilon: float = 1e-7, scope: Any = None) -> Any:
    """`tf.losses.log_loss`, with the predictions first."""
    return losses.log_loss(labels, predictions, weights, epsilon, scope)


def hinge_loss(logits: Any, labels: Any = None, scope: Any = None) -> Any:
    """Computes the hinge loss of each element, without weights and collections."""
    return losses.hinge_loss(labels, logits, 1.0, scope, None, losses.Reduction.NONE)


def cosine_distance(
    predictions: Any, labels: Any = None, axis: Any = None, weights: Any = 1.0, scope: Any = None, dim: Any = None
) -> Any:
    """`tf.losses.cosine_distance`, with the predictions first."""
    return losses.cosine_distance(labels, predictions, dim if axis is None else axis, weights, scope)


def sigmoid_cross_entropy(
    logits: Any, multi_class_labels: Any, weights: Any = 1.0, label_smoothing: Any = 0, scope: Any = None
) -> Any:
    """`tf.losses.sigmoid_cross_entropy`, with the logits first."""
    return losses.sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope)


def softmax_cross_entropy(
    logits: Any, onehot_labels: Any, weights: Any = 1.0, label_smoothing: Any = 0, scope: Any = None
) -> Any:
    """`tf.losses.softmax_cross_entropy`, with the logits first."""
    return losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(logits: Any, labels: Any, weights: Any = 1.0, scope: Any = None) -> Any:
    """`tf.losses.sparse_softmax_cross_entropy`, with the logits first."""
    return losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


def compute_weighted_loss(losses_: Any, weights: Any = 1.0, scope: Any = None) -> Any:
    """`tf.losses.compute_weighted_loss`."""
    return losses.compute_weighted_loss(losses_, weights, scope)


def get_total_loss(add_regularization_losses: bool = True, name: str = "total_loss") -> Any:
    """`tf.losses.get_total_loss`."""
    return losses.get_total_loss(add_regularization_losses, name)
