"""The types of leaves of a state, recognised without importing Flax."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hookline.graph import spec as specs


class InvalidStep(Exception):
    """Raised for a result of a step that cannot be used; `step_errors` turns it into a `kind` with the step's name."""

    def __init__(self, message: str, kind: type[Exception] = TypeError) -> None:
        super().__init__(message)
        self.kind = kind


def is_nnx(value: Any) -> bool:
    """Returns whether it is an object of Flax NNX, such as a module or an optimizer; Flax need not be installed."""
    return any(
        kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Pytree", "Object", "Module")
        for kind in type(value).__mro__
    )


def are_nnx(state: Any) -> bool:
    """Returns whether it is an NNX object, or a tuple or dict of them."""
    items = tuple(state.values()) if type(state) is dict else state
    return is_nnx(state) or (isinstance(items, tuple) and bool(items) and all(map(is_nnx, items)))


def is_array(leaf: Any) -> bool:
    """Returns whether it is an array of numbers, or a `jax.ShapeDtypeStruct`."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm"


def is_number(leaf: Any) -> bool:
    """Returns whether it is a Python number."""
    return isinstance(leaf, bool | int | float | complex)


def is_value(leaf: Any) -> bool:
    """Returns whether it is an array or a Python number."""
    return is_array(leaf) or is_number(leaf)


def dtype_of(leaf: Any) -> Any:
    """Returns the dtype that JAX gives to an array or a Python number."""
    if isinstance(leaf, np.ndarray | np.generic):
        return specs.canonical_dtype(leaf.dtype)
    return getattr(leaf, "dtype", None) or jax.dtypes.result_type(leaf)


def is_weak(leaf: Any) -> bool:
    """Returns whether a value has a weak type, as Python numbers have."""
    return not isinstance(leaf, bool) and (not hasattr(leaf, "dtype") or getattr(leaf, "weak_type", False))
