"""Cross entropies of `tf.nn`, from logits."""

from __future__ import annotations

from typing import Any

import jax

from hookline_tf1._machinery.nodes import convert_to_tensor, node
from hookline_tf1._machinery.op_definitions import Plain, Static, computed_by
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1.nn import _cross_entropy


@computed_by(_cross_entropy.cross_entropy, "softmax_cross_entropy_with_logits")
def _softmax_cross_entropy(labels: Any, logits: Any, axis: Static = -1, name: str | None = None) -> Any: ...


@computed_by(
    _cross_entropy.sparse_cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits",
    within=(Within("labels", lambda labels, logits: index_bounds.shape(logits)[-1]),),
)
def _sparse_softmax_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> Any: ...


@computed_by(_cross_entropy.sigmoid_cross_entropy, "logistic_loss")
def _sigmoid_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> Any: ...


@computed_by(_cross_entropy.weighted_cross_entropy, "logistic_loss")
def _weighted_cross_entropy(labels: Any, logits: Any, pos_weight: Any, name: str | None = None) -> Any: ...


@computed_by(_cross_entropy.log_poisson, "log_poisson_loss")
def log_poisson_loss(
    targets: Any, log_input: Any, compute_full_loss: Plain = False, name: str | None = None
) -> Any: ...


def _labels_and_logits(who: str, first: Any, labels: Any, logits: Any) -> tuple[Any, Any]:
    """Returns labels and logits; positional arguments are logits and labels, as before TF 1.0."""
    if first is not None:
        labels, logits = (labels if logits is None else logits), first
    if labels is None or logits is None:
        raise ValueError(f"tf.nn.{who}: both labels and logits must be provided.")
    return labels, logits


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, dim: int = -1, name: Any = None, axis: Any = None
) -> Any:
    """`tf.nn.softmax_cross_entropy_with_logits`: labels get no gradient."""
    labels, logits = _labels_and_logits("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    labels = node(jax.lax.stop_gradient, "labels_stop_gradient", {"x": convert_to_tensor(labels)})
    return softmax_cross_entropy_with_logits_v2(labels, logits, axis, name, dim)


def softmax_cross_entropy_with_logits_v2(
    labels: Any, logits: Any, axis: Any = None, name: Any = None, dim: Any = None
) -> Any:
    """`tf.nn.softmax_cross_entropy_with_logits_v2`."""
    axis = next((given for given in (axis, dim) if given is not None), -1)
    return _softmax_cross_entropy(labels, logits, axis, name)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: Any = None
) -> Any:
    """`tf.nn.sparse_softmax_cross_entropy_with_logits`."""
    labels, logits = _labels_and_logits("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    return _sparse_softmax_cross_entropy(labels, logits, name)


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: Any = None, targets: Any = None
) -> Any:
    """`tf.nn.sigmoid_cross_entropy_with_logits`; `targets` is the name of the labels from before TF 1.0."""
    labels = targets if labels is None else labels
    labels, logits = _labels_and_logits("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    _check_shapes(logits, labels)
    return _sigmoid_cross_entropy(labels, logits, name)


def weighted_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, pos_weight: Any = None, name: Any = None, targets: Any = None
) -> Any:
    """`tf.nn.weighted_cross_entropy_with_logits`; `targets` is the earlier name of the labels."""
    labels = targets if labels is None else labels
    _check_shapes(logits, labels)
    return _weighted_cross_entropy(labels, logits, pos_weight, name)


def _check_shapes(logits: Any, labels: Any) -> None:
    shapes = [convert_to_tensor(given).shape for given in (logits, labels)]
    if not shapes[0].is_compatible_with(shapes[1]):
        raise ValueError(f"logits and labels must have the same shape ({shapes[0]} vs {shapes[1]}).")
