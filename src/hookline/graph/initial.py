"""Initial values as tensors that do not depend on the block in which they were made."""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

from hookline.graph import spec as specs
from hookline.graph.graph import InsideTraceError, Operation, Tensor, ancestors, holds_tensor
from hookline.graph.nodes import Group
from hookline.graph.ops import as_array, constant, host_op, op


def initial_tensor(initial_value: Any, name: str) -> Tensor:
    """Makes a tensor of a pytree of arrays or tensors, of a tensor, or of the result of a function without arguments.

    It is called outside of all control dependencies. `name` is that of the variable, for messages.
    """
    if isinstance(initial_value, Tensor):
        return _outside(initial_value)
    is_function = callable(initial_value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(initial_value))
    if not is_function:
        if holds_tensor(initial_value):
            return _outside(op(lambda value: value, name="initial_value")(initial_value))
        _refuse_module(initial_value, name)
        tensor = constant(initial_value, name="initial_value")
        if tensor.spec is specs.UNKNOWN:
            raise TypeError(f"Variable {name!r} requires a pytree of arrays and numbers, got {initial_value!r}.")
        return tensor
    results: list[Any] = []
    concrete: list[bool] = []

    def make() -> Any:
        return as_array(initial_value())

    def probe() -> Any:
        result = make()
        results.append(result)
        _refuse_module(result, name)
        concrete.extend(not isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result))
        return None if holds_tensor(result) else result

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
    if holds_tensor(results[0]):
        return initial_tensor(results[0], name)
    if any(concrete):
        # NumPy values would be baked into the compiled program as constants; they are computed in Python instead.
        return host_op(make, name="initial_value", spec=spec).node()
    return op(make, name="initial_value").node()


def _outside(tensor: Tensor) -> Tensor:
    """Copies a tensor and those of its operations that wait, as if made outside of every block.

    Each copy is made once, so operations that several initial values share stay shared.
    """
    copies: dict[Operation, Operation] = {}

    def resolve(source: Tensor) -> Tensor:
        copy = copies.get(source.op)
        return source if copy is None else Tensor(copy, source.path, source.spec)

    for operation in sorted(ancestors([tensor]), key=lambda operation: operation.index):
        kept = [control for control in operation.control_inputs if _only_initialises(control)]
        waits = len(kept) < len(operation.control_inputs)
        if waits or any(source.op in copies for source in operation.inputs):
            if operation.outside is None:
                with operation.graph.control_dependencies(kept):
                    operation.outside = operation.copied("initial_value", resolve)
            if operation.outside is not None:
                copies[operation] = operation.outside
    return resolve(tensor)


def _only_initialises(operation: Operation) -> bool:
    pending = [operation]
    while pending:
        operation = pending.pop()
        if isinstance(operation, Group) and operation.control_inputs:
            pending.extend(operation.control_inputs)
        elif not getattr(operation, "initialises", False):
            return False
    return True


def _refuse_module(value: Any, name: str) -> None:
    for kind in type(value).__mro__:
        if kind.__name__ == "Module" and kind.__module__.startswith("flax.nnx"):
            raise TypeError(
                f"Variable {name!r}: a whole nnx.Module is no value. Split it: `graphdef, params, rest = "
                f"nnx.split(model, nnx.Param, ...)`, make one variable of `params` and one, trainable=False, of "
                f"`rest`, and call nnx.merge(graphdef, params, rest) inside hookline.op."
            )
