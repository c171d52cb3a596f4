"""The learning rate of a loop, if its step does not return it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph import Tensor, op
from hookline.loop.counter import Counter, leaf_of
from hookline.loop.optimizer_state import learning_rate, schedule_count
from hookline.loop.step import called

NAME = "learning_rate"


def learning_rate_of(
    schedule: Any, state: Tensor, after: Tensor, global_step: Tensor, counter: Counter | None
) -> Tensor | None:
    """Returns the learning rate of the step, or None if it is not known.

    Args:
        schedule: A function from the count of updates so far to the rate; or None for the rate in
            `optax.inject_hyperparams`.
        state: The state before the step.
        after: The state after the step. Its optimizer state has the rate of the step.
        global_step: The global step before the step, for a state without a count.
        counter: The step counter of the state, for an optimizer without a count.

    Raises:
        TypeError: The schedule is no function, or does not return a number for a count.
    """
    if schedule is None:
        place = learning_rate(state.spec)
        return None if place is None else leaf_of(after, place, state.spec)
    if not callable(schedule):
        raise TypeError(
            f"Loop requires a schedule as learning_rate, a function from a count of updates to a rate, got "
            f"{schedule!r}."
        )
    place = schedule_count(state.spec)
    if place is None and counter is not None:
        place = counter.place
    count = global_step if place is None else leaf_of(state, place, state.spec)
    refusal = f"Loop requires a schedule that returns one number for a count, and {called(schedule)} does not"
    try:
        made = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), count.spec.dtype))
    except Exception as error:
        raise TypeError(f"{refusal}: {error}") from error
    if getattr(made, "shape", None) != ():
        raise TypeError(f"{refusal}.")
    return op(lambda count: jnp.asarray(schedule(count)), name=NAME)(count)
