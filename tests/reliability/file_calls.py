"""The file system calls of a Python program, observed before and after each."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import fcntl
import functools
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

_BY_PATH = ("mkdir", "remove", "unlink", "rmdir")
_BY_TWO_PATHS = ("rename", "replace")
_BY_DESCRIPTOR = ("fsync", "fdatasync")
_READS_BY_PATH = ("stat", "lstat", "listdir", "scandir")


@dataclasses.dataclass(frozen=True)
class FileCall:
    """One call.

    Attributes:
        name: Such as "rename".
        path: What it was given; empty where it was given an open file.
        target: The second path of a rename.
        descriptor: Of the open file; of the directory that `path` starts from, where an open one was given.
    """

    name: str
    path: str = ""
    target: str = ""
    descriptor: int | None = None

    def __str__(self) -> str:
        where = "" if self.descriptor is None else os.path.realpath(f"/proc/self/fd/{self.descriptor}")
        return " ".join(filter(None, [self.name, os.path.join(where, self.path).rstrip(os.sep), self.target]))


Around = Callable[[FileCall, Callable[[], Any]], Any]


@contextlib.contextmanager
def watched(around: Around, *, reads: bool = False) -> Iterator[None]:
    """Has every call of this process that changes or syncs files pass through `around(call, proceed)`.

    The real call is made by `proceed()`. Files opened to be written are seen too. Not seen is what libraries do without
    Python: look at the tree for that. With `reads`, calls that look at files or lock them are seen too.
    """
    patched: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, call: Callable[..., FileCall | None]) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def seen(*args: Any, **kwargs: Any) -> Any:
            found = call(*args, **kwargs)
            proceed = functools.partial(real, *args, **kwargs)
            return proceed() if found is None else around(found, proceed)

        patched.append((owner, name, real))
        setattr(owner, name, seen)

    try:
        for name in _BY_PATH:
            patch(os, name, functools.partial(_by_path, name))
        for name in _BY_TWO_PATHS:
            patch(os, name, functools.partial(_by_two_paths, name))
        for name in filter(functools.partial(hasattr, os), _BY_DESCRIPTOR):
            patch(os, name, functools.partial(_by_descriptor, name))
        if reads:
            for name in _READS_BY_PATH:
                patch(os, name, functools.partial(_read_by_path, name))
            patch(fcntl, "lockf", lambda file, *_: FileCall("lock", descriptor=file))
        patch(os, "open", functools.partial(_opened, reads=reads))
        for owner in (builtins, io):
            patch(owner, "open", functools.partial(_opened_as_file, reads=reads))
        yield
    finally:
        for owner, name, real in reversed(patched):
            setattr(owner, name, real)


def _by_path(name: str, path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> FileCall:
    return FileCall({"unlink": "remove"}.get(name, name), os.fsdecode(path), descriptor=dir_fd)


def _by_two_paths(name: str, path: Any, target: Any, **_: Any) -> FileCall:
    return FileCall("rename", os.fsdecode(path), os.fsdecode(target))


def _by_descriptor(name: str, file: Any) -> FileCall:
    return FileCall("fsync", descriptor=file if isinstance(file, int) else file.fileno())


def _read_by_path(name: str, path: Any = ".", *_: Any, **__: Any) -> FileCall:
    return FileCall(name, descriptor=path) if isinstance(path, int) else FileCall(name, os.fsdecode(path))


def _opened(path: Any, flags: int, *_: Any, reads: bool, **__: Any) -> FileCall | None:
    return FileCall("open", os.fsdecode(path)) if reads or flags & (os.O_WRONLY | os.O_RDWR) else None


def _opened_as_file(file: Any, mode: str = "r", *_: Any, reads: bool, **__: Any) -> FileCall | None:
    if isinstance(file, int) or not (reads or set(mode) & set("wax+")):
        return None
    return FileCall("open", os.fsdecode(file))
