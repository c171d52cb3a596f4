"""Optimizers: any Optax transformation as updates of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hookline import arguments, log
from hookline.graph.global_step import get_global_step
from hookline.graph.gradient import gradients
from hookline.graph.graph import InsideTraceError, Operation, Tensor, get_default_graph
from hookline.graph.initializers import trainable_variables
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.jaxpr_dependencies import are_independent, depends_on_first
from hookline.graph.nodes.ops import as_array, constant, group, op
from hookline.graph.registry import GraphKeys
from hookline.graph.variable import Variable, update
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)


class Optimizer:
    """Trains variables with an Optax transformation.

    To change or watch the rate, pass the function that makes the transformation, and the rate as a keyword:
    `Optimizer(optax.adam, learning_rate=rate)`. The rate may be

    - a number,
    - a variable: `rate.assign(...)` changes it, and checkpoints hold it,
    - a placeholder, or any other tensor,
    - a function of the global step, such as an Optax schedule; it gets the global step from before the run.

    `optimizer.learning_rate` is then the tensor to fetch, to log and to summarise.

    Args:
        transformation: Any `optax.GradientTransformation`, or a function that makes one from `hyperparameters`.
        name: Name of its operations and of the variables that hold its state.
        **hyperparameters: Arguments of that function. A numeric argument may be a number or a tensor, unless the
            initial state depends on it. Only `learning_rate` may be a function of the global step; other functions are
            passed on as they are (`mask=...`).

    Attributes:
        slots: The variables of its state, which `apply_gradients` makes: one for each trained variable if the
            transformation treats them independently, else (a global norm, for instance) one for all together.

    Raises:
        TypeError: `transformation` is something else, or contains a tensor.

    Example:
        >>> import hookline as hl, optax
        >>> weight = hl.Variable(4.0, name="weight")
        >>> rate = hl.Variable(0.25, name="rate", trainable=False)
        >>> step = hl.train.get_or_create_global_step()
        >>> optimizer = hl.train.Optimizer(optax.sgd, learning_rate=rate)
        >>> train_op = optimizer.minimize(weight * weight, global_step=step)
        >>> slower = rate.assign(rate / 2).op
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     sess.run(train_op)
        ...     print(sess.run((weight, step)))
        ...     sess.run(slower)
        ...     print(sess.run(optimizer.learning_rate))
        (Array(2., dtype=float32), np.int32(1))
        0.125

    References:
        `tf.train.Optimizer`. The rule comes from Optax; its state is in ordinary variables, so it is saved.
    """

    def __init__(
        self,
        transformation: optax.GradientTransformation | Callable[..., optax.GradientTransformation],
        name: str = "optimizer",
        **hyperparameters: Any,
    ) -> None:
        is_made = hasattr(transformation, "init") and hasattr(transformation, "update")
        if is_made and hyperparameters:
            raise TypeError(
                f"Optimizer: {', '.join(hyperparameters)} cannot be set on a transformation that is made already; give "
                f"the function that makes it: Optimizer(optax.adam, learning_rate=...)."
            )
        rate = hyperparameters.get("learning_rate", 0.0)
        if isinstance(rate, bool) or not (isinstance(rate, Tensor | Real | np.ndarray | jax.Array) or callable(rate)):
            raise TypeError(
                f"Optimizer: learning_rate is a number, a tensor or a function of the global step, got {rate!r}."
            )
        self._hyperparameters = hyperparameters
        self._hyperparameter_tensors: dict[str, Tensor] = {}
        self._name = arguments.check_str("Optimizer", "name", name)
        # This instance serves only to find the initial state, and the dependencies between variables.
        fixed = {key: _example_value(key, value) for key, value in hyperparameters.items()}
        self._make_transformation: Any = (lambda: transformation) if is_made else transformation
        try:
            made = self._make_transformation(**fixed)
        except TypeError as error:
            raise TypeError(f"Optimizer: {_REQUIRED}, got {transformation!r} ({error}).") from error
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise TypeError(f"Optimizer {_REQUIRED}, got {transformation!r}.")
        self._transformation = optax.with_extra_args_support(made)
        self.slots: list[Variable] = []

    @property
    def learning_rate(self) -> Tensor:
        """The rate of the next step, as a tensor.

        Raises:
            AttributeError: The rate was not passed as a keyword.
        """
        if "learning_rate" not in self._hyperparameters:
            raise AttributeError(
                "Optimizer: its learning rate is inside the Optax transformation; to see or change it, write "
                "Optimizer(optax.adam, learning_rate=...)."
            )
        if not self._hyperparameter_tensors:
            self._hyperparameter_tensors = self._make_hyperparameter_tensors(None)
        return self._hyperparameter_tensors["learning_rate"]

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Variable | Sequence[Variable] | None = None,
        *,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that makes one training step.

        Args:
            loss: A floating point scalar tensor.
            global_step: A variable to increment by one.
            var_list: The variables to train; by default all trainable variables.
            name: Name of the operation.

        Raises:
            TypeError: The global step is not a variable, or `var_list` contains something other than variables.
            ValueError: No variable influences the loss, or it is not one number.
        """
        _check_step(global_step)
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def compute_gradients(
        self, loss: Tensor, var_list: Variable | Sequence[Variable] | None = None
    ) -> list[tuple[Tensor | None, Variable]]:
        """Returns pairs of gradient and variable.

        The gradient is `None` if the loss does not depend on the variable, or if the variable holds only integers, such
        as a counter that was made without `trainable=False`.
        """
        if not isinstance(loss, Tensor):
            raise TypeError(f"Optimizer: the loss must be a tensor, got {loss!r}.")
        if loss.spec is not specs.UNKNOWN and specs.open_shape(loss.spec) != ():
            raise ValueError(
                f"Optimizer: the loss must be one number, got {loss.name!r} of {specs.describe(loss.spec)}. Take "
                "its mean or its sum, which have different gradients."
            )
        listed = [var_list] if isinstance(var_list, Variable) else var_list
        variables = trainable_variables() if listed is None else arguments.check_list("Optimizer", "var_list", listed)
        if not variables:
            raise ValueError(
                "Optimizer: there is no variable to train; make one with trainable=True, or give var_list."
            )
        for variable in variables:
            _check_variable(variable)
        if len(set(variables)) < len(variables):
            raise ValueError(f"Optimizer: var_list contains a variable twice: {[v.op.name for v in variables]}.")
        floating = [variable for variable in variables if not _is_integral(variable)]
        found = dict(zip(floating, gradients(loss, floating), strict=True))
        return [(found.get(variable), variable) for variable in variables]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that changes the variables along given gradients.

        This also makes the variables of the optimizer's state. They ignore control dependencies; the changes do not.

        Args:
            grads_and_vars: Pairs as `compute_gradients` returns them; pairs with `None` are left out.
            global_step: A variable to increment by one.
            name: Name of the operation.
        """
        _check_step(global_step)
        given = arguments.check_list("Optimizer", "grads_and_vars", grads_and_vars)
        for pair in given:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"Optimizer: pairs of gradient and variable are required, got {pair!r}.")
            _check_variable(pair[1])
        pairs = [(as_array(grad), variable) for grad, variable in given if grad is not None]
        if not pairs:
            raise ValueError("Optimizer: the loss depends on none of the variables to train.")
        graph = get_default_graph()
        with graph.name_scope(self._name):
            self._hyperparameter_tensors = self._make_hyperparameter_tensors(global_step)
            tensors = {
                key: tensor
                for key, tensor in self._hyperparameter_tensors.items()
                if _is_dynamic(key, self._hyperparameters[key])
            }
            variables = [variable for _, variable in pairs]
            try:
                # Even for one variable: a tensor inside the transformation is found before anything is made.
                if self._is_separable(variables) or len(pairs) == 1:
                    updates = [self._update(variable, grad, variable.op.name, tensors) for grad, variable in pairs]
                else:
                    updates = [self._update(variables, [grad for grad, _ in pairs], "joint", tensors)]
            except InsideTraceError as error:
                raise TypeError(
                    "Optimizer: the Optax transformation contains a tensor, which has no value there. Give the "
                    "function that makes the transformation, and the tensor as a keyword: "
                    "Optimizer(optax.adam, learning_rate=tensor)."
                ) from error
            if global_step is not None:
                updates.append(global_step.assign_add(1))
            train_op = group(*updates, name=name or "train")
        graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def _make_hyperparameter_tensors(self, global_step: Variable | None) -> dict[str, Tensor]:
        """Returns tensors of the rate and of each hyperparameter that may vary; new ones have no control inputs."""
        made: dict[str, Tensor] = {}
        with get_default_graph().control_dependencies(None):
            for key, value in self._hyperparameters.items():
                if isinstance(value, Tensor):
                    made[key] = value
                elif _is_dynamic(key, value):
                    step = get_global_step() if global_step is None else global_step
                    if step is None:
                        raise ValueError(
                            f"Optimizer: {key} is a function of the global step, and the graph has none: call "
                            f"hookline.train.get_or_create_global_step() first, or give minimize a global_step."
                        )
                    made[key] = op(value, name=key)(step)
                elif key == "learning_rate":
                    made[key] = constant(value, name=key)
        return made

    def _update(self, variables: Any, grads: Any, name: str, tensors: dict[str, Tensor]) -> Tensor:
        """Makes the state of the transformation for `variables` and one update of both."""
        self._check_initial_state(variables, tensors)
        with get_default_graph().control_dependencies(None):
            initial = jax.tree.map(lambda variable: variable.initial_value, variables)
            start = op(self._transformation.init, name="slots")(initial)
            slots = Variable(start, name=name, trainable=False, sharding=self._state_shardings(variables))
        self.slots.append(slots)

        # `apply` must not refer to this object, because it is sent to the process of the variables.
        make, given = (
            self._make_transformation,
            {key: value for key, value in self._hyperparameters.items() if key not in tensors},
        )

        @calls_user_code
        def apply(values: tuple[Any, Any], grads: Any, varying: dict[str, Any]) -> tuple[Any, Any]:
            params, state = values
            transformation = optax.with_extra_args_support(make(**given, **varying))
            changes, state = transformation.update(grads, state, params)
            return optax.apply_updates(params, changes), state

        return update((variables, slots), apply, grads, tensors, name=f"{name}/apply")

    def _state_shardings(self, variables: Any) -> Any:
        """Returns the shardings of the state: its parameter's for a leaf of the same shape, the default for others."""
        given = jax.tree.leaves(variables)
        default_sharding = given[0].graph.default_sharding
        if (
            default_sharding is None
            or not any(v.shardings for v in given)
            or any(v.spec is specs.UNKNOWN for v in given)
        ):
            return None
        params = jax.tree.map(lambda variable: variable.spec, variables)
        shardings = jax.tree.map(lambda v: jax.tree.structure(v.spec).unflatten(v.shardings), variables)

        def beside(slot: Any, param: Any, sharding: Any) -> Any:
            if isinstance(slot, optax.MaskedNode):
                return slot
            return sharding if slot.shape == param.shape else default_sharding

        try:
            return optax.tree_map_params(
                self._transformation,
                beside,
                jax.eval_shape(self._transformation.init, params),
                params,
                shardings,
                transform_non_params=lambda _: default_sharding,
                is_leaf=lambda slot: isinstance(slot, optax.MaskedNode),
            )
        except (TypeError, ValueError):
            _logger.warning(
                "Optimizer %r: Optax cannot map the parts of its state to variables, so all of the state is replicated "
                "on each device.",
                self._name,
            )
            return None

    def _check_initial_state(self, variables: Any, tensors: dict[str, Tensor]) -> None:
        """Refuses a tensor that the initial state depends on, because that state is made before any run."""
        params = jax.tree.map(lambda variable: variable.spec, variables)
        if any(spec is specs.UNKNOWN for spec in jax.tree.leaves(params)):
            return
        given = {key: value for key, value in self._hyperparameters.items() if key not in tensors}
        for key, tensor in tensors.items():
            others = {other: _example_value(other, tensor) for other, tensor in tensors.items() if other != key}

            def start(value: Any, params: Any, key: str = key, others: Any = others) -> Any:
                return self._make_transformation(**given, **others, **{key: value}).init(params)

            if depends_on_first(jax.make_jaxpr(start)(_example_value(key, tensor), params).jaxpr):
                raise TypeError(f"Optimizer: the initial state depends on {key}; give a number, not a tensor.")

    def _is_separable(self, variables: Sequence[Variable]) -> bool:
        """Returns whether the transformation treats variables independently, so that the updates may be separate."""
        params = [variable.spec for variable in variables]
        try:
            state = jax.eval_shape(self._transformation.init, params)
            for spec in params:
                jax.eval_shape(self._transformation.init, spec)
            traced = jax.make_jaxpr(self._transformation.update)(params, state, params)
        except InsideTraceError:
            raise
        except Exception:
            # A transformation that needs the whole structure (masks, labels), or shapes that are not known yet.
            return False
        if any(
            leaf.dtype == "uint32" or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)
        ):
            # Random keys are split over the leaves: separately, all variables would draw the same noise.
            return False
        owners = [i for i, spec in enumerate(params) for _ in jax.tree.leaves(spec)]
        n_state = len(jax.tree.leaves(state))
        return are_independent(traced.jaxpr, owners, n_state)


_REQUIRED = "requires an Optax transformation such as optax.adam(1e-3), or a function that makes one and its arguments"


def _is_dynamic(key: str, value: Any) -> bool:
    return isinstance(value, Tensor) or (key == "learning_rate" and callable(value))


def _example_value(key: str, value: Any) -> Any:
    """Returns a number in place of a hyperparameter that a run provides, so that the state has one structure."""
    if isinstance(value, Tensor):
        return jnp.zeros(value.shape or (), value.dtype or jnp.float32)
    return jnp.zeros(()) if _is_dynamic(key, value) else value


def _check_variable(variable: Any) -> None:
    if not isinstance(variable, Variable):
        raise TypeError(f"Optimizer: only variables can be trained, got {variable!r}.")


def _check_step(global_step: Any) -> None:
    if global_step is not None and not isinstance(global_step, Variable):
        raise TypeError(f"Optimizer: global_step must be a variable to increment, got {global_step!r}.")


def _is_integral(variable: Variable) -> bool:
    leaves = [] if variable.spec is specs.UNKNOWN else jax.tree.leaves(variable.spec)
    return bool(leaves) and not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves)
