"""The paths of leaves in a pytree, as in checkpoints, rules for shardings and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def flatten_with_paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[str, Any]], Any]:
    """Flattens a pytree into (path, leaf) pairs and its structure; paths look like "dense/kernel" and are unique."""
    pairs, structure = jax.tree.flatten_with_path(tree, is_leaf=is_leaf)
    return [("/".join(_quote_key(key) for key in keys), leaf) for keys, leaf in pairs], structure


def is_path_prefix(prefix: str, path: str) -> bool:
    """Returns whether `path` is `prefix` or below it; "" is the prefix of every path.

    Example:
        >>> is_path_prefix("dense", "dense/kernel"), is_path_prefix("dense", "dense2/kernel")
        (True, False)
    """
    return not prefix or path == prefix or path.startswith(f"{prefix}/")


def _quote_key(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True).replace("%", "%25").replace("/", "%2F")
