"""Learning rate decay of `tf.train`: computes tensors from the global step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import Tensor, op
from hookline_tf1._machinery.graphs import get_default_graph


def _decayed(
    label: str, name: str | None, rule: Callable[..., Any], learning_rate: Any, global_step: Any, *more: Any
) -> Tensor:
    """Computes `rule(rate, step, *more)`, with all arguments cast to the rate's floating point dtype."""
    if global_step is None:
        raise ValueError(f"{name or label} requires a global_step, got None.")

    def apply(rate: Any, step: Any, *more: Any) -> Any:
        rate = jnp.asarray(rate, None if getattr(rate, "dtype", None) is not None else jnp.float32)
        return rule(rate, *(jnp.asarray(value, rate.dtype) for value in (step, *more)))

    graph = get_default_graph()
    with graph.name_scope(name or label):
        return op(apply, name=label).node(learning_rate, global_step, *more)


def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decays the rate exponentially: times `decay_rate ** (global_step / decay_steps)`; stepwise if `staircase`."""

    def rule(rate: Any, step: Any, steps: Any, by: Any) -> Any:
        return rate * by ** (jnp.floor(step / steps) if staircase else step / steps)

    return _decayed("ExponentialDecay", name, rule, learning_rate, global_step, decay_steps, decay_rate)


def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decays the rate exponentially: times `exp(-decay_rate * global_step / decay_steps)`."""

    def rule(rate: Any, step: Any, steps: Any, by: Any) -> Any:
        return rate * jnp.exp(-by) ** (jnp.floor(step / steps) if staircase else step / steps)

    return _decayed("NaturalExpDecay", name, rule, learning_rate, global_step, decay_steps, decay_rate)


def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decays the rate inversely with time: over `1 + decay_rate * global_step / decay_steps`."""

    def rule(rate: Any, step: Any, steps: Any, by: Any) -> Any:
        return rate / (1 + by * (jnp.floor(step / steps) if staircase else step / steps))

    return _decayed("InverseTimeDecay", name, rule, learning_rate, global_step, decay_steps, decay_rate)


def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """Decays the rate polynomially to `end_learning_rate` in `decay_steps`; with `cycle`, repeatedly."""

    def rule(rate: Any, step: Any, steps: Any, end: Any, power: Any) -> Any:
        if cycle:
            steps = steps * jnp.where(step == 0, 1, jnp.ceil(step / steps))
        else:
            step = jnp.minimum(step, steps)
        # XLA may multiply by the reciprocal, and so exceed one slightly at the end.
        return (rate - end) * jnp.maximum(1 - step / steps, 0) ** power + end

    return _decayed("PolynomialDecay", name, rule, learning_rate, global_step, decay_steps, end_learning_rate, power)


def cosine_decay(
    learning_rate: Any, global_step: Any, decay_steps: Any, alpha: Any = 0.0, name: str | None = None
) -> Tensor:
    """Decays the rate along a cosine to `alpha` of itself."""

    def rule(rate: Any, step: Any, steps: Any, alpha: Any) -> Any:
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(step, steps) / steps))
        return rate * ((1 - alpha) * cosine + alpha)

    return _decayed("CosineDecay", name, rule, learning_rate, global_step, decay_steps, alpha)


def cosine_decay_restarts(
    learning_rate: Any,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: float = 2.0,
    m_mul: Any = 1.0,
    alpha: Any = 0.0,
    name: str | None = None,
) -> Tensor:
    """Decays the rate along a cosine with restarts, each `t_mul` times as long and `m_mul` times as high."""

    def rule(rate: Any, step: Any, steps: Any, height: Any, alpha: Any) -> Any:
        done = step / steps
        if t_mul == 1.0:
            restarts = jnp.floor(done)
            done = done - restarts
        else:
            restarts = jnp.floor(jnp.log(1 - done * (1 - t_mul)) / jnp.log(jnp.asarray(t_mul, done.dtype)))
            done = (done - (1 - t_mul**restarts) / (1 - t_mul)) / t_mul**restarts
        cosine = 0.5 * height**restarts * (1 + jnp.cos(jnp.pi * done))
        return rate * ((1 - alpha) * cosine + alpha)

    return _decayed("SGDRDecay", name, rule, learning_rate, global_step, first_decay_steps, m_mul, alpha)


def linear_cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    num_periods: Any = 0.5,
    alpha: Any = 0.0,
    beta: Any = 0.001,
    name: str | None = None,
) -> Tensor:
    """Decays the rate along a line and a cosine at once."""

    def rule(rate: Any, step: Any, steps: Any, periods: Any, alpha: Any, beta: Any) -> Any:
        done = jnp.minimum(step, steps) / steps
        return rate * ((alpha + 1 - done) * 0.5 * (1 + jnp.cos(2 * jnp.pi * periods * done)) + beta)

    return _decayed("LinearCosineDecay", name, rule, learning_rate, global_step, decay_steps, num_periods, alpha, beta)


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Tensor:
    """Sets a piecewise constant rate: `values[0]` up to `boundaries[0]` (included), then `values[1]`, and so on.

    Raises:
        ValueError: The number of values is not one more than the number of boundaries.
    """
    if len(boundaries) != len(values) - 1:
        raise ValueError(
            f"piecewise_constant requires one value more than boundaries, got {len(values)} values and "
            f"{len(boundaries)} boundaries."
        )

    def rule(x: Any, boundaries: Sequence[Any], values: Sequence[Any]) -> Any:
        # Compares steps as integers: float32 is exact for integers only up to 2**24.
        passed = sum((jnp.asarray(x) > bound).astype(jnp.int32) for bound in boundaries)
        return jnp.stack([jnp.asarray(value) for value in values])[passed]

    with get_default_graph().name_scope(name or "PiecewiseConstant"):
        return op(rule, name="value").node(x, list(boundaries), list(values))
