"""How initial values become tensors that depend on nothing they happen to stand in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer

from hookline.graph import spec as specs
from hookline.graph.graph import Function, InsideTraceError, Operation, Tensor, holds_tensor
from hookline.graph.nodes import Constant, Group, HostCall
from hookline.graph.ops import constant, host_op, op


def initial_tensor(initial_value: Any, name: str, block: Iterable[Operation]) -> Tensor:
    """Returns the initial value of `name` as a tensor. Called outside of all control dependencies.

    Args:
        initial_value: A pytree of arrays or tensors, a tensor, or a function without arguments that returns one.
        name: Of the variable, for messages.
        block: Control inputs of the block in which the variable is made: its initial value does not wait for them.
    """
    if isinstance(initial_value, Tensor):
        return _outside(initial_value, block)
    is_function = callable(initial_value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(initial_value))
    if not is_function:
        if holds_tensor(initial_value):
            return _outside(op(lambda value: value, name="initial_value")(initial_value), block)
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

    try:
        spec = jax.eval_shape(probe)
    except InsideTraceError:
        # It computes with arrays of its own and with tensors, which cannot be traced together.
        return initial_tensor(initial_value(), name, block)
    if results[0] is None:
        raise ValueError(f"Variable {name!r} requires an initial value; its function returned None.")
    if holds_tensor(results[0]):
        return initial_tensor(results[0], name, block)
    if any(concrete):
        # NumPy values would be baked into the compiled program as constants; they are computed in Python instead.
        return host_op(initial_value, name="initial_value", spec=spec).node()
    return op(initial_value, name="initial_value").node()


def ancestors(tensors: Iterable[Tensor]) -> set[Operation]:
    """Returns the operations that the tensors need for their values."""
    found: set[Operation] = set()
    pending = [tensor.op for tensor in tensors]
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending.extend(tensor.op for tensor in operation.inputs)
    return found


def _outside(tensor: Tensor, block: Iterable[Operation]) -> Tensor:
    """Returns the tensor as it would be had its operations been made outside of the block: copies of what waits."""
    left_out = {control for control in block if not _only_initialises(control)}
    copies: dict[Operation, Operation] = {}
    for operation in sorted(ancestors([tensor]) if left_out else (), key=lambda operation: operation.index):
        waits = not left_out.isdisjoint(operation.control_inputs)
        if not waits and not any(source.op in copies for source in operation.inputs):
            continue
        kept = [control for control in operation.control_inputs if control not in left_out]
        with operation.graph.control_dependencies(kept):
            copy = _copy(operation, copies)
        if copy is not None:
            copies[operation] = copy
    return _in(copies, tensor)


def _copy(operation: Operation, copies: dict[Operation, Operation]) -> Operation | None:
    def resolve(source: Tensor) -> Tensor:
        return _in(copies, source)

    if isinstance(operation, Constant):
        return Constant("initial_value", operation.value)
    if isinstance(operation, Function):
        args, kwargs = operation.bind(resolve)
        return Function(operation.fn, "initial_value", args, kwargs)
    if isinstance(operation, HostCall):
        args, kwargs = operation.bind(resolve)
        return HostCall(operation.fn, "initial_value", args, kwargs, operation.output.spec)
    return None


def _in(copies: dict[Operation, Operation], tensor: Tensor) -> Tensor:
    copy = copies.get(tensor.op)
    return tensor if copy is None else Tensor(copy, tensor.path, tensor.spec)


def _only_initialises(operation: Operation) -> bool:
    if isinstance(operation, Group):
        return bool(operation.control_inputs) and all(map(_only_initialises, operation.control_inputs))
    return getattr(operation, "initialises", False)


def _refuse_module(value: Any, name: str) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ == "Module" and kind.__module__.startswith("flax.nnx"):
            raise TypeError(
                f"Variable {name!r}: a whole nnx.Module is no value. Split it: `graphdef, params, rest = "
                f"nnx.split(model, nnx.Param, ...)`, make one variable of `params` and one, trainable=False, of "
                f"`rest`, and call nnx.merge(graphdef, params, rest) inside hookline.op."
            )
