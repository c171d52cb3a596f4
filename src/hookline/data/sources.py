"""The kind of sequence that a source is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from hookline.data.one_shot import OneShot
from hookline.data.sequences import Repeatable, Resumable, Sequence
from hookline.data.states import accessors


def sequence_of(source: Any, who: str, keep_bytes: int | None) -> Sequence:
    """Returns a source as a sequence.

    Args:
        source: A function that makes an iterable, an iterable, or an iterator.
        who: The iterator of the graph, for messages.
        keep_bytes: As in `OneShot`.

    Raises:
        TypeError: It is none of these.
    """
    if not isinstance(source, type):  # A class makes iterables, but also has their methods itself.
        if accessors(source) is not None and hasattr(source, "__iter__"):
            return Resumable(source, who)
        if is_one_shot(source):
            return OneShot(source, who, keep_bytes)
        if hasattr(source, "__iter__") and not isinstance(source, _MISTAKEN):
            return Repeatable(lambda: source, who)
    if callable(source):
        make: Callable[..., Any] = source
        return Repeatable(make, who)
    raise TypeError(
        f"{who} requires a function that makes an iterable, an iterable of batches, or an iterator, got a "
        f"{type(source).__name__}: {source!r}. Arrays in memory become one by hookline.data.arrays(tree, batch_size)."
    )


def is_one_shot(source: Any) -> bool:
    """Whether it is an iterator that gives each batch once and cannot go to a position: neither back, nor on."""
    return hasattr(source, "__next__") and not isinstance(source, type) and accessors(source) is None


# What is iterable, but not batch by batch.
_MISTAKEN = (str, bytes, Mapping, np.ndarray, jax.Array)
