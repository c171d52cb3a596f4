"""Fed numbers that are part of a program, because sizes depend on them: each other number is compiled anew."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


@jax.tree_util.register_pytree_node_class
class CompiledIn:
    """An array without leaves: JAX sees its numbers in the structure of what a program takes.

    Example:
        >>> jax.jit(lambda size: np.zeros(size.array))(CompiledIn(np.asarray(2))).shape
        (2,)
    """

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def tree_flatten(self) -> tuple[tuple[()], tuple[Any, ...]]:
        """Returns no children, and what two such arrays have in common if they are equal."""
        return (), (self.array.tobytes(), self.array.dtype.str, self.array.shape)

    @classmethod
    def tree_unflatten(cls, form: tuple[Any, ...], children: tuple[()]) -> CompiledIn:
        """Returns the array of a form."""
        numbers, dtype, shape = form
        return cls(np.frombuffer(numbers, dtype).reshape(shape))

    def __repr__(self) -> str:
        return f"{self.array.tolist()}"


def plain(value: Any) -> Any:
    """Returns what a traced function takes for an input: the array of one that is compiled in."""
    return value.array if isinstance(value, CompiledIn) else value
