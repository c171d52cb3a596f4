"""Kinds of things that a step takes and returns, told apart without a look at the libraries that they are of."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Unfit(Exception):
    """What a step returned cannot be used; whoever called the step raises a `kind` that says whose it was."""

    def __init__(self, message: str, kind: type[Exception] = TypeError) -> None:
        super().__init__(message)
        self.kind = kind


def is_nnx(value: Any) -> bool:
    """Whether it is an object of Flax NNX, such as a module or an optimizer. Flax need not be there."""
    return any(
        kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Pytree", "Object", "Module")
        for kind in type(value).__mro__
    )


def are_nnx(state: Any) -> bool:
    """Whether it is such an object, or a tuple or dict of them."""
    items = tuple(state.values()) if type(state) is dict else state
    return is_nnx(state) or (isinstance(items, tuple) and bool(items) and all(map(is_nnx, items)))


def is_array(leaf: Any) -> bool:
    """Whether it is an array of numbers, or the shape of one."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm"


def is_number(leaf: Any) -> bool:
    """Whether it is a number of Python."""
    return isinstance(leaf, bool | int | float | complex)


def is_value(leaf: Any) -> bool:
    """Whether it is one or the other."""
    return is_array(leaf) or is_number(leaf)
