"""Rows: the values of a run that may hold several steps, one row for each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hookline.session import LateResults


def rows_of_one(values: Any) -> Any:
    """Returns the values of one step as rows, of which there is one."""
    if isinstance(values, LateResults):
        return values.then(rows_of_one)
    return jax.tree.map(lambda leaf: leaf[None] if isinstance(leaf, jax.Array) else np.asarray(leaf)[None], values)
