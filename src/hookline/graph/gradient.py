"""Gradients of a tensor with respect to variables or other tensors, through the operations between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline.graph import spec as specs
from hookline.graph.tensor import Kind, Operation, Tensor
from hookline.graph.variable import Variable


def gradients(ys: Tensor | Sequence[Tensor], xs: Tensor | Sequence[Tensor], name: str = "gradients") -> list[Any]:
    """Returns the gradient of the sum of `ys` with respect to each of `xs`.

    A gradient has the structure, shapes and dtypes of its `x`. The operations between are differentiated by JAX where
    they stand: a run that fetches both a loss and its gradients computes the loss once.

    Args:
        ys: A tensor or several: floating point arrays, usually one scalar loss.
        xs: A variable or tensor, or several, whose leaves are all floating point.
        name: Name of the node.

    Returns:
        One tensor for each of `xs`, or `None` where no path leads from it to `ys`.

    Raises:
        TypeError: Something that is not differentiable: an integer, or a host operation on the path.

    Example:
        >>> import hookline as hl
        >>> x = hl.Variable(3.0, name="x")
        >>> (slope,) = hl.gradients(x * x, x)
        >>> with hl.Session() as sess:
        ...     sess.run(x.initializer)
        ...     print(sess.run(slope))
        6.0

    References:
        `tf.gradients`. Values are computed by `jax.vjp`.
    """
    ys = [ys] if isinstance(ys, Tensor) else list(ys)
    xs = [xs] if isinstance(xs, Tensor) else list(xs)
    for tensor in (*ys, *xs):
        _check_floating(tensor)
    for x in xs:
        _check_whole_reads(ys, x)
    connected = [x for x in xs if is_connected(ys, x)]
    for operation in between(ys, connected):
        if operation.kind not in (Kind.DEVICE, Kind.GRADIENTS):
            raise TypeError(f"gradients: {operation.node_def} lies between ys and xs and cannot be differentiated.")
    if not connected:
        return [None] * len(xs)
    spec = tuple(x.spec for x in connected)
    node = Operation(Kind.GRADIENTS, name, args=(ys, connected), spec=spec)
    found = iter(node.output[i] for i in range(len(connected)))
    return [next(found) if x in connected else None for x in xs]


def between(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Operation]:
    """Returns the operations that `ys` need and that a use of `xs`, or of a view of them, reaches, in order."""
    sources = {x.key for x in xs}

    def starts(tensor: Tensor) -> bool:
        return any((tensor.op, tensor.path[:depth]) in sources for depth in range(len(tensor.path) + 1))

    reached: dict[Operation, None] = {}
    for operation in sorted(ancestors(ys), key=lambda operation: operation.index):
        if any(starts(tensor) or tensor.op in reached for tensor in operation.inputs):
            reached[operation] = None
    return list(reached)


def is_connected(ys: Sequence[Tensor], x: Tensor) -> bool:
    """Whether a path leads from `x` to one of `ys`, which may be a view of it."""
    ends = {y.op for y in ys}
    return any(operation in ends for operation in between(ys, [x])) or any(
        y.op is x.op and y.path[: len(x.path)] == x.path for y in ys
    )


def ancestors(ys: Sequence[Tensor]) -> set[Operation]:
    """Returns the operations that `ys` need for their values."""
    found: set[Operation] = set()
    pending = [y.op for y in ys]
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending.extend(tensor.op for tensor in operation.inputs)
    return found


def _check_whole_reads(ys: Sequence[Tensor], x: Tensor) -> None:
    """Refuses a part of a value where the whole is read: the way through the whole would be missed."""
    for operation in ancestors(ys) if x.path else ():
        for tensor in operation.inputs:
            if tensor.op is x.op and len(tensor.path) < len(x.path) and x.path[: len(tensor.path)] == tensor.path:
                raise ValueError(
                    f"gradients: {operation.name!r} reads {tensor.name!r} as a whole, of which {x.name!r} is a part. "
                    f"Differentiate with respect to {tensor.name!r} and take that part of its gradient."
                )


def _check_floating(tensor: Tensor) -> None:
    if tensor.spec is specs.UNKNOWN:
        return
    for path, leaf in jax.tree.leaves_with_path(tensor.spec):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            advice = " Make a variable of its own of what is not trained, with trainable=False."
            raise TypeError(
                f"gradients: {tensor.name}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; only floating point "
                f"values have gradients.{advice if isinstance(tensor, Variable) else ''}"
            )
