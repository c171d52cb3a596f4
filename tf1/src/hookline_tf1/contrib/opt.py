"""`tf.contrib.opt`: further optimizers, with TensorFlow's formulas.

Optax has most of them with other formulas: it adds epsilon elsewhere, and scales weight decay otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from hookline import Operation, Tensor, Variable, group, update
from hookline.train import get_global_step
from hookline_tf1._machinery.graphs import control_dependencies
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._tf.variables import global_variables
from hookline_tf1.train import _optimizers as base
from hookline_tf1.train import _update_rules
from hookline_tf1.train._moving_averages import ExponentialMovingAverage
from hookline_tf1.train._optimizer import Optimizer
from hookline_tf1.train._saver import Saver

__all__ = [
    "AdaMaxOptimizer",
    "AdamWOptimizer",
    "AddSignOptimizer",
    "DecoupledWeightDecayExtension",
    "LARSOptimizer",
    "LazyAdamOptimizer",
    "MomentumWOptimizer",
    "MovingAverageOptimizer",
    "NadamOptimizer",
    "PowerSignOptimizer",
    "extend_with_decoupled_weight_decay",
]

__getattr__, __dir__ = offered("tf.contrib.opt", lambda: __all__)


class NadamOptimizer(base.AdamOptimizer):
    """Adam with Nesterov momentum."""

    _rule = staticmethod(_update_rules.nadam)


class LazyAdamOptimizer(base.AdamOptimizer):
    """Adam that updates only the looked-up rows of an embedding table and their moments."""

    _rule = staticmethod(_update_rules.lazy_adam)


class AdaMaxOptimizer(base.AdamOptimizer):
    """AdaMax: Adam with the infinity norm of the gradients (Kingma and Ba, section 7)."""

    _rule, _decays = staticmethod(_update_rules.adamax), ("beta1",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdaMax",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)


class DecoupledWeightDecayExtension:
    """Decoupled weight decay (Loshchilov and Hutter): a mixin, before an optimizer's class in the bases.

    Each step first subtracts `weight_decay` times the variable; the learning rate does not scale it.

    Args:
        weight_decay: As above: a number, a tensor, or a function that returns one.
        **kwargs: The arguments of the optimizer.
    """

    def __init__(self, weight_decay: Any, **kwargs: Any) -> None:
        self._weight_decay = weight_decay
        self._decay_var_list: list[Variable] | None = None
        super().__init__(**kwargs)

    def minimize(self, *args: Any, decay_var_list: Sequence[Variable] | None = None, **kwargs: Any) -> Operation:
        """See `tf.train.Optimizer`; `decay_var_list` are the variables to decay, all by default."""
        self._decay_var_list = None if decay_var_list is None else list(decay_var_list)
        optimizer: Any = super()
        return optimizer.minimize(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
        decay_var_list: Sequence[Variable] | None = None,
    ) -> Operation:
        """See `tf.train.Optimizer`; `decay_var_list` as in `minimize`."""
        if decay_var_list is not None:
            self._decay_var_list = list(decay_var_list)
        optimizer: Any = super()
        return optimizer.apply_gradients(grads_and_vars, global_step, name)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Any:
        optimizer: Any = super()
        if self._decay_var_list and not any(var is each for each in self._decay_var_list):
            return optimizer._apply_dense(grad, var)
        decay = self._weight_decay
        decay = decay() if callable(decay) and not isinstance(decay, Tensor) else decay
        with control_dependencies([update((var,), _decayed, decay, name="decay")]):
            return optimizer._apply_dense(grad, var)


def _decayed(values: tuple[Any], decay: Any) -> tuple[Any]:
    (var,) = values
    return (var - jnp.asarray(decay, var.dtype) * var,)


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Optimizer]:
    """Returns a subclass of an optimizer with decoupled weight decay, and `weight_decay` as its first argument."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any) -> None:
            self._weight_decay = weight_decay
            self._decay_var_list = None
            base_optimizer.__init__(self, *args, **kwargs)

    return OptimizerWithDecoupledWeightDecay


