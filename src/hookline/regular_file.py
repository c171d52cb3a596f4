"""Reads untrusted files: regular ones only, up to a limit of their size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
}


class UnreadableFileError(ValueError):
    """A file is not a regular file, is too large, or is not text. The message is a clause that begins with "it"."""


def open_regular(path: str, flags: int = os.O_RDONLY, *, follow_symlinks: bool = True) -> int:
    """Opens a regular file and returns its descriptor. It opens nothing else: opening a FIFO would block, for example.

    Args:
        path: The file.
        flags: The flags for `os.open`.
        follow_symlinks: Whether the path may be a symbolic link.

    Raises:
        UnreadableFileError: It is not a regular file.
        OSError: It cannot be opened.
    """
    try:
        _require_regular(os.stat(path, follow_symlinks=follow_symlinks))
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    # It may have been replaced since that check.
    descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if follow_symlinks else os.O_NOFOLLOW), 0o666)
    try:
        _require_regular(os.fstat(descriptor))
    except BaseException:  # Also for a Ctrl-C: the descriptor must be closed.
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: str, max_bytes: int) -> str:
    """Returns the text of a file of at most `max_bytes`.

    Raises:
        UnreadableFileError: It is not a regular file, is larger, or is not UTF-8.
        OSError: It cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        # The size is checked before reading, because a sparse file can be huge; and after it, because a file may grow.
        size = os.fstat(file.fileno()).st_size
        found = b"" if size > max_bytes else file.read(max_bytes + 1)
    if max(size, len(found)) > max_bytes:
        raise UnreadableFileError(f"it has more than {max_bytes:,} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise UnreadableFileError("it is not text") from error


def walk_files(directory: str, subdirectory: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields the regular files below a directory, or one of its subdirectories, with their paths relative to it.

    Raises:
        UnreadableFileError: An entry is neither a regular file nor a directory.
        OSError: A directory cannot be read.
    """
    with os.scandir(os.path.join(directory, subdirectory)) as entries:
        for entry in entries:
            name = os.path.join(subdirectory, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from walk_files(directory, name)
            else:
                _require_regular(entry.stat(), f"its file {name}")
                yield name, entry


def _require_regular(status: os.stat_result, name: str = "it") -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError(f"{name} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}, not a file")
