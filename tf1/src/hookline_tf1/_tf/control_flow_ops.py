"""Groups of operations, and control dependencies."""

from __future__ import annotations

from typing import Any

import jax

import hookline as core
from hookline_tf1._machinery.graphs import control_dependencies, get_default_graph, name_scope
from hookline_tf1._machinery.nodes import op


def group(*inputs: Any, **kwargs: Any) -> Any:
    """`tf.group`."""
    name = kwargs.pop("name", None)
    if kwargs:
        raise ValueError(f"Unknown keyword arguments: {', '.join(kwargs)}")
    get_default_graph()
    listed = [item for item in jax.tree.leaves(inputs, is_leaf=lambda leaf: leaf is None) if item is not None]
    return core.group(*listed, name=name)


def no_op(name: str | None = None) -> Any:
    """`tf.no_op`."""
    get_default_graph()
    return core.no_op(name)


def tuple(tensors: Any, name: str | None = None, control_inputs: Any = None) -> list[Any]:
    """`tf.tuple`: the tensors, each after all are computed."""
    with (
        name_scope(name, "tuple"),
        control_dependencies([*(t for t in tensors if t is not None), *(control_inputs or ())]),
    ):
        return [None if t is None else op(lambda x: x, name="identity")(t) for t in tensors]


def with_dependencies(dependencies: Any, output_tensor: Any, name: str | None = None) -> Any:
    """Returns a tensor that operations run before."""
    with control_dependencies(dependencies):
        return op(lambda x: x, name=name or "control_dependency")(output_tensor)


__all__ = ["group", "no_op", "tuple"]
