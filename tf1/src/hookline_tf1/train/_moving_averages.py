"""`tensorflow.python.training.moving_averages`: moving averages in a script's own variables."""

from __future__ import annotations

from typing import Any

from hookline import Graph
from hookline.train import ExponentialMovingAverage as CoreAverage
from hookline_tf1 import math
from hookline_tf1._machinery.graphs import name_scope
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf.variable_scopes import get_variable, get_variable_scope, variable_scope
from hookline_tf1._tf.variables import global_variables
from hookline_tf1.initializers import zeros_initializer
from hookline_tf1.train._slots import in_variable_scope

__all__ = ["ExponentialMovingAverage", "assign_moving_average"]


class ExponentialMovingAverage(CoreAverage):
    """Keeps exponential moving averages of variables and tensors.

    Their names begin with the variable scope in which `apply` was called: the average of `net/w` in the scope `net` is
    called `net/net/w/ExponentialMovingAverage`. A name requested before `apply` begins with the name scope.

    References:
        `tf.train.ExponentialMovingAverage`.
    """

    def make_variable(self, name: str, initial: Any) -> Any:
        return in_variable_scope(name, initial)

    def prefix(self, graph: Graph) -> str:
        return graph.current_scope


def assign_moving_average(variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: Any = None) -> Any:
    """Updates an exponential moving average, kept in a variable of the script.

    Args:
        variable: The variable that holds the average.
        value: A tensor of the same shape.
        decay: A number, or a tensor.
        zero_debias: The variable starts at 0 and is the weighted mean of the values so far: two more variables,
            `biased` and `local_step`, keep its parts.
        name: Name scope of the operations.
    """
    with name_scope(name, "AssignMovingAvg"):
        share = math.cast(convert_to_tensor(1.0 - decay), variable.dtype)
        if not zero_debias:
            return variable.assign_sub((variable - value) * share)
        with variable_scope(variable.op.name):
            biased, steps = _of_zeros("biased", variable), _of_zeros("local_step", variable, [])
        now = biased.assign_sub((biased - value) * share)
        weight = 1 - math.pow(1.0 - share, steps.assign_add(1))
        return variable.assign(now / weight)


def _of_zeros(name: str, like: Any, shape: Any = None) -> Any:
    """Creates a variable of zeros with an unused name, or the existing one in a scope with reuse."""
    scope = get_variable_scope()
    taken = {variable.op.name for variable in global_variables()}
    count, free = 0, name
    while not scope.reuse and f"{scope.name}/{free}" in taken:
        count += 1
        free = f"{name}_{count}"
    return get_variable(free, like.shape if shape is None else shape, like.dtype, zeros_initializer(), trainable=False)
