"""Making operations: from any Python function, and the few that have no function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hookline.graph import spec as specs
from hookline.graph.graph import get_default_graph
from hookline.graph.tensor import Kind, Operation, Tensor, as_spec


def _plain_name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if name.isidentifier() else "op"


def holds_tensor(value: Any) -> bool:
    """Whether a tensor stands anywhere in the pytree `value`."""
    return any(isinstance(leaf, Tensor) for leaf in jax.tree.leaves(value))


class Op:
    """A function that makes a graph node when it is given tensors, and just runs when it is not. See `op`."""

    def __init__(self, fn: Callable[..., Any], name: str | None, kind: Kind, spec: Any) -> None:
        if not callable(fn):
            raise TypeError(f"A function is required, got {fn!r}.")
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._name, self._kind, self._spec = fn, name or _plain_name(fn), kind, spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self.node(*args, **kwargs) if holds_tensor((args, kwargs)) else self._fn(*args, **kwargs)

    def node(self, *args: Any, **kwargs: Any) -> Tensor:
        """Adds a node even where no argument is a tensor, and returns its value."""
        operation = Operation(
            self._kind,
            self._name,
            fn=self._fn,
            args=(args, kwargs),
            spec=self._spec if self._kind is Kind.HOST else specs.UNKNOWN,
            type_name=_plain_name(self._fn) if self._kind is Kind.DEVICE else None,
        )
        if self._kind is Kind.DEVICE:
            operation.output.spec = infer(operation, self._fn)
        return operation.output


def infer(operation: Operation, fn: Callable[..., Any]) -> Any:
    """Returns the spec of what `fn` makes of the operation's arguments; an error of `fn` names the operation."""

    def call(*values: Any) -> Any:
        remaining = iter(values)
        args, kwargs = operation.bind(lambda _: next(remaining))
        return fn(*args, **kwargs)

    try:
        return specs.infer(call, [as_spec(tensor) for tensor in operation.inputs])
    except Exception as error:
        operation.note(error)
        raise


def op(fn: Callable[..., Any], name: str | None = None) -> Op:
    """Turns a function that JAX can trace into one that also takes tensors.

    Called with a tensor anywhere in its arguments it adds a node to the default graph and returns the node's value;
    called with plain values it just runs. Arguments that are not tensors are handed on as they are: strings, axes,
    static configuration. Within one run the function is traced, not executed: it should be pure.

    Args:
        fn: A function of pytrees of arrays, returning one.
        name: Name of the nodes; by default that of the function.

    Returns:
        The function, with a method `node(*args, **kwargs)` that adds a node even where no argument is a tensor.

    Raises:
        Exception: What `fn` raises on the arguments' shapes, at the line that builds the node, which is named on it.

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
    return Op(fn, name, Kind.DEVICE, specs.UNKNOWN)


def host_op(fn: Callable[..., Any], name: str | None = None, *, spec: Any = None) -> Op:
    """Turns any Python function into one that also takes tensors, and runs in Python, on concrete values, in a run.

    Values from the device arrive as NumPy arrays: the run waits for them. What the function returns may go to a device
    operation only if it needs no device value itself (a reader of files, a source of batches). `StopIteration` leaves
    the run as `OutOfRangeError`: the input has ended.

    Args:
        fn: Any function. It is called once in each run that needs it.
        name: Name of the nodes; by default that of the function.
        spec: A pytree of arrays or `jax.ShapeDtypeStruct` like the result, if it is known: shapes can then be inferred
            behind it, and it can be unpacked.

    Returns:
        The function, with a method `node(*args, **kwargs)` that adds a node even where no argument is a tensor.

    Example:
        >>> import hookline as hl
        >>> batches = iter([1.0, 2.0])
        >>> doubled = hl.host_op(lambda: next(batches)).node() * 2
        >>> with hl.Session() as sess:
        ...     print(sess.run(doubled), sess.run(doubled))
        2.0 4.0

    References:
        `tf.py_func`.
    """
    return Op(fn, name, Kind.HOST, specs.UNKNOWN if spec is None else specs.of_value(spec))


def placeholder(dtype: Any, shape: Sequence[int | None] | None = None, name: str | None = None) -> Tensor:
    """Returns a tensor that must be fed in every run that needs it.

    Args:
        dtype: Dtype of the array. Fed values are cast within their kind: float64 to float32, never float to integer.
        shape: Its shape, `None` for an open dimension; `None` alone takes any shape.
        name: Its name; by default `Placeholder`.

    Example:
        >>> import hookline as hl
        >>> images = hl.placeholder("float32", [None, 8, 8], name="images")
        >>> images.shape
        (None, 8, 8)

    References:
        `tf.placeholder`.
    """
    if np.dtype(dtype).kind in "OSU":
        # Strings and other objects are for host operations alone; they are fed as they are.
        return Operation(Kind.PLACEHOLDER, name or "Placeholder", args=None).output
    array = specs.declared(dtype, shape or ())
    spec = specs.UNKNOWN if shape is None else array
    return Operation(Kind.PLACEHOLDER, name or "Placeholder", spec=spec, args=array.dtype).output


def constant(value: Any, name: str | None = None) -> Tensor:
    """Returns a tensor of a fixed value: any pytree of arrays and numbers, or any object for host operations.

    Large arrays travel to the device once and are handed to the compiled step as arguments, so a data set may be one.

    Example:
        >>> import hookline as hl
        >>> hl.constant([1.0, 2.0]).shape
        (2,)

    References:
        `tf.constant`.
    """
    if holds_tensor(value):
        raise TypeError("constant takes plain values; a tensor is in it. Use the tensor itself, or hookline.op.")
    # Only what is a list through and through is meant as an array, as in NumPy; a list of arrays is a pytree.
    if isinstance(value, list) and all(
        isinstance(leaf, bool | int | float | complex) for leaf in jax.tree.leaves(value)
    ):
        value = np.asarray(value)
    value = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, value)
    try:
        spec = specs.of_value(value)
    except TypeError:
        spec = specs.UNKNOWN
    return Operation(Kind.CONSTANT, name or "Const", spec=spec, fn=lambda: value).output


def group(*inputs: Operation | Tensor, name: str | None = None) -> Operation:
    """Returns an operation that runs all the given ones; its value is `None`.

    Example:
        >>> import hookline as hl
        >>> a, b = hl.Variable(1.0), hl.Variable(2.0)
        >>> both = hl.group(a.assign_add(1.0), b.assign_add(1.0))

    References:
        `tf.group`.
    """
    with get_default_graph().control_dependencies(inputs):
        return Operation(Kind.GROUP, name or "group_deps", spec=None)


def no_op(name: str | None = None) -> Operation:
    """Returns an operation that does nothing but wait for its control dependencies.

    References:
        `tf.no_op`.
    """
    return Operation(Kind.GROUP, name or "NoOp", spec=None)
