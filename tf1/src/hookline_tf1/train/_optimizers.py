"""The optimizers of `tf.train`, with TensorFlow's formulas and slot names.

A hyperparameter may be a number, a tensor, or a function without arguments that returns one of them. As there, it is
first rounded to the variable's dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import Operation, Tensor, Variable, update
from hookline_tf1._machinery.graphs import control_dependencies, get_default_graph
from hookline_tf1._machinery.indexed_slices import lookups, where_touched
from hookline_tf1.train import _update_rules
from hookline_tf1.train._optimizer import Optimizer


class Formula(Optimizer):
    """The base of optimizers that apply an update rule.

    Args:
        formula: One of `_update_rules`.
        slots: For each slot its name for `get_slot`, its label in variable names, and its initial value.
        use_locking: Without effect.
        name: The name of its operations.
        **hyperparameters: The arguments of the formula after the gradient.
    """

    def __init__(
        self,
        formula: Callable[..., Any],
        slots: Sequence[tuple[str, str, float]],
        use_locking: bool,
        name: str,
        **hyperparameters: Any,
    ) -> None:
        super().__init__(use_locking, name)
        self._formula, self._slot_starts, self._hyperparameters = formula, slots, hyperparameters
        self._prepared: dict[str, Any] = {}

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for variable in var_list:
            for slot_name, label, start in self._slot_starts:
                self._get_or_make_slot(variable, start, slot_name, label)

    def _prepare(self) -> None:
        self._prepared = {name: self._call_if_callable(value) for name, value in self._hyperparameters.items()}

    def _apply_dense(self, grad: Tensor, var: Variable) -> Any:
        slots = tuple(self._slots[slot_name][var] for slot_name, _, _ in self._slot_starts)
        by_rows = self._formula in _BY_ROWS and lookups(grad) is not None
        fn = functools.partial(_applied, self._formula, by_rows)
        return update((var, *slots), fn, grad, self._prepared, name=f"Apply{self._name}")


# These leave rows without a lookup unchanged; the other rules change all rows, or it makes no difference.
_BY_ROWS = (
    _update_rules.momentum,
    _update_rules.nesterov,
    _update_rules.lazy_adam,
    _update_rules.adadelta,
    _update_rules.rmsprop,
    _update_rules.centered_rmsprop,
    _update_rules.ftrl,
    _update_rules.proximal_gradient_descent,
    _update_rules.proximal_adagrad,
)


def _applied(
    formula: Callable[..., Any], by_rows: bool, values: tuple[Any, ...], grad: Any, by: dict[str, Any]
) -> tuple[Any, ...]:
    dtype = values[0].dtype
    new = formula(*values, grad.astype(dtype), **{name: jnp.asarray(value, dtype) for name, value in by.items()})
    return tuple(where_touched(grad, *pair) for pair in zip(new, values, strict=True)) if by_rows else new


class GradientDescentOptimizer(Formula):
    """Gradient descent."""

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(_update_rules.gradient_descent, (), use_locking, name, learning_rate=learning_rate)


class MomentumOptimizer(Formula):
    """SGD with momentum."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        formula = _update_rules.nesterov if use_nesterov else _update_rules.momentum
        slots = [("momentum", name, 0.0)]
        super().__init__(formula, slots, use_locking, name, learning_rate=learning_rate, momentum=momentum)


