"""Functions that update variables: `tf.assign`, `tf.scatter_add` and the like."""

from __future__ import annotations

from typing import Any

import hookline as core
from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._rules.tensor_shape import TensorShape
from hookline_tf1._tf.variables import Variable


def _is_core(ref: Any) -> bool:
    """Whether a variable belongs to a plain hookline graph, without TensorFlow's arguments."""
    return isinstance(ref, core.Variable) and not isinstance(ref, Variable)


def assign(ref: Any, value: Any, validate_shape: Any = None, use_locking: Any = None, name: Any = None) -> Any:
    """`tf.assign`.

    Raises:
        ValueError: The value and the variable differ in shape, also with `validate_shape=False`.
    """
    ignored("tf.assign", validate_shape=validate_shape is False)
    if validate_shape is False:
        given = convert_to_tensor(value).shape
        if not TensorShape(ref.shape).is_compatible_with(given):
            raise ValueError(
                f"tf.assign: {ref.name!r} has the shape {ref.shape} and keeps it, also with validate_shape=False; got "
                f"{given}. Make the variable as large as it may become, or feed such values through a placeholder."
            )
    return ref.assign(value, name=name) if _is_core(ref) else ref.assign(value, use_locking, name)


def assign_add(ref: Any, value: Any, use_locking: Any = None, name: Any = None) -> Any:
    """`tf.assign_add`."""
    return ref.assign_add(value, name=name) if _is_core(ref) else ref.assign_add(value, use_locking, name)


def assign_sub(ref: Any, value: Any, use_locking: Any = None, name: Any = None) -> Any:
    """`tf.assign_sub`."""
    return ref.assign_sub(value, name=name) if _is_core(ref) else ref.assign_sub(value, use_locking, name)


def scatter_add(ref: Any, indices: Any, updates: Any, use_locking: Any = False, name: Any = None) -> Any:
    """`tf.scatter_add`."""
    ignored("tf.scatter_add", use_locking=use_locking is True)
    return ref.scatter_add(indices, updates, name or "ScatterAdd")


def scatter_sub(ref: Any, indices: Any, updates: Any, use_locking: Any = False, name: Any = None) -> Any:
    """`tf.scatter_sub`."""
    ignored("tf.scatter_sub", use_locking=use_locking is True)
    return ref.scatter_sub(indices, updates, name or "ScatterSub")


def scatter_update(ref: Any, indices: Any, updates: Any, use_locking: Any = True, name: Any = None) -> Any:
    """`tf.scatter_update`."""
    ignored("tf.scatter_update", use_locking=use_locking is False)
    return ref.scatter_update(indices, updates, name or "ScatterUpdate")


__all__ = ["assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update"]
