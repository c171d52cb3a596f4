"""Optimizers: any Optax transformation as updates of variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hookline.graph.gradient import gradients
from hookline.graph.graph import Operation, Tensor, get_default_graph
from hookline.graph.initialisers import trainable_variables
from hookline.graph.ops import group, op
from hookline.graph.variable import Variable, update


class Optimizer:
    """Trains variables with an Optax transformation.

    Args:
        transformation: Any `optax.GradientTransformation`.
        name: Name of its operations and of the variables that hold its state.

    Attributes:
        slots: The variables of its state, made by `apply_gradients`: one for each trained variable where the
            transformation treats them independently, else (a global norm, for instance) one for all together.

    Example:
        >>> import hookline as hl, optax
        >>> weight = hl.Variable(4.0, name="weight")
        >>> step = hl.train.get_or_create_global_step()
        >>> train_op = hl.train.Optimizer(optax.sgd(0.25)).minimize(weight * weight, global_step=step)
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     sess.run(train_op)
        ...     print(sess.run((weight, step)))
        (Array(2., dtype=float32), np.int32(1))

    References:
        `tf.train.Optimizer`. The rule comes from Optax; its state is in ordinary variables, so it is saved.
    """

    def __init__(self, transformation: optax.GradientTransformation, name: str = "optimizer") -> None:
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise TypeError(
                f"Optimizer requires an Optax transformation such as optax.adam(1e-3), got {transformation!r}."
            )
        self._transformation = optax.with_extra_args_support(transformation)
        self._name = name
        self.slots: list[Variable] = []

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | None = None,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that makes one training step.

        Args:
            loss: A floating point scalar tensor.
            global_step: A variable to increment by one.
            var_list: What to train; by default all trainable variables.
            name: Name of the operation.

        Raises:
            ValueError: No variable influences the loss.
        """
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None
    ) -> list[tuple[Tensor | None, Variable]]:
        """Returns pairs of gradient and variable; the gradient is `None` where the loss does not depend on it."""
        variables = trainable_variables() if var_list is None else list(var_list)
        if not variables:
            raise ValueError(
                "Optimizer: there is no variable to train; make one with trainable=True, or give var_list."
            )
        return list(zip(gradients(loss, variables), variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Returns an operation that changes the variables along given gradients.

        Args:
            grads_and_vars: Pairs as `compute_gradients` returns them; pairs with `None` are left out.
            global_step: A variable to increment by one.
            name: Name of the operation.
        """
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("Optimizer: the loss depends on none of the variables to train.")
        with get_default_graph().name_scope(self._name):
            variables = [variable for _, variable in pairs]
            if len(pairs) == 1 or self._is_separable(variables):
                updates = [self._update(variable, grad, variable.op.name) for grad, variable in pairs]
            else:
                updates = [self._update(variables, [grad for grad, _ in pairs], "joint")]
            if global_step is not None:
                updates.append(global_step.assign_add(1))
            return group(*updates, name=name or "train")

    def _update(self, variables: Any, grads: Any, name: str) -> Tensor:
        """Makes the state of the transformation for `variables` and one update of both."""
        initial = jax.tree.map(lambda variable: variable.initialized_value(), variables)
        slots = Variable(op(self._transformation.init, name="slots")(initial), name=name, trainable=False)
        self.slots.append(slots)

        # Of the transformation alone: the function travels to where the variables live.
        transformation = self._transformation

        def apply(values: tuple[Any, Any], grads: Any) -> tuple[Any, Any]:
            params, state = values
            changes, state = transformation.update(grads, state, params)
            return optax.apply_updates(params, changes), state

        return update((variables, slots), apply, grads, name=f"{name}/apply")

    def _is_separable(self, variables: Sequence[Variable]) -> bool:
        """Whether the transformation does to each variable what it would do to it alone, so that they may part."""
        params = [variable.spec for variable in variables]
        try:
            state = jax.eval_shape(self._transformation.init, params)
            for spec in params:
                jax.eval_shape(self._transformation.init, spec)
            traced = jax.make_jaxpr(self._transformation.update)(params, state, params)
        except Exception:
            # A transformation that needs the whole structure (masks, labels), or shapes not known yet.
            return False
        if any(
            leaf.dtype == "uint32" or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)
        ):
            # Random keys are split over the leaves: apart, all variables would draw the same noise.
            return False
        owners = [i for i, spec in enumerate(params) for _ in jax.tree.leaves(spec)]
        n_state = len(jax.tree.leaves(state))
        return independent(traced.jaxpr, owners, n_state)


def independent(jaxpr: Any, owners: Sequence[int], n_state: int) -> bool:
    """Whether no output of an update rule depends on the gradients or values of two variables.

    Args:
        jaxpr: `update(grads, state, params) -> (changes, state)`, leaves in order.
        owners: For each gradient leaf, and each parameter leaf, the number of its variable.
        n_state: The number of leaves of the state.
    """
    state_owners: list[frozenset[int]] = [frozenset()] * n_state
    grads = [frozenset([owner]) for owner in owners]
    while True:
        known = dict(zip(jaxpr.invars, [*grads, *state_owners, *grads], strict=True))
        for equation in jaxpr.eqns:
            taints = [known.get(v, frozenset()) for v in equation.invars if not hasattr(v, "val")]
            known.update(dict.fromkeys(equation.outvars, frozenset().union(*taints)))
        outputs = [frozenset() if hasattr(v, "val") else known.get(v, frozenset()) for v in jaxpr.outvars]
        if any(len(output) > 1 for output in outputs):
            return False
        new_state = [old | new for old, new in zip(state_owners, outputs[len(owners) :], strict=True)]
        if new_state == state_owners:
            return True
        state_owners = new_state
