"""Gradients of a tensor with respect to variables or other tensors, through the operations between them.

The rule: control inputs of a gradient delay only the gradient itself; operations between `xs` and `ys` keep their order
of creation. So a gradient does not compute the operations on its path, it only lists them (`Gradient.path`). A run
computes each of them at its own position in creation order, and records it on a tape (`session/program/trace.py`). At
the position of the gradient, it runs backward over the tape (`session/program/tape.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hookline import log
from hookline.graph.graph import Function, Operation, Tensor, ancestors, get_default_graph
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import HostCall
from hookline.graph.variable import Update, Variable

logger = log.get_logger(__name__)


class Gradient(Operation):
    """The node behind `gradients`: in a run it goes backward from `ys` to `xs`.

    The operations between them were computed before, each at its own position and once, however many gradients pass
    through it. So the node's control inputs do not delay them.

    Attributes:
        xs: The tensors to differentiate with respect to; a path leads from each of them to one of `ys`.
        path: The operations on those paths, in creation order.
        order: One more than the highest order of a gradient on the path; 1 for a first derivative.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import Gradient
        >>> x = hl.Variable(3.0, name="x")
        >>> (grad,) = hl.gradients(x * x, x)
        >>> isinstance(grad.op, Gradient), grad.op.order, [op.type for op in grad.op.path]
        (True, 1, ['mul'])
    """

    type = "Gradients"

    def __init__(self, name: str, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        self.ys, self.xs = list(ys), list(xs)
        self._x_keys = {x.key for x in xs}
        self.path = _operations_between(_differentiable_ancestors(ys), self._x_keys)
        self._path_set = set(self.path)
        self.order = 1 + max((step.order for step in self.path if isinstance(step, Gradient)), default=0)
        super().__init__(name, (self.ys, self.xs), tuple(x.spec for x in xs))

    def copy_with_inputs(self, name: str, resolve: Callable[[Tensor], Tensor]) -> Operation:  # noqa: D102
        return Gradient(name, [resolve(y) for y in self.ys], [resolve(x) for x in self.xs])

    def is_on_path(self, operation: Operation) -> bool:
        """Returns whether `operation` is on the path."""
        return operation in self._path_set

    def depends_on_xs(self, tensor: Tensor) -> bool:
        """Returns whether `tensor` is one of `xs` or a part of one, or depends on one through the path."""
        return tensor.op in self._path_set or _is_part(tensor, self._x_keys)


def gradients(ys: Tensor | Sequence[Tensor], xs: Tensor | Sequence[Tensor], *, name: str = "gradients") -> list[Any]:
    """Returns the gradient of the sum of `ys` with respect to each of `xs`.

    A gradient has the structure, shapes and dtypes of its `x`. A run that fetches both a loss and its gradients, or
    several gradients, computes the loss once.

    Inside `control_dependencies` only the gradient itself waits; the operations between `xs` and `ys` keep their order.
    So the control inputs may depend on the loss, or lead to it. An update on the path is not differentiated: its result
    counts as a constant, and a warning says so.

    Args:
        ys: A tensor or several: floating point arrays, usually one scalar loss.
        xs: A variable or tensor, or several, whose leaves are all floating point.
        name: Name of the node.

    Returns:
        One tensor for each of `xs`, or `None` if no path leads from it to `ys`.

    Raises:
        TypeError: A tensor is not differentiable: an integer, or the result of a host operation on the path.

    Example:
        >>> import hookline as hl
        >>> x = hl.Variable(3.0, name="x")
        >>> (grad,) = hl.gradients(x * x, x)
        >>> with hl.Session() as sess:
        ...     sess.run(x.initializer)
        ...     print(sess.run(grad))
        6.0

    References:
        `tf.gradients`. Values are computed by `jax.vjp`.
    """
    ys, xs = _as_tensors("ys", ys), _as_tensors("xs", xs)
    for tensor in (*ys, *xs):
        _check_floating(tensor)
    behind = _differentiable_ancestors(ys)
    read = _read_paths(behind)
    for tensor in ys:
        read.setdefault(tensor.op, set()).add(tensor.path)
    for x in xs:
        _check_no_enclosing_reads(behind, x)
    connected = [x for x in xs if any(path[: len(x.path)] == x.path for path in read.get(x.op, ()))]
    _warn_of_updates(read, xs)
    if not connected:
        return [None] * len(xs)
    node = Gradient(name, ys, connected)
    found = iter(node.output[i] for i in range(len(connected)))
    return [next(found) if x in connected else None for x in xs]


def _as_tensors(argument: str, tensors: Any) -> list[Tensor]:
    listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    for tensor in listed:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"gradients: {argument} must be tensors or variables, got {tensor!r}.")
        get_default_graph().as_graph_element(tensor)
    return listed


def _may_have_gradient(tensor: Tensor) -> bool:
    """Returns whether a gradient can pass back through the value: part of it is, or may be, floating point."""
    if tensor.spec is specs.UNKNOWN:
        return True
    return any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(tensor.spec))


def _differentiable_ancestors(ys: Iterable[Tensor]) -> set[Operation]:
    """Returns the operations from which `ys` can be reached along values that carry a gradient."""
    found: set[Operation] = set()
    pending = [y.op for y in ys]
    while pending:
        operation = pending.pop()
        if operation not in found and isinstance(operation, Function | Gradient | HostCall):
            found.add(operation)
            pending.extend(tensor.op for tensor in operation.inputs if _may_have_gradient(tensor))
    return found


def _read_paths(operations: Iterable[Operation]) -> dict[Operation, set[Any]]:
    """Returns the parts of operations' values that are read and carry a gradient."""
    read: dict[Operation, set[Any]] = {}
    for operation in operations:
        for tensor in operation.inputs:
            if _may_have_gradient(tensor):
                read.setdefault(tensor.op, set()).add(tensor.path)
    return read


