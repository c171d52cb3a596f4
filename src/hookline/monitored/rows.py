"""Rows: the values of a run that may hold several steps, with one row for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.session import DeferredResults


def rows_of_one(values: Any) -> Any:
    """Returns the values of one step as a single row."""
    if isinstance(values, DeferredResults):
        return values.then(rows_of_one)
    return jax.tree.map(lambda leaf: leaf[None] if isinstance(leaf, jax.Array) else np.asarray(leaf)[None], values)


def joined(parts: Sequence[Any]) -> Any:
    """Concatenates the rows of several runs."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], DeferredResults):
        *others, last = parts
        return last.then(lambda values: joined([*(part.get() for part in others), values]))
    return jax.tree.map(lambda *rows: (jnp if isinstance(rows[0], jax.Array) else np).concatenate(rows), *parts)
