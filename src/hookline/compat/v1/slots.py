"""The variables of optimizers and metrics: named as TensorFlow names them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hookline.graph import Tensor, Variable, get_default_graph, op


def make_slot(primary: Variable, start: Any, label: str) -> Variable:
    """Returns a new variable beside another one: `<primary>/<label>`, numbered if that is taken.

    Args:
        primary: The variable that it serves.
        start: Its initial value: a tensor, or a number for every element.
        label: The last part of its name.
    """
    if isinstance(start, Tensor):
        initial: Any = start
    elif primary.shape is not None and None not in primary.shape:
        shape, dtype = primary.shape, primary.dtype

        def initial() -> Any:
            return jnp.full(shape, start, dtype)

    else:
        with get_default_graph().control_dependencies(None):
            initial = op(lambda value: jnp.full_like(value, start), name="slot")(primary.initialized_value())
    with get_default_graph().name_scope(None):
        return Variable(initial, name=f"{primary.op.name}/{label}", trainable=False)


def own_variable(initial_value: Any, name: str) -> Variable:
    """Returns a new variable of one number, `name` in the current name scope."""
    initial = initial_value if isinstance(initial_value, Tensor) else jnp.asarray(initial_value, jnp.float32)
    return Variable(initial, name=name, trainable=False)
