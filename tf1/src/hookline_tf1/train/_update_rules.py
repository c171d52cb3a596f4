"""Update rules of TensorFlow's optimizers.

Each takes the variable, its slots, the gradient and the hyperparameters, and returns the new values of the first two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax


def gradient_descent(var: Any, grad: Any, learning_rate: Any) -> Any:
    """Applies gradient descent."""
    return (var - learning_rate * grad,)


def momentum(var: Any, accum: Any, grad: Any, learning_rate: Any, momentum: Any) -> Any:
    """Applies SGD with momentum."""
    accum = accum * momentum + grad
    return var - learning_rate * accum, accum


def nesterov(var: Any, accum: Any, grad: Any, learning_rate: Any, momentum: Any) -> Any:
    """Applies SGD with Nesterov momentum."""
    accum = accum * momentum + grad
    return var - learning_rate * grad - learning_rate * momentum * accum, accum


def adam(var: Any, m: Any, v: Any, grad: Any, **hyperparameters: Any) -> Any:
    """Applies Adam; the powers are the decays to the power of the step's number."""
    return _adam(var, m, v, grad, lambda m: m, **hyperparameters)


def lazy_adam(var: Any, m: Any, v: Any, grad: Any, **hyperparameters: Any) -> Any:
    """Applies Adam to looked-up rows only."""
    return adam(var, m, v, grad, **hyperparameters)


def nadam(var: Any, m: Any, v: Any, grad: Any, beta1: Any, **hyperparameters: Any) -> Any:
    """Applies Adam with Nesterov momentum."""
    return _adam(var, m, v, grad, lambda m: m * beta1 + grad * (1 - beta1), beta1=beta1, **hyperparameters)


def _adam(
    var: Any,
    m: Any,
    v: Any,
    grad: Any,
    direction: Callable[[Any], Any],
    learning_rate: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    power1: Any,
    power2: Any,
) -> Any:
    rate = learning_rate * jnp.sqrt(1 - power2) / (1 - power1)
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    return var - rate * direction(m) / (jnp.sqrt(v) + epsilon), m, v


def adamax(
    var: Any, m: Any, v: Any, grad: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any, power1: Any
) -> Any:
    """Applies AdaMax: Adam with the infinity norm."""
    m = m + (grad - m) * (1 - beta1)
    v = jnp.maximum(beta2 * v, jnp.abs(grad))
    return var - learning_rate / (1 - power1) * m / (v + epsilon), m, v


def add_sign(var: Any, m: Any, grad: Any, learning_rate: Any, alpha: Any, beta: Any, sign_decay: Any) -> Any:
    """Applies AddSign: longer steps where the signs of the gradient and its mean agree."""
    m = m * beta + grad * (1 - beta)
    return var - learning_rate * (alpha + sign_decay * jnp.sign(grad) * jnp.sign(m)) * grad, m


def power_sign(var: Any, m: Any, grad: Any, learning_rate: Any, logbase: Any, beta: Any, sign_decay: Any) -> Any:
    """Applies PowerSign: like AddSign, with a power as factor."""
    m = m * beta + grad * (1 - beta)
    return var - learning_rate * jnp.exp(logbase * sign_decay * jnp.sign(grad) * jnp.sign(m)) * grad, m


def trust_ratio(var: Any, grad: Any, weight_decay: Any, eeta: Any, epsilon: Any) -> Any:
    """Computes LARS's factor of the learning rate: a variable's norm divided by its gradient's."""
    norm, grad_norm = jnp.linalg.norm(var.ravel()), jnp.linalg.norm(grad.ravel())
    ratio = eeta * norm / (grad_norm + weight_decay * norm + epsilon)
    return jnp.where((norm > 0) & (grad_norm > 0), ratio, 1.0)


def adagrad(var: Any, accum: Any, grad: Any, learning_rate: Any) -> Any:
    """Applies Adagrad."""
    accum = accum + grad * grad
    return var - learning_rate * grad * lax.rsqrt(accum), accum


def adadelta(var: Any, accum: Any, moved: Any, grad: Any, learning_rate: Any, rho: Any, epsilon: Any) -> Any:
    """Applies Adadelta: the rate is the root mean square of earlier updates divided by that of gradients."""
    accum = accum * rho + grad * grad * (1 - rho)
    change = jnp.sqrt(moved + epsilon) * lax.rsqrt(accum + epsilon) * grad
    return var - learning_rate * change, accum, moved * rho + change * change * (1 - rho)


def rmsprop(
    var: Any, rms: Any, mom: Any, grad: Any, learning_rate: Any, decay: Any, momentum: Any, epsilon: Any
) -> Any:
    """Applies RMSProp."""
    rms = rms + (grad * grad - rms) * (1 - decay)
    mom = mom * momentum + learning_rate * grad * lax.rsqrt(rms + epsilon)
    return var - mom, rms, mom


def centered_rmsprop(
    var: Any, rms: Any, mg: Any, mom: Any, grad: Any, learning_rate: Any, decay: Any, momentum: Any, epsilon: Any
) -> Any:
    """Applies centered RMSProp: divides by the root of an estimated variance."""
    rms = rms + (grad * grad - rms) * (1 - decay)
    mg = mg + (grad - mg) * (1 - decay)
    mom = mom * momentum + learning_rate * grad * lax.rsqrt(rms - mg * mg + epsilon)
    return var - mom, rms, mg, mom


def ftrl(
    var: Any,
    accum: Any,
    linear: Any,
    grad: Any,
    learning_rate: Any,
    power: Any,
    l1: Any,
    l2: Any,
    shrinkage: Any,
    beta: Any,
) -> Any:
    """Applies FTRL."""
    new = accum + grad * grad
    linear = linear + grad + 2 * shrinkage * var - (new**-power - accum**-power) / learning_rate * var
    divisor = (new**-power + beta) / learning_rate + 2 * l2
    return (jnp.clip(linear, -l1, l1) - linear) / divisor, new, linear


def proximal(var: Any, rate: Any, l1: Any, l2: Any) -> Any:
    """Applies the proximal operator of L1 and L2 regularization: shrinks towards zero, but not past it."""
    return jnp.sign(var) * jnp.maximum(jnp.abs(var) - rate * l1, 0) / (1 + rate * l2)


def proximal_gradient_descent(var: Any, grad: Any, learning_rate: Any, l1: Any, l2: Any) -> Any:
    """Applies proximal gradient descent."""
    return (proximal(var - learning_rate * grad, learning_rate, l1, l2),)


def proximal_adagrad(var: Any, accum: Any, grad: Any, learning_rate: Any, l1: Any, l2: Any) -> Any:
    """Applies proximal Adagrad."""
    accum = accum + grad * grad
    rate = learning_rate * lax.rsqrt(accum)
    return proximal(var - rate * grad, rate, l1, l2), accum
