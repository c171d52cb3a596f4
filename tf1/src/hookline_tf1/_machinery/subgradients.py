"""Functions with TensorFlow's subgradients: at a tie JAX gives each side half, TensorFlow one side all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.7580993408473766


def absolute(x: Any) -> Any:
    """Returns `|x|`, whose gradient at 0 is 0."""
    x = jnp.asarray(x)
    return _absolute(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.abs(x)


def maximum(x: Any, y: Any) -> Any:
    """Returns the larger of two values; at a tie the gradient goes to the first."""
    return _maximum(*_alike(x, y)) if _are_floating(x, y) else jnp.maximum(x, y)


def minimum(x: Any, y: Any) -> Any:
    """Returns the smaller of two values; at a tie the gradient goes to the first."""
    return _minimum(*_alike(x, y)) if _are_floating(x, y) else jnp.minimum(x, y)


def leaky_relu(x: Any, alpha: Any = 0.2) -> Any:
    """Returns `x` where it is positive, else `alpha * x`; the gradient at 0 is `alpha`."""
    return jnp.where(x > 0, x, alpha * x)


def selu(x: Any) -> Any:
    """Returns the scaled exponential linear unit, with the gradient of the positive side at 0."""
    return jnp.where(x >= 0, _SELU_SCALE * x, _SELU_ALPHA * jnp.expm1(jnp.where(x >= 0, 0, x)))


def _are_floating(x: Any, y: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x, y), jnp.floating)


def _alike(x: Any, y: Any) -> Sequence[Any]:
    """Broadcasts both to one shape and dtype."""
    return jnp.broadcast_arrays(*(jnp.asarray(value, jnp.result_type(x, y)) for value in (x, y)))


@jax.custom_jvp
def _absolute(x: Any) -> Any:
    return jnp.abs(x)


@_absolute.defjvp
def _(values: Any, tangents: Any) -> Any:
    (x,), (change,) = values, tangents
    return jnp.abs(x), jnp.sign(x) * change


def _of_two(pick: Callable[..., Any], is_first: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that picks one of two numbers; at a tie the gradient goes to the first."""

    @jax.custom_jvp
    def picked(x: Any, y: Any) -> Any:
        return pick(x, y)

    @picked.defjvp
    def _(values: Any, tangents: Any) -> Any:
        (x, y), (of_x, of_y) = values, tangents
        return pick(x, y), jnp.where(is_first(x, y), of_x, of_y)

    return picked


_maximum, _minimum = _of_two(jnp.maximum, jnp.greater_equal), _of_two(jnp.minimum, jnp.less_equal)
