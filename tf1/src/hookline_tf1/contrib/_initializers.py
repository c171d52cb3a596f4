"""The initializers and regularizers of `tf.contrib.layers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from hookline_tf1._machinery import dtypes, subgradients
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.nodes import op
from hookline_tf1.initializers import variance_scaling_initializer as scaled

Initializer = Callable[..., Any]


def variance_scaling_initializer(
    factor: float = 2.0, mode: str = "FAN_IN", uniform: bool = False, seed: int | None = None, dtype: Any = None
) -> Initializer:
    """Returns an initializer of random numbers with variance `factor / n`: n inputs, outputs or their mean."""
    kind = dtypes.float32 if dtype is None else dtype
    return scaled(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed, kind)


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = None) -> Initializer:
    """Returns an initializer of random numbers with variance `1 / n`: n is the mean of inputs and outputs."""
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any]:
    """Returns a regularizer: `scale` times half the sum of squares."""
    return lambda weights: None if scale == 0 else op(_half_of_squares, name=scope or "l2_regularizer")(scale, weights)


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any]:
    """Returns a regularizer: `scale` times the sum of absolute values."""
    return lambda weights: None if scale == 0 else op(_absolute, name=scope or "l1_regularizer")(scale, weights)


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None) -> Callable[[Any], Any]:
    """Returns the sum of an L1 and an L2 regularizer."""

    def both(weights: Any) -> Any:
        with name_scope(scope, "l1_l2_regularizer"):
            return l1_regularizer(scale_l1)(weights) + l2_regularizer(scale_l2)(weights)

    return both


def _half_of_squares(scale: Any, weights: Any) -> Any:
    return scale * jnp.sum(jnp.square(weights)) / 2


def _absolute(scale: Any, weights: Any) -> Any:
    return scale * jnp.sum(subgradients.absolute(weights))
