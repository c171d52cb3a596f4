"""The leaves of a state for the rules: a path, a shape, and Flax's metadata of the array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from hookline.paths import with_paths

_NUMBERS = (bool, int, float, complex)


class Leaf(NamedTuple):
    """A leaf of a state.

    Attributes:
        path: Its path. The box that Flax puts around an array adds nothing to it.
        shape: Its shape; None if it is not an array.
        box: The Flax object around it that may have metadata, or None.
    """

    path: str
    shape: tuple[int, ...] | None
    box: Any

    @property
    def size(self) -> int:
        """The number of elements; 1 if it is not an array."""
        return math.prod(self.shape or ())

    def __str__(self) -> str:
        """Names it in a message."""
        return repr(self.path) if self.path else "the state"


def leaves_of(state: Any) -> list[Leaf]:
    """Returns the leaves of a state, concrete or abstract, in the order of `jax.tree.leaves`."""
    found = []
    for path, node in with_paths(state, is_leaf=is_box)[0]:
        if is_box(node):
            inside = jax.tree.leaves(node)
            paths = [path] if len(inside) == 1 else [f"{path}/{end}" for end, _ in with_paths(node)[0]]
            found += [Leaf(end, _shape_of(leaf), node) for end, leaf in zip(paths, inside, strict=True)]
        else:
            found.append(Leaf(path, _shape_of(node), None))
    return found


def is_box(value: Any) -> bool:
    """Returns whether it is an object of Flax that adds metadata to an array. Flax need not be installed."""
    return any(
        kind.__module__.startswith("flax.") and kind.__name__ in ("Partitioned", "Variable")
        for kind in type(value).__mro__
    )


def listed(names: Sequence[Any]) -> str:
    """Lists a few names in a message."""
    few, more = ", ".join(map(str, names[:3])), len(names) - 3
    return f"{few} and {more} more" if more > 0 else few


def _shape_of(leaf: Any) -> tuple[int, ...] | None:
    if isinstance(leaf, _NUMBERS):
        return ()
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, tuple) else None
