"""The base of TensorFlow's optimizers, with the methods that published subclasses override."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import (
    Graph,
    GraphKeys,
    Operation,
    Tensor,
    Variable,
    gradients,
    group,
    op,
    trainable_variables,
)
from hookline.extend import specs
from hookline_tf1._machinery.graphs import control_dependencies, get_default_graph
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1.train._slots import make_slot, own_variable


class Optimizer:
    """Updates variables along gradients; its slots are separate variables.

    A subclass defines `_apply_dense(grad, var)`, which returns an operation that updates one variable; if it has slots,
    `_create_slots(var_list)`; and, as needed, `_prepare()` and `_finish(update_ops, name)`. Gradients are always
    arrays, so `_apply_sparse` is never called.

    Args:
        use_locking: Without effect.
        name: The name of its operations and most of its slots.

    References:
        `tf.train.Optimizer`.
    """

    GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Optimizer: a name is required, got none.")
        self._use_locking = use_locking
        self._name = name
        self._slots: dict[str, dict[Variable, Variable]] = {}
        self._non_slots: dict[tuple[str, Graph], Variable] = {}

    def get_name(self) -> str:
        """Returns the optimizer's name."""
        return self._name

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Operation:
        """Returns an operation that makes one training step: `compute_gradients`, then `apply_gradients`."""
        pairs = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        return self.apply_gradients(pairs, global_step, name)

    def compute_gradients(
        self,
        loss: Tensor | Callable[[], Tensor],
        var_list: Sequence[Variable] | None = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Tensor | None, Variable]]:
        """Returns pairs of gradient and variable; the gradient is None where the loss does not depend on it."""
        ignored("Optimizer", gate_gradients=gate_gradients != Optimizer.GATE_OP, aggregation_method=aggregation_method)
        ignored("Optimizer", colocate_gradients_with_ops=colocate_gradients_with_ops)
        total = loss if isinstance(loss, Tensor) or not callable(loss) else loss()
        if grad_loss is not None:
            total = op(lambda value, share: jnp.sum(value * share), name="grad_loss")(total, grad_loss)
        listed = [var_list] if isinstance(var_list, Variable) else var_list
        variables = trainable_variables() if listed is None else _flat(listed)
        if not variables:
            raise ValueError(f"{self._name}: there are no variables to optimize.")
        wrong = [variable for variable in variables if not isinstance(variable, Variable)]
        if wrong:
            raise TypeError(f"{self._name}: var_list may hold variables only, got {wrong[0]!r}.")
        floating = [variable for variable in variables if _is_floating(variable)]
        found = dict(zip(floating, gradients(total, floating), strict=True)) if floating else {}
        return [(found.get(variable), variable) for variable in variables]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that updates the variables along given gradients, and then counts the step."""
        given = list(grads_and_vars)
        pairs = [(grad, variable) for grad, variable in given if grad is not None]
        if not pairs:
            names = [variable.op.name for _, variable in given]
            raise ValueError(
                f"{self._name}: no gradients were given for any variable ({', '.join(names) or 'there are none'}): "
                f"the loss does not depend on them, or an operation between them has no gradient."
            )
        graph = get_default_graph()
        self._create_slots([variable for _, variable in pairs])
        label = graph.free_name(f"{graph.current_scope}{name or self._name}")
        with graph.name_scope(f"{label}/"):
            self._prepare()
            updates = [self._apply_one(_as_tensor(grad), variable) for grad, variable in pairs]
            finished = self._finish(updates, f"{label}/update" if global_step is not None else label)
        if global_step is None:
            train_op = finished.op
        else:
            with control_dependencies([finished]):
                counted = global_step.assign_add(1)
            with graph.name_scope(None):
                train_op = group(counted, name=label)
        collected = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if train_op not in collected:
            collected.append(train_op)
        return train_op

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Returns the slot called `name` of a variable; None if it has none."""
        return self._slots.get(name, {}).get(var)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the slots."""
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """Returns all variables that the optimizer created."""
        slots = [slot for named in self._slots.values() for slot in named.values()]
        return sorted([*self._non_slots.values(), *slots], key=lambda variable: variable.op.name)

    # Methods that a subclass overrides --------------------------------------------------------------------------

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        """Creates the slots of these variables, if any; existing ones stay."""

    def _prepare(self) -> None:
        """Converts the hyperparameters to tensors, if needed."""

    def _apply_dense(self, grad: Tensor, var: Variable) -> Any:
        """Returns an operation that updates `var` along `grad`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither _apply_dense nor _resource_apply_dense.")

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Any:
        """Updates `var` along `grad`, like `_apply_dense`; a subclass may define either."""
        return self._apply_dense(grad, handle)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Operation:
        """Returns an operation called `name_scope` that runs all updates and the other operations of a step."""
        with get_default_graph().name_scope(None):
            return group(*update_ops, name=name_scope)

    def _apply_one(self, grad: Tensor, variable: Variable) -> Any:
        graph = get_default_graph()
        with graph.name_scope(f"update_{variable.op.name}"):
            is_own = type(self)._resource_apply_dense is not Optimizer._resource_apply_dense
            changed = (self._resource_apply_dense if is_own else self._apply_dense)(grad, variable)
            constraint = getattr(variable, "constraint", None)
            if constraint is None:
                return changed
            with control_dependencies([changed]):
                return variable.assign(constraint(variable.read_value()))

    # Methods that a subclass calls ------------------------------------------------------------------------------

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        """Returns the slot of a variable, which starts at zero."""
        return self._filled_slot(var, 0.0, slot_name, op_name)

    def _filled_slot(self, var: Variable, start: float, slot_name: str, op_name: str) -> Variable:
        """Returns the slot of a variable, which starts filled with `start`."""
        return self._get_or_make_slot(var, start, slot_name, op_name)

    def _get_or_make_slot(self, var: Variable, val: Any, slot_name: str, op_name: str) -> Variable:
        """Returns the slot of a variable, which starts at `val`: a tensor, or a number for every element."""
        named = self._slots.setdefault(slot_name, {})
        if var not in named:
            named[var] = make_slot(var, val, op_name)
        return named[var]

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any = None) -> Variable:
        """Returns a variable of the optimizer as a whole, such as a power of a decay."""
        key = (name, get_default_graph())
        if key not in self._non_slots:
            self._non_slots[key] = own_variable(initial_value, name)
        return self._non_slots[key]

    def _get_non_slot_variable(self, name: str, graph: Graph | None = None) -> Variable | None:
        return self._non_slots.get((name, graph or get_default_graph()))

    @staticmethod
    def _call_if_callable(param: Any) -> Any:
        return param() if callable(param) and not isinstance(param, Tensor) else param


def _as_tensor(grad: Any) -> Tensor:
    return grad if isinstance(grad, Tensor) else op(jnp.asarray, name="gradient").node(grad)


def _is_floating(variable: Variable) -> bool:
    return not specs.is_array(variable.spec) or jnp.issubdtype(variable.spec.dtype, jnp.inexact)


def _flat(variables: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in variables:
        flat.extend(_flat(item) if isinstance(item, list | tuple) else [item])
    return flat
