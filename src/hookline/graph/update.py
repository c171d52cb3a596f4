"""Updates: what changes variables in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from hookline.graph import spec as specs
from hookline.graph.tensor import Kind, Operation, Tensor, as_spec

if TYPE_CHECKING:
    from hookline.graph.variable import Variable


class Update(Operation):
    """The node behind `update`.

    Attributes:
        variables: What it writes.
        overwrites: It does not look at the old values.
        initialises: It is a variable's initializer.
        increment: The amount it adds to an integer scalar, where the host knows it.
    """

    def __init__(
        self,
        name: str,
        variables: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        overwrites: bool = False,
        initialises: bool = False,
    ) -> None:
        self.variables: list[Variable] = jax.tree.leaves(variables)
        self.structure = jax.tree.structure(variables)
        if not self.variables or not all(map(_is_variable, self.variables)):
            raise TypeError(f"update {name!r} requires variables to write, got {variables!r}.")
        if len(set(self.variables)) < len(self.variables):
            raise ValueError(f"update {name!r}: a variable stands twice in {variables!r}.")
        self.overwrites, self.initialises = overwrites, initialises
        self.increment: int | None = None
        super().__init__(Kind.UPDATE, name, fn=fn, args=args)
        for variable in self.variables:
            if variable.graph is not self.graph:
                raise ValueError(f"update {name!r}: variable {variable.name!r} belongs to another graph.")
        old = jax.tree.unflatten(self.structure, [variable.spec for variable in self.variables])
        self.output.spec = old
        self._check(old)

    def _check(self, old: Any) -> None:
        known = not any(spec is specs.UNKNOWN for spec in jax.tree.leaves(old))
        inputs = [as_spec(tensor) for tensor in self.inputs]
        if self.initialises or not known:
            return

        def call(old: Any, *values: Any) -> Any:
            remaining = iter(values)
            assert self.fn is not None
            return self.fn(old, *self.bind(lambda _: next(remaining)))

        try:
            new = specs.infer(call, [old, *inputs])
            if new is not specs.UNKNOWN:
                self.check_new(new)
        except Exception as error:
            self.note(error)
            raise

    def check_new(self, new: Any) -> list[Any]:
        """Returns the new value of each variable, checked against what the variable holds.

        Raises:
            ValueError: Another structure, shape or kind of dtype, naming the variable.
        """
        try:
            values = self.structure.flatten_up_to(new)
        except ValueError as error:
            raise ValueError(f"{self.node_def} returned another structure than its variables have: {error}") from None
        for variable, value in zip(self.variables, values, strict=True):
            if variable.spec is not specs.UNKNOWN:
                check_value(variable.op.name, variable.spec, value)
        return values


def check_value(name: str, spec: Any, value: Any) -> None:
    """Raises `ValueError` if `value`, concrete or a spec, does not fit the variable `name` of that spec."""
    wanted, structure = jax.tree.flatten_with_path(spec)
    given = jax.tree.leaves(value)
    if jax.tree.structure(value) != structure:
        raise ValueError(
            f"Variable {name!r} holds the structure {structure}, but would be set to {jax.tree.structure(value)}."
        )
    for (path, leaf_spec), leaf in zip(wanted, given, strict=True):
        shape, dtype = jnp.shape(leaf), getattr(leaf, "dtype", None) or jax.dtypes.result_type(leaf)
        # A shape that is still open is compared when the run knows it.
        known = all(isinstance(dim, int) for dim in (*shape, *leaf_spec.shape))
        problem = specs.mismatch(leaf_spec, shape, dtype) if known else None
        if problem:
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"Variable {where!r} has a fixed shape and dtype; the value it would be set to {problem}.")


def update(variables: Any, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Tensor:
    """Returns an update that applies `fn` to the variables, where they live.

    This is the primitive that all writing is made of: in one process it is fused into the step; on a parameter server
    it runs there. Several updates of one variable in a run apply in the order in which they were made, and all writes
    of a run become visible together.

    Args:
        variables: A variable, or a pytree of variables.
        fn: `fn(values, *args) -> new_values`, with the values in the structure of `variables`; traced by JAX.
        *args: Tensors or plain values, nested anywhere.
        name: Name of the node; by default that of `fn`.

    Returns:
        A tensor of the new values, in the structure of `variables`.

    Raises:
        ValueError: The new values have another structure, shape or kind of dtype than the variables.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> low, high = hl.Variable(0.0, name="low"), hl.Variable(0.0, name="high")
        >>> def widen(bounds, x):
        ...     return jnp.minimum(bounds[0], x), jnp.maximum(bounds[1], x)
        >>> widened = hl.update((low, high), widen, hl.constant(3.0))
        >>> with hl.Session() as sess:
        ...     sess.run(hl.global_variables_initializer())
        ...     print(sess.run(widened[1]))
        3.0
    """
    return Update(name or getattr(fn, "__name__", "update").strip("<>"), variables, fn, args).output


def _is_variable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.op.kind is Kind.VARIABLE and value is value.op.output
