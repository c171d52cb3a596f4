"""Fed numbers that are constants of a compiled program, because sizes depend on them.

Each new number is compiled anew.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


@jax.tree_util.register_pytree_node_class
class CompiledIn:
    """A pytree without leaves: the numbers of its array are part of the tree structure, and so static to `jax.jit`.

    Example:
        >>> jax.jit(lambda size: np.zeros(size.array))(CompiledIn(np.asarray(2))).shape
        (2,)
    """

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def tree_flatten(self) -> tuple[tuple[()], tuple[Any, ...]]:
        """Returns no children, and the numbers, dtype and shape, by which JAX compares two such arrays."""
        return (), (self.array.tobytes(), self.array.dtype.str, self.array.shape)

    @classmethod
    def tree_unflatten(cls, form: tuple[Any, ...], children: tuple[()]) -> CompiledIn:
        """Builds the array again."""
        numbers, dtype, shape = form
        return cls(np.frombuffer(numbers, dtype).reshape(shape))

    def __repr__(self) -> str:
        return f"{self.array.tolist()}"


def plain(value: Any) -> Any:
    """Returns the argument for a traced function: the array of a `CompiledIn`, any other value as it is."""
    return value.array if isinstance(value, CompiledIn) else value
