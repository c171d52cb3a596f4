"""`tf.contrib.distributions`: the names of `tf.distributions`, and multivariate normal vectors."""

from __future__ import annotations

from typing import Any

from hookline_tf1 import math
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops
from hookline_tf1.distributions import Bernoulli, Categorical, Distribution, Normal, Uniform, kl_divergence

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "MultivariateNormalDiag",
    "Normal",
    "Uniform",
    "kl_divergence",
]

__getattr__, __dir__ = offered("tf.contrib.distributions", lambda: __all__)


class MultivariateNormalDiag(Normal):
    """The distribution of vectors of independent normal variables; the last dimension is the vector.

    Args:
        loc: The means; 0 by default.
        scale_diag: The standard deviations; 1 by default.
        validate_args: As in `Distribution`, like the arguments after it.
        allow_nan_stats: As above.
        name: As above.

    References:
        `tf.contrib.distributions.MultivariateNormalDiag`, without `scale_identity_multiplier`.
    """

    namespace = "tf.contrib.distributions"

    def __init__(
        self,
        loc: Any = None,
        scale_diag: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiag",
    ) -> None:
        if loc is None and scale_diag is None:
            raise ValueError("MultivariateNormalDiag requires loc or scale_diag, got none.")
        loc = array_ops.zeros_like(convert_to_tensor(scale_diag)) if loc is None else loc
        scale = array_ops.ones_like(convert_to_tensor(loc)) if scale_diag is None else scale_diag
        super().__init__(loc, scale, validate_args, allow_nan_stats, name)

    def entropy(self) -> Any:
        """Returns the entropy of the vector, in nats."""
        return _sum(super().entropy())

    def _log_prob(self, value: Any) -> Any:
        return _sum(super()._log_prob(value))

    def _distance(self, other: Any) -> Any:
        return _sum(super()._distance(other))


def _sum(parts: Any) -> Any:
    return math.reduce_sum(parts, -1)
