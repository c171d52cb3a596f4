"""Moving averages of variables."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph.graph import Operation, Tensor, get_default_graph
from hookline.graph.initialisers import global_variables, trainable_variables
from hookline.graph.ops import group
from hookline.graph.spec import UNKNOWN
from hookline.graph.variable import Variable, update


class ExponentialMovingAverage:
    """Keeps, beside variables, averages of their values that follow them slowly.

    Args:
        decay: How much of the average stays at each update, between 0 and 1; 0.999 is usual.
        num_updates: The number of updates so far, usually the global step: the decay is then at most
            `(1 + num_updates) / (10 + num_updates)`, so that the first averages follow quickly.
        name: Last part of the names of the averages.

    Example:
        >>> import hookline as hl
        >>> weight = hl.Variable(0.0, name="weight")
        >>> averages = hl.train.ExponentialMovingAverage(decay=0.5)
        >>> with hl.control_dependencies([weight.assign_add(4.0)]):
        ...     step = averages.apply([weight])
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     sess.run(step)
        ...     print(sess.run(averages.average(weight)))
        2.0

    References:
        `tf.train.ExponentialMovingAverage`, without `zero_debias`: an average starts at its variable's initial value.
    """

    def __init__(
        self, decay: float, num_updates: Tensor | int | None = None, name: str = "ExponentialMovingAverage"
    ) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"ExponentialMovingAverage: decay must lie between 0 and 1, got {decay}.")
        self._decay, self._num_updates, self._name = decay, num_updates, name
        self._averages: dict[Variable, Variable] = {}

    def apply(self, var_list: Iterable[Variable] | None = None) -> Operation:
        """Returns an operation that moves the averages towards the variables' values.

        It reads the variables like any operation: to average what a training step leaves behind, make it inside
        `control_dependencies([train_op])`.

        Args:
            var_list: By default all trainable variables.

        Raises:
            TypeError: A variable holds something else than floating point numbers.
        """
        updates = []
        for variable in trainable_variables() if var_list is None else var_list:
            if variable.spec is UNKNOWN:
                raise TypeError(f"ExponentialMovingAverage: what {variable.op.name!r} holds is not known.")
            for leaf in jax.tree.leaves(variable.spec):
                if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                    raise TypeError(
                        f"ExponentialMovingAverage: {variable.op.name!r} holds {leaf.dtype}, which has no average."
                    )
            if variable not in self._averages:
                with get_default_graph().control_dependencies(None):
                    self._averages[variable] = Variable(
                        variable.initialized_value(), name=f"{variable.op.name}/{self._name}", trainable=False
                    )
            updates.append(
                update(
                    self._averages[variable],
                    functools.partial(_moved, self._decay),
                    variable,
                    self._num_updates,
                    name="average",
                )
            )
        return group(*updates, name="moving_averages")

    def average(self, variable: Variable) -> Variable | None:
        """Returns the variable that holds the average of `variable`; `None` if `apply` was not called for it."""
        return self._averages.get(variable)

    def average_name(self, variable: Variable) -> str:
        """Returns the name under which the average of `variable` is saved."""
        average = self._averages.get(variable)
        return f"{variable.op.name}/{self._name}" if average is None else average.op.name

    def variables_to_restore(self) -> dict[str, Variable]:
        """Returns what to give a `Saver` so that it restores the averages into the variables, and the rest as it is."""
        averages = set(self._averages.values())
        return {
            self.average_name(variable) if variable in self._averages else variable.op.name: variable
            for variable in global_variables()
            if variable not in averages
        }


def _moved(highest_decay: float, average: Any, value: Any, num_updates: Any) -> Any:
    """Returns the average a step nearer to the value."""
    decay = highest_decay
    if num_updates is not None:
        decay = jnp.minimum(highest_decay, (1 + num_updates) / (10 + num_updates))
    return jax.tree.map(lambda old, new: old - (1 - jnp.asarray(decay, old.dtype)) * (old - new), average, value)
