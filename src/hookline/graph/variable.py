"""Variables: values that outlive a run. Updates: operations that change them in a run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments, log
from hookline import sharding as rules
from hookline.graph import placement
from hookline.graph.graph import Function, Operation, Tensor, contains_tensor, function_name, get_default_graph
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Constant, check_range
from hookline.graph.nodes.ops import initial_tensor, op
from hookline.graph.nodes.views import get_at_path
from hookline.graph.registry import GraphKeys
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)


class VariableRead(Operation):
    """The node behind a variable, which is its output."""

    type = "Variable"

    def __init__(self, name: str, variable: Variable) -> None:
        self.variable = variable
        super().__init__(name)

    def _make_output(self, spec: Any) -> Tensor:
        return self.variable


class Update(Operation):
    """The node behind `update`.

    Its value is the new value of its variables, in their structure. It is not differentiated: a gradient treats it as a
    constant.

    Attributes:
        structure: The structure in which `fn` takes and returns the values of the variables.
        overwrites: Whether it ignores the old values.
        increment: The amount it adds to an integer scalar, if the host knows it.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Update
        >>> count = hl.Variable(1, name="count")
        >>> node = Update("multiply", count, lambda old, factor: old * factor, (hl.constant(3),))
        >>> with hl.Session() as sess:
        ...     sess.run(count.initializer)
        ...     print(sess.run(node.output))
        3
    """

    type = "Update"
    supports_check = True

    def __init__(
        self,
        name: str,
        variables: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        overwrites: bool = False,
        is_initializer: bool = False,
    ) -> None:
        self.variables: list[Variable] = jax.tree.leaves(variables)
        self.structure = jax.tree.structure(variables)
        if not self.variables or not all(isinstance(variable, Variable) for variable in self.variables):
            raise TypeError(f"update {name!r} requires variables to write, got {variables!r}.")
        if len(set(self.variables)) < len(self.variables):
            raise ValueError(f"update {name!r}: {variables!r} contains a variable twice.")
        self.overwrites, self.is_initializer = overwrites or is_initializer, is_initializer
        self.increment: int | None = None
        self.fn = fn
        super().__init__(name, args)
        for variable in self.variables:
            if variable.graph is not self.graph:
                raise ValueError(f"update {name!r}: variable {variable.name!r} belongs to another graph.")
        old = jax.tree.unflatten(self.structure, [variable.spec for variable in self.variables])
        self.output.spec = old
        self._check_specs(old)

    def _check_specs(self, old: Any) -> None:
        known = not any(spec is specs.UNKNOWN for spec in jax.tree.leaves(old))
        if self.is_initializer or not known:
            return

        def call(old: Any, *values: Any) -> Any:
            remaining = iter(values)
            return self.fn(old, *self.bind(lambda _: next(remaining)))

        try:
            with placement.enter_mesh(self.graph.mesh_context):
                new = specs.infer(call, [old, *(tensor.spec for tensor in self.inputs)])
            if new is not specs.UNKNOWN:
                self.check_new_values(new)
        except Exception as error:
            self.annotate_error(error)
            raise

    @calls_user_code
    def call(self, old: Any, *args: Any) -> Any:
        """Returns the function's result for the variables' old values and its other arguments."""
        return self.fn(old, *args)

    def check_new_values(self, new: Any) -> list[Any]:
        """Returns the new value of each variable, checked against the variable's spec.

        Raises:
            ValueError: The structure, shape or kind of dtype differs; the message names the variable.
        """
        try:
            values = self.structure.flatten_up_to(new)
        except ValueError as error:
            raise ValueError(f"{self.node_def} returned another structure than its variables have: {error}") from None
        for variable, value in zip(self.variables, values, strict=True):
            if variable.spec is not specs.UNKNOWN:
                check_value(variable.op.name, variable.spec, value)
        return values


class Variable(Tensor):
    """A value that the session keeps from run to run: any pytree of arrays.

    An operation that takes the variable reads it; `assign`, `assign_add`, `assign_sub` and `update` write it. In a run
    every read sees the value from before that run, unless the reading operation depends on an update, through
    `control_dependencies` or by using the update's result.

    Args:
        initial_value: A pytree of arrays; or a function without arguments that returns one, so that building the graph
            allocates nothing; or a tensor. If it needs other variables, it takes their `initialized_value()`. It
            ignores `control_dependencies` blocks around it.
        name: Its name; numbered if taken.
        trainable: Whether optimizers change it by default.
        collections: Collections to join; by default `GraphKeys.GLOBAL_VARIABLES`: initialised together, and saved.
        dtype: The dtype of all its arrays; by default that of the initial value.
        sharding: The sharding of its arrays: a `jax.sharding.Sharding` or a device for all, a tree of them like the
            value or like the upper part of it, or a function from the value's shapes to one (`hookline.sharding`). By
            default the sharding of the initial value, or the one that its function fixes.

    Attributes:
        trainable: Whether optimizers change it by default.
        initializer: The operation that gives it its initial value.
        given_shardings: The shardings of its arrays, in order, with `None` for arrays without one; empty if no array
            has one. Initialisation, programs, `load` and a restore keep them.
        per_worker: Whether each worker has its own copy even if variables are shared, as for the counters of random
            keys.

    Example:
        >>> import hookline as hl
        >>> count = hl.Variable(10, name="count", trainable=False)
        >>> bump = count.assign_add(5)
        >>> with hl.Session() as sess:
        ...     sess.run(count.initializer)
        ...     print(sess.run((count, bump)))
        (np.int32(10), Array(15, dtype=int32))

    References:
        `tf.Variable`. The value may be any pytree; reads never race with writes.
    """

    def __init__(
        self,
        initial_value: Any,
        name: str | None = None,
        trainable: bool = True,
        collections: Iterable[Hashable] | None = None,
        *,
        dtype: Any = None,
        sharding: Any = None,
    ) -> None:
        graph = get_default_graph()
        if initial_value is None:
            raise ValueError(f"Variable {name or 'Variable'!r} requires an initial value, got None.")
        given = arguments.check_list("Variable", "collections", collections, optional=True)
        keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else given
        with graph.control_dependencies(None):
            node = VariableRead("Variable" if name is None else name, self)
            super().__init__(node)
            self.trainable = trainable
            self.per_worker = False
            with graph.name_scope(f"{node.name}/"):
                self._initial = initial_tensor(initial_value, node.name)
                who, made = f"Variable {node.name!r}", self._initial
                if dtype is not None:
                    self._initial = _cast(self._initial, specs.canonical_dtype(dtype), node.name)
                self.spec = _without_weak_types(self._initial.spec)
                found = initial_shardings(who, made, initial_value, self.spec, sharding)
                self.given_shardings = tuple(found) if any(each is not None for each in found) else ()
                graph.record_shardings(who, [*self.given_shardings, placement.current_mesh_context()])
                self.spec = placement.with_explicit_shardings(self.spec, self.given_shardings)
                if isinstance(self._initial.op, Constant) and self._initial is self._initial.op.output:
                    self._initial.op.shardings = self.shardings
                self.initializer: Operation = Update(
                    "initializer", self, _replace, (self._initial,), is_initializer=True
                )
        for key in dict.fromkeys(keys):
            graph.add_to_collection(key, self)
        if trainable:
            graph.add_to_collection(GraphKeys.TRAINABLE_VARIABLES, self)

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The shardings of its arrays in a session of this process, in order; empty if JAX decides."""
        default = self.graph.default_sharding
        if self.spec is specs.UNKNOWN or (default is None and not self.given_shardings):
            return ()
        return tuple(given or default for given in self.given_shardings or [None] * len(jax.tree.leaves(self.spec)))

    def pin(self, other: Tensor) -> None:
        """Gives its arrays the shardings of another variable, or of a part of one, with the same spec."""
        self.given_shardings = _shardings_of(other)
        self.spec = placement.with_explicit_shardings(self.spec, self.given_shardings)

    def reshard(self, moves: Mapping[int, jax.sharding.Sharding]) -> None:
        """Changes the shardings of some of its arrays, given by index, and logs it."""
        before, paths = self.shardings, [path for path, _ in jax.tree.leaves_with_path(self.spec)]
        self.given_shardings = tuple(moves.get(number, sharding) for number, sharding in enumerate(before))
        self.graph.num_reshards += 1
        self.spec = placement.with_explicit_shardings(self.spec, self.given_shardings)
        lines = [
            f"{self.op.name}{jax.tree_util.keystr(paths[number])} from {format_spec(before[number])} "
            f"to {format_spec(sharding)}"
            for number, sharding in moves.items()
        ]
        _logger.info(
            "The step fixes other shardings for variables than they have, so they are resharded first: %s.",
            "; ".join(lines),
        )

    @property
    def initial_value(self) -> Tensor:
        """Its initial value as a tensor."""
        return self._initial

    def initialized_value(self) -> Tensor:
        """Returns the initial value as a tensor, for computing another variable's initial value."""
        return self._initial

    def initialize_from(self, value: Tensor) -> None:
        """Gives it another initial value.

        Initializers and initial values of other variables that were made from the earlier one stay as they are.

        Args:
            value: A tensor with the variable's structure, shapes and dtypes.
        """
        with self.graph.control_dependencies(None), self.graph.name_scope(f"{self.op.name}/"):
            initializer = Update("initializer", self, _replace, (value,), is_initializer=True)
        self._initial, self.initializer = value, initializer

    def read_value(self) -> Tensor:
        """Returns a tensor that reads the variable at this point: after the updates in `control_dependencies`."""
        return op(lambda value: value, name=self._operation_name("read"))(self)

    def assign(self, value: Any, *, name: str | None = None) -> Tensor:
        """Returns an update that sets the variable to `value`; its tensor is the new value."""
        return Update(
            name or self._operation_name("assign"), self, _replace, (self._operand(value),), overwrites=True
        ).output

    def assign_add(self, delta: Any, *, name: str | None = None) -> Tensor:
        """Returns an update that adds `delta` (the same structure); its tensor is the new value."""
        return self._add(name or self._operation_name("assign_add"), delta, operator.add, 1)

    def assign_sub(self, delta: Any, *, name: str | None = None) -> Tensor:
        """Returns an update that subtracts `delta` (the same structure); its tensor is the new value."""
        return self._add(name or self._operation_name("assign_sub"), delta, operator.sub, -1)

    def load(self, value: Any, session: Any) -> None:
        """Sets its value in a session, between two runs: `variable.load(0.1, session)`; see `Session.load`.

        Args:
            value: The whole value, with its structure, shapes and kinds of dtype.
            session: The session; in a hook `firing.context.session`.

        Raises:
            ValueError: The value does not fit.
        """
        raw = session.raw_session() if hasattr(session, "raw_session") else session
        raw.load({self.op.name: value})

    def _operation_name(self, what: str) -> str:
        """Returns the name of an operation on the variable, in the current scope, as searches of collections expect."""
        return f"{self.op.name.removeprefix(self.graph.current_scope)}/{what}"

    def _operand(self, value: Any) -> Any:
        """Returns `value` as an array if the variable is an array and the value a list.

        Raises:
            TypeError: An item is not a number.
            ValueError: The variable's dtype cannot hold a number.
        """
        if not specs.is_array(self.spec) or isinstance(value, Tensor | jax.Array):
            return value
        if contains_tensor(value):
            return op(jnp.asarray, name=self._operation_name("value"))(value)
        array = np.asarray(value) if isinstance(value, list | tuple | int | float | complex | None) else value
        name = self.op.name
        if isinstance(value, str | bytes | None) or (isinstance(value, list | tuple) and array.dtype.kind in "OSU"):
            raise TypeError(f"Variable {name!r} holds {specs.describe(self.spec)} and cannot hold {value!r}.")
        if isinstance(array, np.ndarray | np.generic):
            if array.dtype.kind == "O":
                raise ValueError(f"Variable {name!r} holds {specs.describe(self.spec)} and cannot hold {value!r}.")
            problem = (
                specs.describe_overflow(np.asarray(array), self.dtype)
                if specs.same_kind(array.dtype, self.dtype)
                else ""
            )
            if problem:
                raise ValueError(f"Variable {name!r}: the value {problem}.")
        return array if isinstance(value, list | tuple) else value

    def _add(self, name: str, delta: Any, change: Callable[[Any, Any], Any], sign: int) -> Tensor:
        by = (self._operand(delta),)
        update_ = Update(name, self, lambda old, by: jax.tree.map(change, old, by), by)
        if is_counter(self) and isinstance(delta, int | np.integer) and not isinstance(delta, bool):
            update_.increment = sign * int(delta)
        return update_.output


