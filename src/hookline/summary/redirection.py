"""Redirects the output of hooks to another folder: a replay must leave the folder of its run as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

_REDIRECTED: ContextVar[tuple[str, str] | None] = ContextVar("REDIRECTED", default=None)


@contextlib.contextmanager
def redirected(folder: str, to: str) -> Iterator[None]:
    """Redirects all output inside the `with` block: that of a folder to another one, any other to parts of that."""
    outer = _REDIRECTED.set((os.path.realpath(folder), to))
    try:
        yield
    finally:
        _REDIRECTED.reset(outer)


def output_dir(path: str) -> str:
    """Returns the folder to write to in place of a folder: itself, unless output is redirected.

    Example:
        >>> with redirected("/runs/a", "/tmp/replay"):
        ...     print(output_dir("/runs/a/eval"), output_dir("/tmp/replay/eval"))
        /tmp/replay/eval /tmp/replay/eval
    """
    if (found := _REDIRECTED.get()) is None:
        return path
    (folder, to), real = found, os.path.realpath(path)
    if is_below(real, os.path.realpath(to)):
        return path
    if is_below(real, folder):
        return os.path.normpath(os.path.join(to, os.path.relpath(real, folder)))
    return os.path.join(to, "elsewhere", hashlib.sha256(os.fsencode(real)).hexdigest()[:16])


def is_redirected_to(path: str) -> bool:
    """Returns whether output is redirected, to this folder or one that it is in."""
    found = _REDIRECTED.get()
    return found is not None and is_below(os.path.realpath(path), os.path.realpath(found[1]))


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is a folder or in it; both are real paths."""
    return os.path.commonpath([path, folder]) == folder
