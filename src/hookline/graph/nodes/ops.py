"""Functions that make operations: from any Python function, and the few kinds without a function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from hookline import arguments
from hookline.graph.graph import (
    Function,
    InsideTraceError,
    Operation,
    Tensor,
    ancestors,
    contains_tensor,
    function_name,
    get_default_graph,
)
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Constant, Group, HostCall, Placeholder, check_range
from hookline.signals.interrupts import calls_user_code


def name_scope(name: str | None) -> AbstractContextManager[str]:
    """Calls `Graph.name_scope` of the default graph.

    Example:
        >>> import hookline as hl
        >>> with hl.name_scope("encoder"):
        ...     print(hl.constant(1.0, name="scale").name)
        encoder/scale:0
    """
    return get_default_graph().name_scope(name)


def control_dependencies(control_inputs: Iterable[Operation | Tensor | str] | None) -> AbstractContextManager[None]:
    """Calls `Graph.control_dependencies` of the default graph.

    Example:
        >>> import hookline as hl
        >>> count = hl.Variable(0, name="count")
        >>> with hl.control_dependencies([count.assign_add(1)]):
        ...     answer = hl.constant(42)
        >>> with hl.Session() as sess:
        ...     print(sess.run(count.initializer), sess.run(answer), sess.run(count))
        None 42 1
    """
    return get_default_graph().control_dependencies(control_inputs)


def add_to_collection(name: Hashable, value: Any) -> None:
    """Calls `Graph.add_to_collection` of the default graph.

    Example:
        >>> import hookline as hl
        >>> hl.add_to_collection("losses", hl.constant(0.5, name="penalty"))
        >>> [loss.name for loss in hl.get_collection("losses")]
        ['penalty:0']
    """
    get_default_graph().add_to_collection(name, value)


def get_collection(key: Hashable, scope: str | None = None) -> list[Any]:
    """Calls `Graph.get_collection` of the default graph.

    Example:
        >>> import hookline as hl
        >>> weight, head = hl.Variable(1.0, name="encoder/weight"), hl.Variable(2.0, name="head/weight")
        >>> [variable.name for variable in hl.get_collection(hl.GraphKeys.TRAINABLE_VARIABLES, scope="encoder")]
        ['encoder/weight:0']
    """
    return get_default_graph().get_collection(key, scope)


# Functions as operations ----------------------------------------------------------------------------------------------


class Op:
    """A function that makes a graph node if an argument contains a tensor, and else just runs. See `op`."""

    def __init__(self, fn: Callable[..., Any], name: str | None) -> None:
        if not callable(fn):
            raise TypeError(f"A function is required, got {fn!r}.")
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name = fn, name or function_name(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self.node(*args, **kwargs) if contains_tensor((args, kwargs)) else self._fn(*args, **kwargs)

    def node(self, *args: Any, **kwargs: Any) -> Tensor:
        """Adds a node even if no argument is a tensor, and returns its value."""
        return Function(self._fn, self._name, args, kwargs).output


class HostOp(Op):
    """A function that makes a graph node if an argument contains a tensor, or without arguments. See `host_op`."""

    def __init__(self, fn: Callable[..., Any], name: str | None, spec: Any) -> None:
        super().__init__(fn, name)
        self._spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        if not (args or kwargs):
            return self.node()
        if self._spec is not specs.UNKNOWN and not contains_tensor((args, kwargs)):
            raise TypeError(
                f"host_op: {self._name!r} has a spec, and none of its arguments is a tensor: it would run once, now, "
                "and each run would get that value. Write its node(...) for a value of each run, or leave out the spec."
            )
        return super().__call__(*args, **kwargs)

    def node(self, *args: Any, **kwargs: Any) -> Tensor:
        """Adds a node even if no argument is a tensor, and returns its value."""
        return HostCall(self._fn, self._name, args, kwargs, self._spec).output


def op(fn: Callable[..., Any], name: str | None = None) -> Op:
    """Turns a function that JAX can trace into one that also takes tensors.

    If any of its arguments contains a tensor, it adds a node to the default graph and returns the node's value. With
    plain values it just runs. Arguments that are not tensors are passed on as they are: strings, axes, static
    configuration. A run traces the function instead of executing it, so it should be pure.

    Args:
        fn: A function of pytrees of arrays, returning one.
        name: Name of the nodes; by default the function's name.

    Returns:
        The function, with a method `node(*args, **kwargs)` that adds a node even if no argument is a tensor.

    Raises:
        Exception: Any error of `fn` for the arguments' shapes, raised at the line that builds the node; a note names
            the node.

    Example:
        >>> import hookline as hl, jax.numpy as jnp
        >>> x = hl.placeholder(jnp.float32, [None, 2], name="x")
        >>> norms = hl.op(jnp.linalg.norm)(x, axis=1)
        >>> norms.shape
        (None,)
        >>> with hl.Session() as sess:
        ...     print(sess.run(norms, {x: [[3.0, 4.0], [6.0, 8.0]]}))
        [ 5. 10.]
    """
    return Op(fn, name)


def host_op(fn: Callable[..., Any], name: str | None = None, *, spec: Any = None) -> HostOp:
    """Turns any Python function into one that also takes tensors; a run calls it in Python, on concrete values.

    If any of its arguments contains a tensor, or if it has no arguments, it adds a node to the default graph and
    returns the node's value. With plain values it just runs. Values from the device arrive as NumPy arrays, and the run
    waits for them. A device operation may use the result only if the function itself needs no device value (a reader of
    files, a source of batches). `StopIteration` leaves the run as `OutOfRangeError`, the end of the input.

    Args:
        fn: Any function. It is called once in each run that needs it.
        name: Name of the nodes; by default the function's name.
        spec: A pytree of arrays or `jax.ShapeDtypeStruct` like the result, if it is known. Then later shapes can be
            inferred, and the result can be unpacked. If the result does not fit, the run raises an
            `InvalidArgumentError`.

    Returns:
        The function, with a method `node(*args, **kwargs)` that adds a node even if no argument is a tensor. With a
        `spec`, a call with plain values alone raises `TypeError`: it would not run again in each run.

    Example:
        >>> import hookline as hl
        >>> batches = iter([1.0, 2.0])
        >>> doubled = hl.host_op(lambda: next(batches))() * 2
        >>> with hl.Session() as sess:
        ...     print(sess.run(doubled), sess.run(doubled))
        2.0 4.0

    References:
        `tf.py_func`.
    """
    try:
        promised = specs.UNKNOWN if spec is None else specs.of_value(spec)
    except Exception as error:
        raise TypeError(
            f"host_op: spec must be a pytree of arrays, numbers or jax.ShapeDtypeStruct of fixed shapes, got {spec!r}."
        ) from error
    return HostOp(fn, name, promised)


# Nodes without a function ---------------------------------------------------------------------------------------------


def placeholder(dtype: Any, shape: Sequence[int | None] | None = None, name: str | None = None) -> Tensor:
    """Returns a tensor that must be fed in every run that needs it.

    Args:
        dtype: Dtype of the array. Fed values are cast within their kind: float64 to float32, never float to integer.
            `str` takes text, `object` anything; both are for host operations alone.
        shape: Its shape, `None` for an open dimension; `None` alone takes any shape.
        name: Its name; by default `Placeholder`.

    Raises:
        TypeError: An argument is not a dtype or not a shape.
        ValueError: A dimension is negative.

    Example:
        >>> import hookline as hl
        >>> images = hl.placeholder("float32", [None, 8, 8], name="images")
        >>> images.shape
        (None, 8, 8)

    References:
        `tf.placeholder`.
    """
    try:
        return Placeholder(name or "Placeholder", dtype, shape).output
    except (TypeError, ValueError) as error:
        error.add_note(f"hookline: while making the placeholder {name or 'Placeholder'!r}")
        raise


def constant(value: Any, dtype: Any = None, shape: Sequence[int] | None = None, name: str | None = "Const") -> Tensor:
    """Returns a tensor of a fixed value: any pytree of arrays and numbers, or any object for host operations.

    Large arrays go to the device once and are arguments of the compiled step, so even a data set may be a constant.

    Args:
        value: The value.
        dtype: Makes one array of the value, of this dtype; by default JAX decides.
        shape: Makes one array of the value, of this shape; a single number fills the array.
        name: Its name; by default `Const`.

    Raises:
        TypeError: The value contains a tensor, or numbers of a kind that `dtype` cannot hold.
        ValueError: The dtype cannot hold a number, or `shape` needs more or fewer numbers.

    Example:
        >>> import hookline as hl
        >>> hl.constant([1.0, 2.0]).shape
        (2,)

    References:
        `tf.constant`. JAX chooses the dtype: 64 bits become 32 unless `jax_enable_x64` is set.
    """
    if contains_tensor(value):
        raise TypeError("constant takes plain values; a tensor is in it. Use the tensor itself, or hookline.op.")
    if dtype is None and shape is None:
        return Constant(name or "Const", as_array(value)).output
    array = np.asarray(value)
    if dtype is not None:
        wanted = specs.canonical_dtype(dtype)
        if array.size and not specs.same_kind(array.dtype, wanted):
            raise TypeError(f"constant: {value!r} is of dtype {array.dtype} and cannot be made one of {wanted}.")
        check_range(name or "Const", array, wanted)
        array = array.astype(wanted)
    if shape is not None:
        shape = [
            arguments.check_int("constant", "shape", dim, 0) for dim in arguments.check_list("constant", "shape", shape)
        ]
        fits = array.size in (1, math.prod(shape))
        if not fits:
            raise ValueError(f"constant: {array.size} values do not fill the shape {tuple(shape)}.")
        array = np.full(shape, array.reshape(()), array.dtype) if array.size == 1 else array.reshape(shape)
    return Constant(name or "Const", array).output


def as_array(value: Any) -> Any:
    """Converts a list of numbers, nested or not, to an array; returns other values as they are.

    Only nested lists of numbers count as arrays, as in NumPy; a list of arrays is a pytree.
    """
    if isinstance(value, list) and all(
        isinstance(leaf, bool | int | float | complex) for leaf in jax.tree.leaves(value)
    ):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is no array: {error}.") from None
    return value


def group(*inputs: Operation | Tensor | Iterable[Any], name: str | None = None) -> Operation:
    """Returns an operation that runs all the given ones; its value is `None`.

    Args:
        *inputs: Operations and tensors, in any nesting of lists, tuples and dicts.
        name: Its name.

    Example:
        >>> import hookline as hl
        >>> a, b = hl.Variable(1.0), hl.Variable(2.0)
        >>> both = hl.group(a.assign_add(1.0), b.assign_add(1.0))

    References:
        `tf.group`.
    """
    with get_default_graph().control_dependencies(jax.tree.leaves(inputs, is_leaf=lambda leaf: leaf is None)):
        return Group(name or "group_deps")


def no_op(name: str | None = None) -> Operation:
    """Returns an operation that only waits for its control dependencies.

    Example:
        >>> import hookline as hl
        >>> count = hl.Variable(0, name="count")
        >>> with hl.control_dependencies([count.assign_add(1)]):
        ...     train_op = hl.no_op(name="train_op")
        >>> [control.name for control in train_op.control_inputs]
        ['count/assign_add']

    References:
        `tf.no_op`.
    """
    return Group(name or "NoOp")


def initial_tensor(initial_value: Any, name: str) -> Tensor:
    """Returns the tensor of an initial value: of arrays or tensors, or of a function without arguments.

    Call it outside of all control dependencies.

    Args:
        initial_value: As in `Variable`.
        name: The name of the variable, for messages.
    """
    if isinstance(initial_value, Tensor):
        return _without_control_inputs(initial_value)
    is_function = callable(initial_value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(initial_value))
    if not is_function:
        if contains_tensor(initial_value):
            return _without_control_inputs(op(lambda value: value, name="initial_value")(initial_value))
        _reject_nnx_module(initial_value, name)
        tensor = constant(initial_value, name="initial_value")
        if tensor.spec is specs.UNKNOWN:
            raise TypeError(f"Variable {name!r} requires a pytree of arrays and numbers, got {initial_value!r}.")
        return tensor
    results: list[Any] = []
    concrete: list[bool] = []

    @calls_user_code
    def make() -> Any:
        return as_array(initial_value())

    def probe() -> Any:
        result = make()
        results.append(result)
        _reject_nnx_module(result, name)
        concrete.extend(not isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result))
        return None if contains_tensor(result) else result

    try:
        spec = jax.eval_shape(probe)
    except InsideTraceError:
        # It uses concrete arrays together with tensors, which cannot be traced together.
        return initial_tensor(initial_value(), name)
    except OverflowError:
        raise ValueError(f"Variable {name!r}: its function returned a number too large for the dtype of JAX.") from None
    except TypeError:
        if results and not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(results[0])):
            raise TypeError(
                f"Variable {name!r} requires a pytree of arrays and numbers; its function returned {results[0]!r}."
            ) from None
        raise
    if results[0] is None:
        raise ValueError(f"Variable {name!r} requires an initial value; its function returned None.")
    if contains_tensor(results[0]):
        return initial_tensor(results[0], name)
    if any(concrete):
        # NumPy values would be baked into the compiled program as constants; they are computed in Python instead.
        return host_op(make, name="initial_value", spec=spec).node()
    return op(make, name="initial_value").node()


def _without_control_inputs(tensor: Tensor) -> Tensor:
    """Copies the operations that a tensor depends on, without control inputs other than initializers.

    Returns the copy of the tensor. Operations that wait for nothing are not copied, and each other one is copied once,
    so operations that several initial values share stay shared.
    """
    # with control_dependencies([train_op]):
    #     double = op(lambda x: 2 * x)(a.initial_value)
    # b = Variable(double)
    #
    # To initialise b, `double` would run the training step first. Its copy does not: it is 2 * a, from a's initial
    # value, which waits for nothing and so stays the same tensor.
    copies: dict[Operation, Operation] = {}

    def resolve(source: Tensor) -> Tensor:
        copy = copies.get(source.op)
        return source if copy is None else Tensor(copy, source.path, source.spec)

    for operation in sorted(ancestors([tensor]), key=lambda operation: operation.index):
        kept = [control for control in operation.control_inputs if _is_only_initializers(control)]
        waits = len(kept) < len(operation.control_inputs)
        if waits or any(source.op in copies for source in operation.inputs):
            if operation.without_control_inputs is None:
                with operation.graph.control_dependencies(kept):
                    operation.without_control_inputs = operation.copy_with_inputs("initial_value", resolve)
            if operation.without_control_inputs is not None:
                copies[operation] = operation.without_control_inputs
    return resolve(tensor)


def _is_only_initializers(operation: Operation) -> bool:
    pending = [operation]
    while pending:
        operation = pending.pop()
        if isinstance(operation, Group) and operation.control_inputs:
            pending.extend(operation.control_inputs)
        elif not getattr(operation, "is_initializer", False):
            return False
    return True


def _reject_nnx_module(value: Any, name: str) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ == "Module" and kind.__module__.startswith("flax.nnx"):
            raise TypeError(
                f"Variable {name!r}: a whole nnx.Module is no value. Split it: `graphdef, params, rest = "
                f"nnx.split(model, nnx.Param, ...)`, make one variable of `params` and one, trainable=False, of "
                f"`rest`, and call nnx.merge(graphdef, params, rest) inside hookline.op."
            )
