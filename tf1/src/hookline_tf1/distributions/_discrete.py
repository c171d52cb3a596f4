"""Discrete distributions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline_tf1 import math, nn, random
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.nodes import convert_to_tensor, node
from hookline_tf1._rules import index_bounds
from hookline_tf1._rules.index_bounds import Within
from hookline_tf1._tf import array_ops
from hookline_tf1.distributions._base import Distribution, joined


class Bernoulli(Distribution):
    """The Bernoulli distribution of zero and one.

    Args:
        logits: The logarithm of the odds of one.
        probs: The probability of one. Exactly one of `logits` and `probs` is required.
        dtype: Of the samples.
        validate_args: As in `Distribution`, like the arguments after it.
        allow_nan_stats: As above.
        name: As above.

    References:
        `tf.distributions.Bernoulli`.
    """

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = dtypes.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Bernoulli",
    ) -> None:
        super().__init__(validate_args, allow_nan_stats, name)
        _check_one(self, logits, probs)
        self.probs = math.sigmoid(logits) if probs is None else convert_to_tensor(probs)
        odds = None if logits is not None else math.log(self.probs) - math.log1p(-self.probs)
        self.logits, self.dtype = convert_to_tensor(logits) if odds is None else odds, dtype

    def mean(self) -> Any:
        """Returns the probability of one."""
        return self.probs

    def variance(self) -> Any:
        """Returns the variance."""
        return self.probs * (1 - self.probs)

    def mode(self) -> Any:
        """Returns the more probable value."""
        return math.cast(self.probs > 0.5, self.dtype)

    def entropy(self) -> Any:
        """Returns the entropy, in nats."""
        return -self.logits * (math.sigmoid(self.logits) - 1) + nn.softplus(-self.logits)

    def _drawn(self, wanted: Any, seed: int | None) -> Any:
        share = random.random_uniform(joined(wanted, self.probs), dtype=self.probs.dtype, seed=seed)
        return math.cast(share < self.probs, self.dtype)

    def _log_prob(self, value: Any) -> Any:
        value = math.cast(value, self.logits.dtype)
        # They broadcast: either may have the larger shape.
        return value * self.logits - nn.softplus(self.logits + array_ops.zeros_like(value))

    def _distance(self, other: Any) -> Any:
        soft = nn.softplus
        ones, zeros = soft(-other.logits) - soft(-self.logits), soft(other.logits) - soft(self.logits)
        return math.sigmoid(self.logits) * ones + math.sigmoid(-self.logits) * zeros


class Categorical(Distribution):
    """The categorical distribution over classes.

    Args:
        logits: The unnormalised log-probability of each class, in the last dimension.
        probs: The probabilities. Exactly one of `logits` and `probs` is required.
        dtype: Of the samples.
        validate_args: As in `Distribution`, like the arguments after it.
        allow_nan_stats: As above.
        name: As above.

    References:
        `tf.distributions.Categorical`.
    """

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: Any = dtypes.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Categorical",
    ) -> None:
        super().__init__(validate_args, allow_nan_stats, name)
        _check_one(self, logits, probs)
        self.logits = math.log(probs) if logits is None else convert_to_tensor(logits)
        self.probs = nn.softmax(self.logits) if probs is None else convert_to_tensor(probs)
        self.dtype = dtype

    def mode(self) -> Any:
        """Returns the most probable class."""
        return math.argmax(self.logits, -1, output_type=self.dtype)

    def entropy(self) -> Any:
        """Returns the entropy, in nats."""
        return -math.reduce_sum(nn.log_softmax(self.logits) * nn.softmax(self.logits), -1)

    def _drawn(self, wanted: Any, seed: int | None) -> Any:
        shape = array_ops.shape(self.logits)
        flat = array_ops.reshape(self.logits, [-1, shape[-1]])
        drawn = random.multinomial(flat, math.reduce_prod(wanted), seed, output_dtype=self.dtype)
        return array_ops.reshape(array_ops.transpose(drawn), array_ops.concat([wanted, shape[:-1]], 0))

    def _log_prob(self, value: Any) -> Any:
        return node(_log_share, "log_share", {"value": value, "logits": self.logits}, within=_CLASSES)

    def _distance(self, other: Any) -> Any:
        apart = nn.log_softmax(self.logits) - nn.log_softmax(other.logits)
        return math.reduce_sum(nn.softmax(self.logits) * apart, -1)


_CLASSES = (Within("value", lambda value, logits: index_bounds.shape(logits)[-1]),)


def _log_share(value: Any, logits: Any) -> Any:
    """Returns the log-probabilities of classes; NaN for a class out of range, besides the error."""
    shares = jax.nn.log_softmax(logits)
    shape, classes = jnp.broadcast_shapes(jnp.shape(value), shares.shape[:-1]), shares.shape[-1]
    value = jnp.broadcast_to(jnp.asarray(value).astype(np.int32), shape)
    exists = (value >= 0) & (value < classes)
    indices = jnp.where(exists, value, 0)[..., None]
    found = jnp.take_along_axis(jnp.broadcast_to(shares, (*shape, classes)), indices, -1)[..., 0]
    return jnp.where(exists, found, np.nan)


def _check_one(who: Distribution, logits: Any, probs: Any) -> None:
    if (logits is None) == (probs is None):
        given = "none" if logits is None else "both"
        raise ValueError(f"tf.distributions.{type(who).__name__} requires one of logits and probs, got {given}.")
