"""Cross entropies of arrays, for `tf.nn` and `tf.losses`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hookline_tf1._machinery import subgradients


def cross_entropy(labels: Any, logits: Any, axis: Any) -> Any:
    """Computes the softmax cross entropy, with TensorFlow's gradient.

    As there, only the last dimension and the number of rows must agree: labels of `[1, n, classes]` fit logits of
    `[n, classes]`, and the result has the shape of the logits without the classes.
    """
    logits = jnp.asarray(logits)
    labels, logits = jnp.moveaxis(jnp.asarray(labels, logits.dtype), axis, -1), jnp.moveaxis(logits, axis, -1)
    if labels.shape == logits.shape:
        return _cross_entropy_of(labels, logits)
    rows = [jnp.reshape(of, (-1, of.shape[-1])) for of in (labels, logits)]
    given, wanted = (of.shape for of in rows)
    if given != wanted and all(isinstance(dim, int) for dim in (*given, *wanted)):
        raise ValueError(f"logits and labels must have the same size, got logits {wanted} and labels {given}")
    return jnp.reshape(_cross_entropy_of(*rows), logits.shape[:-1])


@jax.custom_vjp
def _cross_entropy_of(labels: Any, logits: Any) -> Any:
    return -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)


def _and_softmax(labels: Any, logits: Any) -> Any:
    return _cross_entropy_of(labels, logits), (labels, logits)


def _as_if_labels_summed_to_one(given: Any, grad: Any) -> Any:
    # TensorFlow's gradient; JAX's differs if labels do not sum to 1, as in a row of zeros.
    labels, logits = given
    grad = grad[..., None]
    return -grad * jax.nn.log_softmax(logits), grad * (jax.nn.softmax(logits) - labels)


_cross_entropy_of.defvjp(_and_softmax, _as_if_labels_summed_to_one)


def sparse_cross_entropy(labels: Any, logits: Any) -> Any:
    """Computes the softmax cross entropy with integer labels."""
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(labels)[..., None], axis=-1)
    return -found[..., 0]


def sigmoid_cross_entropy(labels: Any, logits: Any) -> Any:
    """Computes the sigmoid cross entropy."""
    is_up = logits >= 0
    return jnp.where(is_up, logits, 0) - logits * labels + jnp.log1p(jnp.exp(jnp.where(is_up, -logits, logits)))


def weighted_cross_entropy(labels: Any, logits: Any, pos_weight: Any) -> Any:
    """Computes the sigmoid cross entropy, with a weight for positive labels."""
    weight = 1 + (pos_weight - 1) * labels
    soft = jnp.log1p(jnp.exp(-subgradients.absolute(logits))) + jax.nn.relu(-logits)
    return (1 - labels) * logits + weight * soft


def log_poisson(targets: Any, log_input: Any, is_full: bool) -> Any:
    """Computes the negative log-likelihood of Poisson counts, with Stirling's formula for the constant term."""
    loss = jnp.exp(log_input) - log_input * targets
    if not is_full:
        return loss
    return loss + jnp.where(targets <= 1, 0, targets * jnp.log(targets) - targets + 0.5 * jnp.log(2 * jnp.pi * targets))
