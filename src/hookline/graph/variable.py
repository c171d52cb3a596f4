"""Variables: values that outlive a run, and the updates that change them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hookline.graph import spec as specs
from hookline.graph.graph import get_default_graph
from hookline.graph.keys import GraphKeys
from hookline.graph.ops import constant, group, holds_tensor, host_op, op
from hookline.graph.tensor import Kind, Operation, Tensor, as_spec


class Variable(Tensor):
    """A value that stays in the session from run to run: any pytree of arrays.

    Reading it in an operation reads it; `assign`, `assign_add`, `assign_sub` and `update` write. In a run every read
    sees the value from before that run, unless the reading operation depends on an update, through
    `control_dependencies` or by using the update's result.

    Args:
        initial_value: A pytree of arrays; or a function without arguments that returns one, so that nothing is
            allocated while the graph is built; or a tensor. What it needs of other variables it takes from their
            `initialized_value()`.
        name: Its name; numbered if taken.
        trainable: Whether optimizers change it by default.
        collections: Collections to join; by default `GraphKeys.GLOBAL_VARIABLES`: initialised together, and saved.

    Attributes:
        trainable: As above.
        per_worker: Whether each worker has one of its own even where variables are shared; the counters of random keys.

    Example:
        >>> import hookline as hl
        >>> count = hl.Variable(10, name="count", trainable=False)
        >>> bump = count.assign_add(5)
        >>> with hl.Session() as sess:
        ...     sess.run(count.initializer)
        ...     print(sess.run((count, bump)))
        (np.int32(10), Array(15, dtype=int32))

    References:
        `tf.Variable`. The value may be any pytree; a read in a run never races with a write.
    """

    def __init__(
        self,
        initial_value: Any,
        name: str | None = None,
        trainable: bool = True,
        collections: Iterable[Hashable] | None = None,
    ) -> None:
        if isinstance(initial_value, Tensor):
            initial_value.graph.check_open()
        node = Operation(Kind.VARIABLE, name or "Variable")
        super().__init__(node)
        node.output = self
        self.trainable = trainable
        self.per_worker = False
        graph = node.graph
        with graph.name_scope(f"{node.name}/"), graph.control_dependencies(None):
            self._initial = _initial_tensor(initial_value, node.name)
            self.spec = _strong(self._initial.spec)
            self._initializer = Update("Assign", self, _replace, (self._initial,), overwrites=True, initialises=True)
        for key in dict.fromkeys([GraphKeys.GLOBAL_VARIABLES] if collections is None else collections):
            graph.add_to_collection(key, self)
        if trainable:
            graph.add_to_collection(GraphKeys.TRAINABLE_VARIABLES, self)

    @property
    def initializer(self) -> Operation:
        """The operation that gives it its initial value."""
        return self._initializer

    def initialized_value(self) -> Tensor:
        """Returns the initial value as a tensor: what another variable's initial value is computed from."""
        return self._initial

    def read_value(self) -> Tensor:
        """Returns a tensor that reads the variable at this place: after the updates in `control_dependencies`."""
        return op(lambda value: value, name=f"{self.op.name}/read")(self)

    def assign(self, value: Any) -> Tensor:
        """Returns an update that sets the variable to `value`; its tensor is the new value."""
        return Update(f"{self.op.name}/assign", self, _replace, (value,), overwrites=True).output

    def assign_add(self, delta: Any) -> Tensor:
        """Returns an update that adds `delta` (the same structure); its tensor is the new value."""
        return self._shift("assign_add", delta, operator.add, 1)

    def assign_sub(self, delta: Any) -> Tensor:
        """Returns an update that subtracts `delta` (the same structure); its tensor is the new value."""
        return self._shift("assign_sub", delta, operator.sub, -1)

    def _shift(self, name: str, delta: Any, change: Callable[[Any, Any], Any], sign: int) -> Tensor:
        update_ = Update(f"{self.op.name}/{name}", self, lambda old, by: jax.tree.map(change, old, by), (delta,))
        if is_counter(self) and isinstance(delta, int | np.integer) and not isinstance(delta, bool):
            update_.increment = sign * int(delta)
        return update_.output


def is_counter(variable: Variable) -> bool:
    """Whether it is an integer scalar: the host keeps a copy of it, which advances without asking the device."""
    return specs.is_array(variable.spec) and variable.shape == () and jnp.issubdtype(variable.dtype, jnp.integer)


def _replace(_: Any, value: Any) -> Any:
    return value


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
        if not self.variables or not all(isinstance(variable, Variable) for variable in self.variables):
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


