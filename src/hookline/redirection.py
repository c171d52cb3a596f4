"""Redirects output to another folder: a replay must leave the folder of its run as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

_Redirected = tuple[str, str] | None
_HERE: ContextVar[_Redirected] = ContextVar("REDIRECTED", default=None)
_everywhere: _Redirected = None


@contextlib.contextmanager
def redirected(folder: str, to: str, *, everywhere: bool = False) -> Iterator[None]:
    """Redirects all output inside the `with` block: that of a folder to another one, any other to parts of that.

    Args:
        folder: The folder.
        to: The other one.
        everywhere: Whether this is for all threads of the process, and not for the calls of this block alone.
    """
    global _everywhere
    outer, token, found = _everywhere, None, (os.path.realpath(folder), to)
    if everywhere:
        _everywhere = found
    else:
        token = _HERE.set(found)
    try:
        yield
    finally:
        _everywhere = outer
        if token is not None:
            _HERE.reset(token)


def output_dir(path: str) -> str:
    """Returns the folder to write to in place of a folder: itself, unless output is redirected.

    Example:
        >>> with redirected("/runs/a", "/tmp/replay"):
        ...     print(output_dir("/runs/a/eval"), output_dir("/tmp/replay/eval"))
        /tmp/replay/eval /tmp/replay/eval
    """
    found, real = _HERE.get() or _everywhere, os.path.realpath(path)
    if found is None or is_redirected_to(path):
        return path
    folder, to = found
    if is_below(real, folder):
        return os.path.normpath(os.path.join(to, os.path.relpath(real, folder)))
    return os.path.join(to, "elsewhere", hashlib.sha256(os.fsencode(real)).hexdigest()[:16])


def output_path(path: str) -> str:
    """Returns the path to write to in place of a path, in `output_dir` of its folder."""
    return os.path.join(output_dir(os.path.dirname(path)), os.path.basename(path))


def is_redirected_to(path: str) -> bool:
    """Returns whether output is redirected, to this folder or one that it is in."""
    real = os.path.realpath(path)
    return any(found is not None and is_below(real, os.path.realpath(found[1])) for found in (_HERE.get(), _everywhere))


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is a folder or in it; both are real paths."""
    return os.path.commonpath([path, folder]) == folder
