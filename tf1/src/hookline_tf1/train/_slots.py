"""The variables of optimizers and metrics, with TensorFlow's names."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hookline import Tensor, Variable, op
from hookline.extend import specs
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._tf.variable_scopes import variable_scope
from hookline_tf1._tf.variable_store import store_of_graph


def make_slot(primary: Variable, start: Any, label: str) -> Variable:
    """Creates a slot variable `<primary>/<label>`, numbered if the name is taken.

    Args:
        primary: The variable that the slot belongs to.
        start: Its initial value: a tensor, or a number for every element.
        label: The last part of its name.
    """
    with get_default_graph().name_scope(None):
        initial = start if isinstance(start, Tensor) else _filled(primary, start)
    return in_variable_scope(f"{primary.op.name}/{label}", initial)


def in_variable_scope(wanted: str, initial: Any) -> Variable:
    """Creates an untrained variable in the current variable scope, whatever the name scope.

    In a scope with reuse, returns the existing variable.
    """
    made = store_of_graph().variables
    with variable_scope(None, wanted, auxiliary_name_scope=False) as scope, get_default_graph().name_scope(None):
        if not scope.reuse or scope.name not in made:
            made[scope.name] = Variable(initial, name=scope.name, trainable=False)
        return made[scope.name]


def _filled(primary: Variable, start: float) -> Any:
    """Returns an initial value of the shape of `primary`, filled with one number."""
    spec = primary.spec
    if specs.is_array(spec) and None not in (specs.open_shape(spec) or ()):
        return lambda: jnp.full(spec.shape, start, spec.dtype)
    with get_default_graph().control_dependencies(None):
        return op(lambda value: jnp.full_like(value, start), name="slot")(primary.initial_value)


def own_variable(initial_value: Any, name: str) -> Variable:
    """Creates a scalar variable, `name` in the current name scope."""
    initial = initial_value if isinstance(initial_value, Tensor) else jnp.asarray(initial_value, jnp.float32)
    return Variable(initial, name=name, trainable=False)
