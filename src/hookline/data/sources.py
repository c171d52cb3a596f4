"""The kind of sequence that a source is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hookline.data.arrays import Arrays
from hookline.data.one_shot import OneShot
from hookline.data.sequences import Repeatable, Resumable, accessors


def sequence_of(
    source: Any, who: str, keep_bytes: int | None, *, by_rows: bool = False
) -> Repeatable | Resumable | OneShot:
    """Returns a source as a sequence; raises what `check_source` raises.

    Args:
        source: The source.
        who: Whose, for messages.
        keep_bytes: As of `OneShot`.
        by_rows: Whether the batches of `arrays` are gathered only where somebody asks for their rows.
    """
    check_source(source, who)
    if by_rows and isinstance(source, Arrays):
        return Repeatable(source.rows, who)
    if not isinstance(source, type):  # A class makes iterables, but also has their methods itself.
        if accessors(source) is not None and hasattr(source, "__iter__"):
            return Resumable(source, who)
        if is_one_shot(source):
            return OneShot(source, who, keep_bytes)
        if _is_iterable(source):
            return Repeatable(lambda: source, who)
    return Repeatable(source, who)


def check_source(source: Any, who: str) -> None:
    """Raises `TypeError` unless it is a function that makes an iterable, or an iterable of batches."""
    if not callable(source) and not is_one_shot(source) and not _is_iterable(source):
        raise TypeError(
            f"{who} requires a function that makes an iterable, an iterable of batches, or an iterator, got "
            f"{shown(source)}. Arrays in memory become one by hookline.data.arrays(tree, batch_size)."
        )


def shown(value: Any) -> str:
    """Returns a value in short, for messages: of arrays their dtypes and shapes, as in "float64[9,2]"."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {shown(part)}' for key, part in value.items())}}}"
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return reprlib.repr(value)


def _is_iterable(source: Any) -> bool:
    return hasattr(source, "__iter__") and not isinstance(source, _MISTAKEN)


def is_one_shot(source: Any) -> bool:
    """Whether it is an iterator that gives each batch once and cannot go to a position: neither back, nor on."""
    return hasattr(source, "__next__") and not isinstance(source, type) and accessors(source) is None


# What is iterable, but not batch by batch.
_MISTAKEN = (str, bytes, Mapping, np.ndarray, jax.Array)
