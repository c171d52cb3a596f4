"""Continuous distributions."""

from __future__ import annotations

import math as plain
from typing import Any

from hookline_tf1 import math, random
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops
from hookline_tf1.distributions._base import Distribution, joined


class Normal(Distribution):
    """The normal distribution.

    Args:
        loc: Its mean.
        scale: Its standard deviation, of a shape that broadcasts with the mean's.
        validate_args: As in `Distribution`, like the arguments after it.
        allow_nan_stats: As above.
        name: As above.

    Example:
        >>> import hookline_tf1 as tf
        >>> policy = tf.distributions.Normal(loc=[0.0, 1.0], scale=2.0)
        >>> with tf.Session() as sess:
        ...     print(sess.run(policy.log_prob(1.0)).round(3))
        [-1.737 -1.612]

    References:
        `tf.distributions.Normal`. Gradients pass through `sample`.
    """

    def __init__(
        self, loc: Any, scale: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Normal"
    ) -> None:
        super().__init__(validate_args, allow_nan_stats, name)
        self.loc, self.scale = convert_to_tensor(loc), convert_to_tensor(scale)

    def mean(self) -> Any:
        """Returns the mean, broadcast to the shape of both parameters."""
        return self.loc + array_ops.zeros_like(self.scale)

    mode = mean

    def stddev(self) -> Any:
        """Returns the standard deviation, broadcast to the shape of both parameters."""
        return self.scale + array_ops.zeros_like(self.loc)

    def variance(self) -> Any:
        """Returns the variance, broadcast to the shape of both parameters."""
        return math.square(self.stddev())

    def cdf(self, value: Any) -> Any:
        """Computes the cumulative distribution function."""
        return 0.5 * (1 + math.erf(self._standard(convert_to_tensor(value)) / plain.sqrt(2)))

    def entropy(self) -> Any:
        """Returns the entropy, in nats."""
        return 0.5 * plain.log(2 * plain.pi * plain.e) + math.log(self.stddev())

    def _standard(self, value: Any) -> Any:
        return (value - self.loc) / self.scale

    def _drawn(self, wanted: Any, seed: int | None) -> Any:
        noise = random.random_normal(joined(wanted, self.mean()), dtype=self.loc.dtype, seed=seed)
        return noise * self.scale + self.loc

    def _log_prob(self, value: Any) -> Any:
        normal = 0.5 * plain.log(2 * plain.pi) + math.log(self.scale)
        return -0.5 * math.square(self._standard(value)) - normal

    def _distance(self, other: Any) -> Any:
        ratio = math.square(self.scale / other.scale)
        apart = math.square(self.loc - other.loc) / (2 * math.square(other.scale))
        return apart + 0.5 * (ratio - 1 - math.log(ratio))


class Uniform(Distribution):
    """The uniform distribution from `low` up to `high`.

    References:
        `tf.distributions.Uniform`.
    """

    def __init__(
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Uniform",
    ) -> None:
        super().__init__(validate_args, allow_nan_stats, name)
        self.low, self.high = convert_to_tensor(low), convert_to_tensor(high)

    def mean(self) -> Any:
        """Returns the mean."""
        return (self.low + self.high) / 2

    def entropy(self) -> Any:
        """Returns the entropy, in nats."""
        return math.log(self.high - self.low)

    def _drawn(self, wanted: Any, seed: int | None) -> Any:
        share = random.random_uniform(joined(wanted, self.mean()), dtype=self.low.dtype, seed=seed)
        return self.low + share * (self.high - self.low)

    def _log_prob(self, value: Any) -> Any:
        inside = math.logical_and(value >= self.low, value < self.high)
        width = math.log(self.high - self.low) + array_ops.zeros_like(value)
        return array_ops.where(inside, -width, array_ops.zeros_like(width) - float("inf"))
