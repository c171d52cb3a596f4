"""What a loop has to know of its batches before the first step."""

from __future__ import annotations

from typing import Any

from hookline.errors import OutOfRangeError
from hookline.graph import Tensor
from hookline.graph import spec as specs
from hookline.graph.nodes import Source
from hookline.session import Session


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
    raise TypeError(
        f"Loop requires batches of arrays and numbers, got {value!r}. What a device cannot hold is for the source to "
        f"turn into numbers."
    )
