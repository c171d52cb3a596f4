"""The choice of a sequence for a source."""

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
    """Makes a sequence of a source; raises the errors of `check_source`.

    Args:
        source: The source.
        who: The iterator, for messages.
        keep_bytes: As in `OneShot`.
        by_rows: Whether the batches of `arrays` are gathered only when their rows are read.
    """
    check_source(source, who)
    if isinstance(source, Arrays):
        return Repeatable(source.rows if by_rows else lambda: source, who, source)
    if not isinstance(source, type):  # A class makes iterables, but has their methods, too.
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
            f"{shown(source)}. For arrays in memory, use hookline.data.arrays(tree, batch_size)."
        )


def shown(value: Any) -> str:
    """Describes a value in short, for messages: arrays by dtype and shape, as in "float64[9,2]"."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {shown(part)}' for key, part in value.items())}}}"
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return reprlib.repr(value)


def _is_iterable(source: Any) -> bool:
    return hasattr(source, "__iter__") and not isinstance(source, _NOT_SOURCES)


def is_one_shot(source: Any) -> bool:
    """Returns whether it is an iterator that gives each batch once and cannot be set to a position."""
    return hasattr(source, "__next__") and not isinstance(source, type) and accessors(source) is None


# Iterable, but not batch by batch.
_NOT_SOURCES = (str, bytes, Mapping, np.ndarray, jax.Array)