def _is_part(tensor: Tensor, sources: set[Any]) -> bool:
    return any((tensor.op, tensor.path[:depth]) in sources for depth in range(len(tensor.path) + 1))


def _operations_between(behind: set[Operation], sources: set[Any]) -> list[Operation]:
    """Returns, in creation order, the operations of `behind` that depend on the sources or on parts of them."""
    reached: dict[Operation, None] = {}
    for operation in sorted(behind, key=lambda operation: operation.index):
        if any(_may_have_gradient(t) and (_is_part(t, sources) or t.op in reached) for t in operation.inputs):
            if isinstance(operation, HostCall):
                raise TypeError(f"gradients: {operation.node_def} lies between ys and xs and cannot be differentiated.")
            reached[operation] = None
    return list(reached)


def _warn_of_updates(read: Iterable[Operation], xs: Sequence[Tensor]) -> None:
    """Warns about updates that cut a path from `xs` to `ys`: their results count as constants."""
    ends = {x.op for x in xs}
    for operation in read:
        if isinstance(operation, Update) and operation not in ends and not ends.isdisjoint(ancestors(operation.inputs)):
            logger.warning(
                "gradients: a path leads through %s, which is not differentiated: its result counts as a constant. To "
                "differentiate the value that it writes, use that value instead of its result.",
                operation.node_def,
            )


def _check_no_enclosing_reads(behind: Iterable[Operation], x: Tensor) -> None:
    """Refuses a part of a value if the whole is read: the path through the whole would be missed."""
    for operation in behind if x.path else ():
        for tensor in operation.inputs:
            if tensor.op is x.op and len(tensor.path) < len(x.path) and x.path[: len(tensor.path)] == tensor.path:
                raise ValueError(
                    f"gradients: {operation.name!r} reads {tensor.name!r} as a whole, and {x.name!r} is a part of it. "
                    f"Differentiate with respect to {tensor.name!r} and take that part of its gradient."
                )


def _check_floating(tensor: Tensor) -> None:
    if tensor.spec is specs.UNKNOWN:
        return
    for path, leaf in jax.tree.leaves_with_path(tensor.spec):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            advice = " Put the values that are not trained into a variable of their own, with trainable=False."
            raise TypeError(
                f"gradients: {tensor.name}{jax.tree_util.keystr(path)} has dtype {leaf.dtype}; only floating point "
                f"values have gradients.{advice if isinstance(tensor, Variable) else ''}"
            )
