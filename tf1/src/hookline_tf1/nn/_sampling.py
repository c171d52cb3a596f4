"""Candidate samplers, and losses on sampled classes: `nce_loss`, `sampled_softmax_loss`."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1 import random
from hookline_tf1._machinery.nodes import argument, node
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1.nn import _cross_entropy

Candidates = collections.namedtuple(
    "Candidates", ["sampled_candidates", "true_expected_count", "sampled_expected_count"]
)


def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: Any = None,
    name: str | None = None,
) -> Any:
    """Draws classes with a log-uniform distribution (Zipf's law, for words sorted by frequency).

    References:
        `tf.random.log_uniform_candidate_sampler`.
    """

    def probability(k: Any) -> Any:
        return (jnp.log(k + 2.0) - jnp.log(k + 1.0)) / np.log(range_max + 1.0)

    return _candidates(probability, true_classes, num_sampled, unique, range_max, seed, name)


def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: Any = None,
    name: str | None = None,
) -> Any:
    """Draws classes with a uniform distribution.

    References:
        `tf.random.uniform_candidate_sampler`.
    """
    return _candidates(
        lambda k: jnp.full(jnp.shape(k), 1.0 / range_max), true_classes, num_sampled, unique, range_max, seed, name
    )


def _candidates(probability: Any, true: Any, count: int, unique: bool, classes: int, seed: Any, name: Any) -> Any:
    if unique and count > classes:
        raise ValueError(f"Cannot draw {count} different classes of {classes}.")

    def drawn(key: Any, true: Any) -> Any:
        of_all = probability(jnp.arange(classes, dtype=jnp.float32))
        of_true = probability(jnp.asarray(true, jnp.float32))
        first, second = jax.random.split(key)
        if not unique:
            chosen = jax.random.categorical(first, jnp.log(of_all), shape=(count,)).astype(jnp.int32)
            return chosen, count * of_true, count * of_all[chosen]
        # The Gumbel top-k trick: the largest log-probabilities plus noise are a sample without replacement.
        _, chosen = jax.lax.top_k(jnp.log(of_all) + jax.random.gumbel(first, (classes,)), count)
        # A random number of draws, as if repeated classes were drawn again.
        taken = jnp.cumsum(of_all[chosen])[:-1]
        luck = jax.random.uniform(second, taken.shape, minval=1e-20)
        tries = 1 + jnp.sum(1 + jnp.floor(jnp.log(luck) / jnp.log(jnp.minimum(taken, 1 - 1e-7))))
        return chosen, *(-jnp.expm1(tries * jnp.log1p(-p)) for p in (of_true, of_all[chosen]))

    found = random.draw(drawn, name or "LogUniformCandidateSampler", seed, {"true": argument(true)})
    return Candidates(found[0], found[1], found[2])


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Any:
    """Computes the noise-contrastive loss of each example.

    References:
        `tf.nn.nce_loss`.
    """

    def loss(logits: Any, labels: Any) -> Any:
        return jnp.sum(_cross_entropy.sigmoid_cross_entropy(labels, logits), axis=1)

    given = (weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values)
    return _sampled_loss(loss, name, *given, remove_accidental_hits)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: Any = None,
) -> Any:
    """Computes the sampled softmax loss of each example.

    References:
        `tf.nn.sampled_softmax_loss`.
    """

    def loss(logits: Any, labels: Any) -> Any:
        return -jnp.sum(jax.lax.stop_gradient(labels) * jax.nn.log_softmax(logits), axis=1)

    given = (weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values)
    return _sampled_loss(loss, name, *given, remove_accidental_hits, seed)


def _sampled_loss(
    loss: Any,
    name: str,
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    seed: Any = None,
) -> Any:
    if isinstance(weights, list | tuple):
        if len(weights) != 1:
            raise NotImplementedError(f"tf.nn.{name}: weights in several parts are not available; use one variable.")
        weights = weights[0]
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(labels, num_true, num_sampled, True, num_classes, seed)
    sampled, true_count, sampled_count = sampled_values

    def computed(weights: Any, biases: Any, labels: Any, inputs: Any, sampled: Any, true_count: Any, count: Any) -> Any:
        labels, sampled = jnp.reshape(labels, (-1, num_true)), jax.lax.stop_gradient(sampled)
        of_true = jnp.einsum("bd,btd->bt", inputs, weights[labels]) + biases[labels]
        of_sampled = inputs @ weights[sampled].T + biases[sampled]
        if remove_accidental_hits:
            hits = jnp.any(labels[:, :, None] == sampled[None, None, :], axis=1)
            of_sampled = jnp.where(hits, of_sampled + jnp.finfo(of_sampled.dtype).min, of_sampled)
        logits = jnp.concatenate(
            [of_true - jnp.log(jnp.reshape(true_count, of_true.shape)), of_sampled - jnp.log(count)], axis=1
        )
        wanted = jnp.concatenate([jnp.full_like(of_true, 1 / num_true), jnp.zeros_like(of_sampled)], axis=1)
        return loss(logits, wanted)

    given = {"weights": weights, "biases": biases, "labels": labels, "inputs": inputs}
    counts = {"sampled": sampled, "true_count": true_count, "count": sampled_count}
    rows = Within("labels", lambda weights, **_: index_bounds.shape(weights)[0])
    return node(computed, name, {key: argument(value) for key, value in (given | counts).items()}, within=(rows,))
