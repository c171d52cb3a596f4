"""`tf.distributions`: distributions with their densities, entropies and divergences."""

from __future__ import annotations

from hookline_tf1._machinery.namespaces import offered
from hookline_tf1.distributions._base import Distribution, kl_divergence
from hookline_tf1.distributions._continuous import Normal, Uniform
from hookline_tf1.distributions._discrete import Bernoulli, Categorical

__all__ = ["Bernoulli", "Categorical", "Distribution", "Normal", "Uniform", "kl_divergence"]

__getattr__, __dir__ = offered("tf.distributions", lambda: __all__)
