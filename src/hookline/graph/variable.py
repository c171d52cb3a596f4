"""Variables: values that outlive a run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from hookline.graph import spec as specs
from hookline.graph.keys import GraphKeys
from hookline.graph.ops import constant, holds_tensor, host_op, op
from hookline.graph.tensor import Kind, Operation, Tensor
from hookline.graph.update import Update


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
    """Whether it is a wide integer scalar: the host keeps a copy of it, which advances without asking the device."""
    if not specs.is_array(variable.spec) or variable.shape != ():
        return False
    return variable.dtype in (np.dtype("int32"), np.dtype("int64"))


def _replace(_: Any, value: Any) -> Any:
    return value


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
