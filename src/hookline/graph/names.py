"""Names in a graph: unique, and prefixed by the scopes in which they are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Names:
    """The names that a graph has given out, and the current scope of each thread.

    Example:
        >>> names = Names()
        >>> names.unique("loss"), names.unique("loss")
        ('loss', 'loss_1')
        >>> with names.scoped("tower/"):
        ...     names.unique("loss")
        'tower/loss'
    """

    def __init__(self) -> None:
        # By the name in lower case: a checkpoint's folders may lie on a file system that ignores case.
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def scope(self) -> str:
        """The name scope of the calling thread: empty, or ending in a slash."""
        return getattr(self._local, "scope", "")

    @contextmanager
    def scoped(self, prefix: str) -> Iterator[str]:
        """Puts the calling thread into the scope `prefix`, which is empty or ends in a slash."""
        outer = self.scope
        self._local.scope = prefix
        try:
            yield prefix
        finally:
            self._local.scope = outer

    def unique(self, name: str) -> str:
        """Returns `name` inside the current scope, numbered (`loss_1`) if it is taken, and takes it.

        Names that differ only in case count as the same.

        Raises:
            ValueError: It has characters other than letters, digits, `_`, `.`, `-` and `/`, or leads out of a folder.
        """
        with self._lock:
            unique = self._free(name)
            wanted = (self.scope + name).lower()
            self._counts[wanted] = self._counts.get(wanted, 0) + 1
            self._counts.setdefault(unique.lower(), 1)
            return unique

    def free(self, name: str) -> str:
        """Returns what `unique` would return, without taking it."""
        with self._lock:
            return self._free(name)

    def _free(self, name: str) -> str:
        check_name(name)
        unique = wanted = self.scope + name
        count = self._counts.get(wanted.lower(), 0)
        while count and unique.lower() in self._counts:
            unique = f"{wanted}_{count}"
            count += 1
        return unique


def check_name(name: str) -> None:
    """Raises `ValueError` unless `name` can be a name in a graph.

    Names become parts of paths, in checkpoints and in TensorBoard, so none may lead out of its folder.
    """
    if not isinstance(name, str):
        raise TypeError(f"A name is a string, got {name!r} of type {type(name).__name__}.")
    if not name or not all(c.isascii() and (c.isalnum() or c in "_.-/") for c in name):
        raise ValueError(f"{name!r} is not a name: use letters, digits and '_', '.', '-', '/'.")
    if not name[0].isalnum() and name[0] not in "._":
        raise ValueError(f"{name!r} is not a name: begin it with a letter, a digit, '.' or '_'.")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name: a part between two slashes may not be empty, '.' or '..'.")
