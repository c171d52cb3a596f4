"""Moving averages of variables and of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.graph.graph import Graph, Operation, Tensor, get_default_graph
from hookline.graph.initializers import global_variables, trainable_variables
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.ops import group
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable, update


class ExponentialMovingAverage:
    """Keeps exponential moving averages of variables and tensors.

    The average of a variable starts at the variable's initial value, and the average of a tensor starts at 0. Averages
    are ordinary untrained variables with names like `weights/ExponentialMovingAverage`.

    Args:
        decay: The weight of the old average in each update, between 0 and 1; 0.999 is usual. A number or a tensor.
        num_updates: The number of updates so far, usually the global step: the decay is then at most
            `(1 + num_updates) / (10 + num_updates)`, so that the first averages follow quickly.
        zero_debias: Whether averages of tensors are divided by the sum of the weights so far, so that they do not start
            near 0 (Kingma and Ba, "Adam", section 3). The variables `<average>/biased` and `<average>/local_step` hold
            the uncorrected average and the number of updates. For variables it has no effect.
        name: The last part of the averages' names.

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
        `tf.train.ExponentialMovingAverage`. There an average that is initialised after its variable starts at the
        variable's current value. Here it always starts at the initial value.
    """

    def __init__(
        self,
        decay: float | Tensor,
        num_updates: Tensor | int | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if isinstance(decay, bool) or not isinstance(decay, Tensor | Real | np.number | jax.Array):
            raise TypeError(f"ExponentialMovingAverage: decay must be a number or a tensor, got {decay!r}.")
        if not isinstance(decay, Tensor) and not 0 <= decay <= 1:
            raise ValueError(f"ExponentialMovingAverage: decay must lie between 0 and 1, got {decay}.")
        if not isinstance(zero_debias, bool):
            raise TypeError(f"ExponentialMovingAverage: zero_debias is True or False, got {zero_debias!r}.")
        self.name = arguments.check_str("ExponentialMovingAverage", "name", name)
        self._decay, self._num_updates, self._zero_debias = decay, num_updates, zero_debias
        self._averages: dict[Any, Variable] = {}
        self._debiasing: dict[Any, tuple[Variable, Variable]] = {}

    def apply(self, var_list: Tensor | Iterable[Tensor] | None = None) -> Operation:
        """Returns an operation that moves the averages towards the values.

        Like any operation, it reads variables from before the run: to average the results of a training step, make it
        inside `control_dependencies([train_op])`. The variables of the averages ignore control dependencies.

        Args:
            var_list: Variables and tensors; by default all trainable variables.

        Raises:
            TypeError: A value is not floating point, or the shape of a tensor is not known.
        """
        graph = get_default_graph()
        updates = []
        listed = [var_list] if isinstance(var_list, Tensor) else var_list
        who = "ExponentialMovingAverage"
        for value in trainable_variables() if listed is None else arguments.check_list(who, "var_list", listed):
            self._check(value)
            if value.key not in self._averages:
                self._create_average(value)
            if isinstance(value, Variable) and value not in graph.get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES):
                graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, value)
            average = self._averages[value.key]
            given = (value, self._decay, self._num_updates)
            if value.key in self._debiasing:
                updates.append(
                    update((average, *self._debiasing[value.key]), _updated_debiased_average, *given, name="average")
                )
            else:
                updates.append(update(average, _updated_average, *given, name="average"))
        return group(*updates, name=self.name)

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"ExponentialMovingAverage: only variables and tensors have averages, got {value!r}.")
        if value.spec is specs.UNKNOWN:
            raise TypeError(f"ExponentialMovingAverage: the structure of {_name_of(value)!r} is not known.")
        for leaf in jax.tree.leaves(value.spec):
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                raise TypeError(
                    f"ExponentialMovingAverage: {_name_of(value)!r} holds {leaf.dtype}, which has no average."
                )
            if not all(isinstance(dim, int) for dim in leaf.shape):
                raise TypeError(
                    f"ExponentialMovingAverage: the shape of {_name_of(value)!r} is open, {specs.open_shape(leaf)}; an "
                    f"average has one shape for good. Reduce it first, with a mean."
                )

    def _create_average(self, value: Tensor) -> None:
        spec = value.spec

        def zeros() -> Any:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec)

        is_variable = isinstance(value, Variable)
        initial = value.initial_value if is_variable else zeros
        average = self.make_variable(f"{_name_of(value)}/{self.name}", initial)
        average.pin(value)
        if self._zero_debias and not is_variable:
            biased = self.make_variable(f"{average.op.name}/biased", zeros)
            biased.pin(value)
            count = self.make_variable(f"{average.op.name}/local_step", lambda: jnp.zeros(()))
            self._debiasing[value.key] = biased, count
        self._averages[value.key] = average

    def make_variable(self, name: str, initial: Any) -> Variable:
        """Returns a new variable for an average; a subclass may prefix its name, and then overrides `prefix`, too."""
        with get_default_graph().name_scope(None):
            return Variable(initial, name=name, trainable=False)

    def average(self, var: Tensor) -> Variable | None:
        """Returns the variable that holds the average of `var`; `None` if `apply` was not called for it."""
        return self._averages.get(_key(var))

    def average_name(self, var: Tensor) -> str:
        """Returns the name under which the average of `var` is saved, before `apply` and after it.

        Only the name scope of `var` affects it.
        """
        average = self._averages.get(_key(var))
        if average is not None:
            return average.op.name
        return var.graph.free_name(f"{self.prefix(var.graph)}{_name_of(var)}/{self.name}")

    def prefix(self, graph: Graph) -> str:
        """Returns the prefix that `make_variable` would add to a name now; empty if it adds none."""
        return ""

    def variables_to_restore(self, moving_avg_variables: Iterable[Variable] | None = None) -> dict[str, Variable]:
        """Returns a `var_list` for a `Saver` that restores averages into their variables, and all others unchanged.

        It does not need `apply`: an evaluation makes the model and this object, but no training step.

        Args:
            moving_avg_variables: The variables to restore from their averages; by default all trainable ones, and those
                given to `apply`.

        Example:
            >>> import hookline as hl
            >>> weight = hl.Variable(0.0, name="weight")
            >>> mean = hl.Variable(0.0, name="mean", trainable=False)
            >>> sorted(hl.train.ExponentialMovingAverage(decay=0.5).variables_to_restore())
            ['mean', 'weight/ExponentialMovingAverage']
        """
        if moving_avg_variables is None:
            averaged = get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES)
            moving_avg_variables = [*trainable_variables(), *averaged]
        who = "ExponentialMovingAverage"
        moving = list(dict.fromkeys(arguments.check_list(who, "moving_avg_variables", moving_avg_variables)))
        restored = {self.average_name(variable): variable for variable in moving}
        for variable in global_variables():
            if variable not in moving and variable.op.name not in restored:
                restored[variable.op.name] = variable
        return restored


def _key(var: Tensor) -> Any:
    return arguments.check_has("ExponentialMovingAverage", "var", var, "a variable or a tensor", "key").key


def _name_of(tensor: Tensor) -> str:
    """Returns a tensor's name as a part of other names: its operation's name, and the path of a view."""
    if not tensor.path:
        return tensor.op.name
    path = tensor.name.partition(":0")[2]
    return f"{tensor.op.name}/{'_'.join(re.findall(r'[A-Za-z0-9]+', path))}"


def _new_value_weight(decay: Any, num_updates: Any) -> Any:
    """Returns the share of the new value: 1 minus the decay, computed before narrow floats round the decay to 1."""
    if num_updates is not None:
        num_updates = jnp.asarray(num_updates, jnp.float32)
        decay = jnp.minimum(decay, (1 + num_updates) / (10 + num_updates))
    return 1 - decay


def _updated_average(average: Any, value: Any, decay: Any, num_updates: Any) -> Any:
    """Returns the average, moved one step towards the value."""
    share = _new_value_weight(decay, num_updates)
    return jax.tree.map(lambda old, new: old - jnp.asarray(share, old.dtype) * (old - new), average, value)


def _updated_debiased_average(
    state: tuple[Any, Any, Any], value: Any, decay: Any, num_updates: Any
) -> tuple[Any, Any, Any]:
    """Returns the corrected average, the uncorrected average, and the number of updates."""
    _, biased, count = state
    biased, count = _updated_average(biased, value, decay, num_updates), count + 1
    seen = 1 - jnp.power(1 - jnp.asarray(_new_value_weight(decay, num_updates), jnp.float32), count)
    return jax.tree.map(lambda leaf: (leaf / seen).astype(leaf.dtype), biased), biased, count
