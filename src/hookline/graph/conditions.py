"""Conditions that the device evaluates: a guard skips a run's updates, a latch remembers the first run that met it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph.global_step import find_global_step
from hookline.graph.graph import Function, Operation, Tensor
from hookline.graph.variable import Variable


class Condition(Function):
    """A node whose value is a bool computed on the device."""

    def __init__(self, condition: Any, name: str) -> None:
        super().__init__(_as_scalar_bool, name, (condition,))
        self.type = type(self).type

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation:  # noqa: D102
        ((condition,), _) = self.bind(resolve)
        return type(self)(condition, name)


class Guard(Condition):
    """The node behind `skip_updates_if`: if it is true, the run changes no variables.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Guard
        >>> weight = hl.Variable(1.0, name="weight")
        >>> train_op = hl.group(weight.assign_add(1.0), Guard(weight >= 2.0, "is_large"))
        >>> with hl.Session() as sess:
        ...     sess.run(weight.initializer)
        ...     for _ in range(3):
        ...         sess.run(train_op)
        ...     print(sess.run(weight))
        2.0
    """

    type = "SkipUpdatesIf"
    forbids_remote_updates = True
    """Whether a run with it must not update parameter servers, because it cannot skip their updates."""


def skip_updates_if(condition: Any, name: str = "skip_updates_if") -> Tensor:
    """Returns the condition as a tensor; a run that needs it changes no variables if it is true.

    The device decides within the step, and nothing waits for it. The run still counts: the global step and the counters
    of random keys advance, and batches of `hookline.data` are used up. Fetches return the values that the run computed,
    as if it had kept its updates. Initializers still run. If a run has several such tensors, a single true one is
    enough.

    Args:
        condition: A bool, or a tensor of a bool. It may be computed from anything in the run.
        name: Name of the operation.

    Raises:
        TypeError: The condition is not a bool.
        ValueError: The condition has more than one value.

    Example:
        >>> import hookline as hl
        >>> weight, norm = hl.Variable(1.0), hl.placeholder("float32", ())
        >>> step = hl.train.create_global_step()
        >>> train_op = hl.group(weight.assign_add(1.0), step.assign_add(1), hl.skip_updates_if(norm > 10.0))
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     for value in (3.0, 30.0):
        ...         sess.run(train_op, {norm: value})
        ...         print(*sess.run((step, weight)))
        1 2.0
        2 2.0

    References:
        `optax.apply_if_finite`, but for all updates of a run and for any condition.
    """
    return Guard(condition, name).output


class Latch(Condition):
    """The node behind `latch`. Each session that runs it has its own latch value."""

    type = "Latch"


def latch(condition: Any, name: str = "latch") -> Operation:
    """Returns an operation that remembers the first run in which a condition held.

    A run that needs the operation returns no value for it, and nothing waits. The device keeps the number of that run
    beside the variables, and `Session.latched(operation)` reads it at any convenient time. A hook for a rare event
    declares `trigger = train.latched(...)`; then it adds almost nothing to the time of a step.

    The latch value belongs to one session. It is not a variable, is not in checkpoints, and is reset when the trained
    variables are loaded or restored.

    Args:
        condition: A bool, or a tensor of one. It may be computed from anything in the run.
        name: Name of the operation.

    Raises:
        ValueError: The condition has more than one value.

    Example:
        >>> import hookline as hl
        >>> step, norm = hl.train.create_global_step(), hl.placeholder("float32", ())
        >>> too_large = hl.latch(norm > 10.0)
        >>> train_op = hl.group(step.assign_add(1), too_large)
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     for value in (3.0, 30.0, 300.0, 3.0):
        ...         sess.run(train_op, {norm: value})
        ...     sess.latched(too_large, wait=True)
        2
    """
    return Latch(condition, name)


def is_run_counter(variable: Variable) -> bool:
    """Returns whether a variable counts runs or draws, and so advances even in a run that skips its updates."""
    return variable.per_worker or variable is find_global_step(variable.graph)


def _as_scalar_bool(condition: Any) -> jax.Array:
    try:
        value = jnp.asarray(condition)
    except (TypeError, ValueError):
        raise TypeError(f"The condition must be one bool, or a tensor of one, got {condition!r}.") from None
    if value.shape:
        raise ValueError(
            f"The condition must be one bool, got an array of shape {value.shape}: reduce it, with any() or all()."
        )
    if value.dtype != bool:
        raise TypeError(f"The condition must be one bool, got {value.dtype}: compare it, as in value > 0.")
    return value