def _strong(spec: Any) -> Any:
    """Returns the spec without weak types: a variable made from the number 1.0 is a float32 for good."""
    if spec is specs.UNKNOWN:
        return spec
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), spec)


def _initial_tensor(initial_value: Any, name: str) -> Tensor:
    """Returns the initial value as a tensor: a node of its own, unless it is a tensor already."""
    if isinstance(initial_value, Tensor):
        return initial_value
    is_function = callable(initial_value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(initial_value))
    if not is_function:
        if holds_tensor(initial_value):
            return op(lambda value: value, name="initial_value")(initial_value)
        _refuse_module(initial_value, name)
        tensor = constant(initial_value, name="initial_value")
        if tensor.spec is specs.UNKNOWN:
            raise TypeError(f"Variable {name!r} requires a pytree of arrays and numbers, got {initial_value!r}.")
        return tensor
    results: list[Any] = []
    concrete: list[bool] = []

    def probe() -> Any:
        result = initial_value()
        results.append(result)
        _refuse_module(result, name)
        concrete.extend(not isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result))
        return None if holds_tensor(result) else result

    spec = jax.eval_shape(probe)
    if holds_tensor(results[0]):
        return _initial_tensor(results[0], name)
    if any(concrete):
        # NumPy values would be baked into the compiled program as constants; they are computed in Python instead.
        return host_op(initial_value, name="initial_value", spec=spec).node()
    return op(initial_value, name="initial_value").node()


def _refuse_module(value: Any, name: str) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ == "Module" and kind.__module__.startswith("flax.nnx"):
            raise TypeError(
                f"Variable {name!r}: a whole nnx.Module is no value. Split it: `graphdef, params, rest = "
                f"nnx.split(model, nnx.Param, ...)`, make one variable of `params` and one, trainable=False, of "
                f"`rest`, and call nnx.merge(graphdef, params, rest) inside hookline.op."
            )


def variables(tree: Any, name: str = "variables", trainable: bool = True) -> Any:
    """Returns a pytree of variables, one for each leaf of `tree`.

    A variable may hold a whole pytree; apart, its leaves can be trained, watched and placed on parameter servers one by
    one.

    Args:
        tree: A pytree of arrays, or a function without arguments that returns one.
        name: What their names begin with; the path of each leaf follows.
        trainable: As for `Variable`.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> params = hl.variables(lambda: {"dense": {"w": jnp.ones(2), "b": jnp.zeros(())}}, name="net")
        >>> params["dense"]["w"].name
        'net/dense/w:0'
    """
    initial = _initial_tensor(tree, name)
    if initial.spec is specs.UNKNOWN:
        raise TypeError(f"variables {name!r} requires a pytree of known structure, got {tree!r}.")

    def make(path: Any, _: Any) -> Variable:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        label = "/".join([name, *(re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in parts)])
        leaf = op(lambda values: dict(jax.tree.leaves_with_path(values))[path], name="initial_value")(initial)
        return Variable(leaf, name=label, trainable=trainable)

    return jax.tree.map_with_path(make, initial.spec)


def global_variables() -> list[Variable]:
    """Returns the variables that all workers share and that checkpoints hold."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)


def local_variables() -> list[Variable]:
    """Returns the variables that belong to one process and are not saved."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES)


def trainable_variables() -> list[Variable]:
    """Returns the variables that optimizers change by default."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES)


def variables_initializer(var_list: Iterable[Variable], name: str = "init") -> Operation:
    """Returns an operation that initialises the given variables, in one program."""
    return group(*(variable.initializer for variable in var_list), name=name)


def global_variables_initializer() -> Operation:
    """Returns an operation that initialises all global variables made so far.

    References:
        `tf.global_variables_initializer`.
    """
    return variables_initializer(global_variables(), name="init")


def local_variables_initializer() -> Operation:
    """Returns an operation that initialises all local variables made so far."""
    return variables_initializer(local_variables(), name="init_local")


def report_uninitialized_variables(var_list: Iterable[Variable] | None = None) -> Tensor:
    """Returns a tensor of the names of the variables that have no value yet: an empty list when all is ready.

    Args:
        var_list: Variables to look at; by default all global and local ones made so far.

    Example:
        >>> import hookline as hl
        >>> weight = hl.Variable(1.0, name="weight")
        >>> missing = hl.report_uninitialized_variables()
        >>> with hl.Session() as sess:
        ...     print(sess.run(missing), sess.run(weight.initializer), sess.run(missing))
        ['weight'] None []

    References:
        `tf.report_uninitialized_variables`. The value is a list of Python strings.
    """
    watched = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    return Operation(
        Kind.SESSION, "report_uninitialized_variables", fn=lambda session: session.uninitialized(watched)
    ).output