class AdamOptimizer(Formula):
    """Adam, with epsilon before the correction of the second moment ("epsilon hat" of Kingma and Ba)."""

    _rule: Callable[..., Any] = staticmethod(_update_rules.adam)
    _decays: tuple[str, ...] = ("beta1", "beta2")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        slots = [("m", name, 0.0), ("v", name, 0.0)]
        super().__init__(self._rule, slots, use_locking, name, learning_rate=learning_rate, beta1=beta1,
                         beta2=beta2, epsilon=epsilon)  # fmt: skip

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for decay in self._decays:
            start = self._call_if_callable(self._hyperparameters[decay])
            self._create_non_slot_variable(start, f"{decay}_power", var_list)
        super()._create_slots(var_list)

    def _get_beta_accumulators(self) -> tuple[Variable, ...]:
        graph = get_default_graph()
        return tuple(self._non_slots[f"{decay}_power", graph] for decay in self._decays)

    def _prepare(self) -> None:
        super()._prepare()
        powers = zip(("power1", "power2"), self._get_beta_accumulators(), strict=False)
        self._prepared = self._prepared | dict(powers)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Operation:
        decays = [self._prepared[decay] for decay in self._decays]
        with control_dependencies(update_ops):
            powers = [
                update(power, _multiplied, decay, name=f"{power.op.name}/update")
                for power, decay in zip(self._get_beta_accumulators(), decays, strict=True)
            ]
        return super()._finish([*update_ops, *powers], name_scope)


def _multiplied(power: Any, decay: Any) -> Any:
    return power * jnp.asarray(decay, power.dtype)


class AdagradOptimizer(Formula):
    """Adagrad, without an epsilon; the sum of squares starts above zero."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0:
            raise ValueError(f"{name} requires initial_accumulator_value > 0, got {initial_accumulator_value}.")
        slots = [("accumulator", name, initial_accumulator_value)]
        super().__init__(_update_rules.adagrad, slots, use_locking, name, learning_rate=learning_rate)


class AdadeltaOptimizer(Formula):
    """Adadelta."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        slots = [("accum", name, 0.0), ("accum_update", name, 0.0)]
        super().__init__(
            _update_rules.adadelta, slots, use_locking, name, learning_rate=learning_rate, rho=rho, epsilon=epsilon
        )


class RMSPropOptimizer(Formula):
    """RMSProp with a mean of squares that starts at 1, and the rate inside the momentum."""

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        formula = _update_rules.centered_rmsprop if centered else _update_rules.rmsprop
        slots = [("rms", name, 1.0), *([("mg", name, 0.0)] if centered else []), ("momentum", name, 0.0)]
        super().__init__(formula, slots, use_locking, name, learning_rate=learning_rate, decay=decay,
                         momentum=momentum, epsilon=epsilon)  # fmt: skip


class FtrlOptimizer(Formula):
    """FTRL-Proximal ("follow the regularised leader"): sparse weights."""

    def __init__(
        self,
        learning_rate: Any,
        learning_rate_power: Any = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Any = 0.0,
        l2_regularization_strength: Any = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: Any = 0.0,
        beta: Any = None,
    ) -> None:
        if initial_accumulator_value < 0:
            raise ValueError(f"{name} requires initial_accumulator_value >= 0, got {initial_accumulator_value}.")
        slots = [("accum", accum_name or name, initial_accumulator_value), ("linear", linear_name or name, 0.0)]
        super().__init__(_update_rules.ftrl, slots, use_locking, name, learning_rate=learning_rate,
                         power=learning_rate_power, l1=l1_regularization_strength, l2=l2_regularization_strength,
                         shrinkage=l2_shrinkage_regularization_strength, beta=beta or 0.0)  # fmt: skip


class ProximalGradientDescentOptimizer(Formula):
    """Proximal gradient descent."""

    def __init__(
        self,
        learning_rate: Any,
        l1_regularization_strength: Any = 0.0,
        l2_regularization_strength: Any = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(_update_rules.proximal_gradient_descent, (), use_locking, name, learning_rate=learning_rate,
                         l1=l1_regularization_strength, l2=l2_regularization_strength)  # fmt: skip


class ProximalAdagradOptimizer(Formula):
    """Proximal Adagrad."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Any = 0.0,
        l2_regularization_strength: Any = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if initial_accumulator_value <= 0:
            raise ValueError(f"{name} requires initial_accumulator_value > 0, got {initial_accumulator_value}.")
        slots = [("accumulator", name, initial_accumulator_value)]
        super().__init__(_update_rules.proximal_adagrad, slots, use_locking, name, learning_rate=learning_rate,
                         l1=l1_regularization_strength, l2=l2_regularization_strength)  # fmt: skip