class MomentumWOptimizer(DecoupledWeightDecayExtension, base.MomentumOptimizer):
    """SGD with momentum and decoupled weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(weight_decay, learning_rate=learning_rate, momentum=momentum, use_locking=use_locking,
                         name=name, use_nesterov=use_nesterov)  # fmt: skip


class AdamWOptimizer(DecoupledWeightDecayExtension, base.AdamOptimizer):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(weight_decay, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon,
                         use_locking=use_locking, name=name)  # fmt: skip


class _SignOptimizer(base.Formula):
    """An optimizer whose steps depend on whether the signs of a gradient and its moving mean agree."""

    def __init__(self, formula: Any, sign_decay_fn: Any, use_locking: bool, name: str, **hyperparameters: Any) -> None:
        super().__init__(formula, [("m", name, 0.0)], use_locking, name, sign_decay=1.0, **hyperparameters)
        self._sign_decay_fn: Callable[[Any], Any] | None = sign_decay_fn

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """See `tf.train.Optimizer`; a `sign_decay_fn` gets the global step."""
        if self._sign_decay_fn is not None:
            step = get_global_step() if global_step is None else global_step
            if step is None:
                raise ValueError(f"{self._name} requires a global step for its sign_decay_fn, got none.")
            self._hyperparameters = {**self._hyperparameters, "sign_decay": self._sign_decay_fn(step)}
        return super().apply_gradients(grads_and_vars, global_step, name)


class AddSignOptimizer(_SignOptimizer):
    """AddSign (Bello et al., "Neural Optimizer Search with Reinforcement Learning")."""

    def __init__(
        self,
        learning_rate: Any = 0.1,
        alpha: Any = 1.0,
        beta: Any = 0.9,
        sign_decay_fn: Any = None,
        use_locking: bool = False,
        name: str = "AddSignOptimizer",
    ) -> None:
        super().__init__(_update_rules.add_sign, sign_decay_fn, use_locking, name, learning_rate=learning_rate,
                         alpha=alpha, beta=beta)  # fmt: skip


class PowerSignOptimizer(_SignOptimizer):
    """PowerSign (Bello et al., see AddSign)."""

    def __init__(
        self,
        learning_rate: Any = 0.1,
        base: float = math.e,
        beta: Any = 0.9,
        sign_decay_fn: Any = None,
        use_locking: bool = False,
        name: str = "PowerSignOptimizer",
    ) -> None:
        super().__init__(_update_rules.power_sign, sign_decay_fn, use_locking, name, learning_rate=learning_rate,
                         logbase=math.log(base), beta=beta)  # fmt: skip


class LARSOptimizer(base.MomentumOptimizer):
    """SGD with momentum and layer-wise learning rates (You, Gitman and Ginsburg)."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: Any = 0.0001,
        eeta: Any = 0.001,
        epsilon: Any = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        if momentum < 0:
            raise ValueError(f"LARSOptimizer requires momentum >= 0, got {momentum}.")
        super().__init__(learning_rate, momentum, False, name, use_nesterov)
        self._layer = {"weight_decay": weight_decay, "eeta": eeta, "epsilon": epsilon}
        self._skip_list, self._whole = tuple(skip_list or ()), self._formula
        self._scaled = functools.partial(_of_layer, self._whole)

    def _prepare(self) -> None:
        super()._prepare()
        self._plain = self._prepared

    def _apply_dense(self, grad: Tensor, var: Variable) -> Any:
        is_skipped = any(each in var.op.name for each in self._skip_list)
        self._formula = self._whole if is_skipped else self._scaled
        self._prepared = self._plain if is_skipped else {**self._plain, **self._layer}
        return super()._apply_dense(grad, var)


def _of_layer(
    formula: Any, var: Any, accum: Any, grad: Any, learning_rate: Any, momentum: Any, weight_decay: Any, **by: Any
) -> Any:
    ratio = _update_rules.trust_ratio(var, grad, weight_decay, **by)
    return formula(var, accum, grad + weight_decay * var, learning_rate * ratio, momentum)


class MovingAverageOptimizer(Optimizer):
    """An optimizer that also keeps moving averages of its variables.

    Args:
        opt: The optimizer to wrap.
        average_decay: See `tf.train.ExponentialMovingAverage`.
        num_updates: See `average_decay`.
        sequential_update: Whether to average the variables after the step.
    """

    def __init__(
        self, opt: Optimizer, average_decay: Any = 0.9999, num_updates: Any = None, sequential_update: bool = True
    ) -> None:
        super().__init__(False, type(self).__name__)
        self._optimizer, self._sequential_update = opt, sequential_update
        self._ema = ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._averaged: list[Variable] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Tensor | None, Variable]]:
        """Computes the gradients with the wrapped optimizer."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that makes the wrapped optimizer's step and updates the averages."""
        pairs = list(grads_and_vars)
        step = self._optimizer.apply_gradients(pairs, global_step, name)
        self._averaged = [variable for grad, variable in pairs if grad is not None]
        with control_dependencies([step] if self._sequential_update else []):
            return group(step, self._ema.apply(self._averaged), name="train_with_avg")

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        self._optimizer._create_slots(var_list)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Returns a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the slots of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """Returns the variables of the wrapped optimizer."""
        return self._optimizer.variables()

    def swapping_saver(self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any) -> Saver:
        """Returns a saver that swaps names: it saves each average as its variable, and each variable as its average."""
        if not self._averaged:
            raise RuntimeError("Must call apply_gradients or minimize before creating the swapping_saver")
        given = global_variables() if var_list is None else var_list
        by_name = dict(given) if isinstance(given, dict) else {each.op.name: each for each in given}
        names = {id(variable): name for name, variable in by_name.items()}
        swapped = dict(by_name)
        for variable in self._averaged:
            average: Any = self._ema.average(variable)
            if id(variable) in names and id(average) in names:
                swapped[names[id(variable)]], swapped[names[id(average)]] = average, variable
        return Saver(swapped, name=name, **kwargs)