def check_value(name: str, spec: Any, value: Any) -> None:
    """Raises `ValueError` if `value`, concrete or a spec, does not fit the spec of the variable `name`."""
    wanted, structure = jax.tree.flatten_with_path(spec)
    given = jax.tree.leaves(value)
    if jax.tree.structure(value) != structure:
        raise ValueError(
            f"Variable {name!r} holds the structure {structure}, but would be set to {jax.tree.structure(value)}."
        )
    for (path, leaf_spec), leaf in zip(wanted, given, strict=True):
        shape, dtype = jnp.shape(leaf), getattr(leaf, "dtype", None) or jax.dtypes.result_type(leaf)
        # An open shape is compared when a run knows it.
        known = all(isinstance(dim, int) for dim in (*shape, *leaf_spec.shape))
        problem = specs.describe_mismatch(leaf_spec, shape, dtype) if known else None
        if problem:
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"Variable {where!r} has a fixed shape and dtype; the value it would be set to {problem}.")


def update(variables: Any, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Tensor:
    """Returns an update that applies `fn` to the variables, in the process that holds them.

    All writing is built on this primitive. In one process it is fused into the step; with parameter servers it runs on
    the server. Several updates of one variable in a run apply in the order in which they were made, and all writes of a
    run become visible together.

    Args:
        variables: A variable, or a pytree of variables.
        fn: `fn(values, *args) -> new_values`, with the values in the structure of `variables`; traced by JAX.
        *args: Tensors or plain values, nested anywhere.
        name: Name of the node; by default the name of `fn`.

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
    if not callable(fn):
        raise TypeError(f"update requires a function fn(values, *args) of the variables' values, got {fn!r}.")
    return Update(name or function_name(fn), variables, fn, args).output


def format_spec(sharding: Any) -> str:
    """Returns the partition spec of a sharding as text."""
    return str(getattr(sharding, "spec", sharding))


def is_counter(variable: Variable) -> bool:
    """Returns whether it is a wide integer scalar: the host keeps a copy, and advances it without the device."""
    spec = variable.spec
    return specs.is_array(spec) and spec.shape == () and spec.dtype in (np.dtype("int32"), np.dtype("int64"))


def initial_shardings(who: str, initial: Tensor, given: Any, spec: Any, sharding: Any) -> list[Any]:
    """Returns the shardings of the arrays of an initial value, None for arrays without one.

    Args:
        who: The variable, for messages.
        initial: The initial value.
        given: The argument from which it was made. A function may fix shardings.
        spec: The spec of the value.
        sharding: As in `Variable`.
    """
    node = initial.op
    if sharding is not None:
        if spec is specs.UNKNOWN:
            raise ValueError(f"{who}: a sharding is for arrays of known shapes, and those of its value are not known.")
        return [*rules.resolve_shardings(who, spec, sharding)]
    if isinstance(node, Constant) and initial is node.output:
        return [*(node.shardings or map(specs.placed_sharding, jax.tree.leaves(node.value)))]
    if isinstance(node, Function) and not node.inputs and not isinstance(given, Tensor):
        return [
            a or b
            for a, b in zip(
                placement.fixed_output_shardings(given), placement.shardings_of_spec(initial.spec), strict=True
            )
        ]
    return placement.shardings_of_spec(initial.spec)


def _shardings_of(part: Tensor) -> tuple[Any, ...]:
    """Returns the shardings of the arrays of a variable, or of a part of one; empty if it has none."""
    variable = part.op.variable if isinstance(part.op, VariableRead) else None
    if variable is None or not variable.given_shardings:
        found = placement.shardings_of_spec(part.spec)
    else:
        leaves, structure = jax.tree.flatten(variable.spec)
        placed = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for leaf, sharding in zip(leaves, variable.given_shardings, strict=True)
        ]
        with placement.enter_mesh(part.graph.mesh_context):
            selected = get_at_path(structure.unflatten(placed), part.path)
        found = [leaf.sharding for leaf in jax.tree.leaves(selected)]
    return tuple(found) if any(sharding is not None for sharding in found) else ()


def _cast(initial: Tensor, dtype: Any, name: str) -> Tensor:
    """Casts an initial value to another dtype of the same kind."""
    for leaf in [] if initial.spec is specs.UNKNOWN else jax.tree.leaves(initial.spec):
        if not specs.same_kind(leaf.dtype, dtype):
            raise TypeError(
                f"Variable {name!r}: its initial value is of dtype {leaf.dtype} and cannot be one of {dtype}."
            )
    if isinstance(initial.op, Constant):
        for leaf in jax.tree.leaves(initial.op.value):
            check_range("initial_value", leaf, dtype)
    return op(lambda value: jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), value), name="initial_value")(initial)


def _replace(_: Any, value: Any) -> Any:
    return value


def _without_weak_types(spec: Any) -> Any:
    """Removes weak types from a spec: a variable made from the number 1.0 is a float32 for good."""
    if spec is specs.UNKNOWN:
        return spec
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), spec)
