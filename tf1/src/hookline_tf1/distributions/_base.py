"""The base of distributions."""

from __future__ import annotations

from typing import Any

from hookline_tf1 import math
from hookline_tf1._machinery import dtypes
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.namespaces import missing
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops


class Distribution:
    """The base of distributions.

    Args:
        validate_args: Without effect.
        allow_nan_stats: Without effect.
        name: Name scope of its operations.

    References:
        `tf.distributions.Distribution`.
    """

    namespace = "tf.distributions"
    """The namespace in which scripts find it."""

    def __init__(self, validate_args: bool, allow_nan_stats: bool, name: str) -> None:
        ignored(f"{self.namespace}.{type(self).__name__}", validate_args=validate_args, allow_nan=not allow_nan_stats)
        self.name = name

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        return missing(f"{kind.namespace}.{kind.__name__}", lambda: dir(kind))(name)

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Any:
        """Draws samples of `sample_shape` followed by the shape of the parameters."""
        with name_scope(f"{self.name}/{name}"):
            wanted = convert_to_tensor(sample_shape if sample_shape != () else [], dtypes.int32)
            return self._drawn(array_ops.reshape(wanted, [-1]), seed)

    def log_prob(self, value: Any, name: str = "log_prob") -> Any:
        """Returns the logarithm of the density, or of the probability, of a value."""
        with name_scope(f"{self.name}/{name}"):
            return self._log_prob(convert_to_tensor(value))

    def prob(self, value: Any, name: str = "prob") -> Any:
        """Returns the density, or the probability, of a value."""
        with name_scope(f"{self.name}/{name}"):
            return math.exp(self._log_prob(convert_to_tensor(value)))

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Any:
        """Computes the Kullback-Leibler divergence to another distribution of the same kind."""
        return kl_divergence(self, other, name=name)

    def _drawn(self, wanted: Any, seed: int | None) -> Any:
        raise NotImplementedError

    def _log_prob(self, value: Any) -> Any:
        raise NotImplementedError

    def _distance(self, other: Any) -> Any:
        raise NotImplementedError


def kl_divergence(
    distribution_a: Distribution, distribution_b: Distribution, allow_nan_stats: bool = True, name: str | None = None
) -> Any:
    """Computes the Kullback-Leibler divergence between two distributions of one kind.

    Raises:
        NotImplementedError: They are of different kinds.
    """
    ignored("tf.distributions.kl_divergence", allow_nan_stats=not allow_nan_stats)
    if type(distribution_a) is not type(distribution_b):
        kinds = " and ".join(type(item).__name__ for item in (distribution_a, distribution_b))
        raise NotImplementedError(f"kl_divergence requires two distributions of one kind, got {kinds}.")
    with name_scope(name, "KullbackLeibler"):
        return distribution_a._distance(distribution_b)


def joined(wanted: Any, like: Any) -> Any:
    """Returns the shape of samples: `sample_shape`, then a tensor's shape."""
    return array_ops.concat([wanted, array_ops.shape(like)], 0)
