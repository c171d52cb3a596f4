"""What a loop has to know of its batches before the first step, and what is not a source of batches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hookline.data.sources import check_source, shown
from hookline.errors import OutOfRangeError
from hookline.graph import Tensor
from hookline.graph import spec as specs
from hookline.graph.nodes import Source
from hookline.session import Session


def check_batches(who: str, batches: Any) -> None:
    """Raises `TypeError` for what is not a source of batches: an array, a tuple of arrays, text."""
    check_source(batches, who)
    if isinstance(batches, tuple) and batches and all(isinstance(item, np.ndarray | jax.Array) for item in batches):
        arrays = ", ".join(map(shown, batches))
        raise TypeError(
            f"{who} requires batches, and got a tuple of arrays, ({arrays}). If it is all examples, hookline.data."
            f"arrays((X, y), batch_size=32) makes batches of them; if each array is a batch, give a list of them."
        )


def refuse_text(who: str, batch: Any) -> None:
    """Raises `TypeError` for a batch with text or objects, and names the first."""
    for path, leaf in jax.tree.leaves_with_path(batch):
        array = np.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        if getattr(array.dtype, "kind", "") in "OSU":
            what = "an object" if array.dtype.kind == "O" else "text"
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            value = array.ravel()[0] if isinstance(array, np.ndarray) else leaf
            value = value.item() if isinstance(value, np.generic) else value
            raise TypeError(
                f"{who} requires batches of arrays and numbers, and the first has {what}{where}: "
                f"{shown(value)}. Leave it out, or have the source turn it into numbers."
            )


def first_spec(batch: Tensor) -> Any:
    """Returns the spec of the first batch.

    Raises:
        ValueError: There is none.
        TypeError: It holds text or objects.
        Exception: What its source raises.
    """
    spec = batch.op.example if isinstance(batch.op, Source) else batch.spec
    if spec is not specs.UNKNOWN:
        return spec
    with Session(graph=batch.graph) as session:
        try:
            value = session.run(batch)
        except OutOfRangeError:
            raise ValueError(
                "Loop requires a batch or more, and batches is empty. An iterator that was used up before gives no "
                "more: give a function that makes it."
            ) from None
    refuse_text("Loop", value)
    raise TypeError(f"Loop requires batches of arrays and numbers, got {shown(value)}.")
