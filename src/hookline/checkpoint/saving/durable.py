"""Files, directories and renames that survive a power cut after the call has returned."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from hookline import log
from hookline.coordination import progress

_logger = log.get_logger(__name__)
WRITING_SUFFIX = ".hookline-writing-"
"""The suffix, followed by random digits, of a file or directory that is being written and not renamed yet."""
being_written: set[str] = set()
"""The absolute paths of files and directories that this process is writing, under their temporary names."""

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_warned: set[str] = set()


def sync_tree(directory: str) -> None:
    """Syncs all files and directories below a directory, and the directory itself, each after its contents."""
    for folder, _, files in os.walk(directory, topdown=False, onerror=_raise):
        for file in sorted(files):
            _sync(os.path.join(folder, file), os.O_RDONLY | os.O_NONBLOCK)
        sync_directory(folder)


def sync_directory(directory: str) -> None:
    """Syncs the names in a directory. If the file system cannot do this, logs one warning."""
    try:
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        if directory not in _warned:
            _warned.add(directory)
            _logger.warning(
                "The file system of '%s' cannot sync directories (%s): a power cut may lose the last save.",
                directory,
                error,
            )


def make_directories(path: str) -> None:
    """Makes a directory and its missing parents, and syncs the parent of each."""
    if os.path.isdir(path):
        return
    if not os.path.lexists(above := os.path.dirname(path)):
        make_directories(above)
    os.makedirs(path, exist_ok=True)  # Another process may have made it.
    sync_directory(above)


def rename(old: str, new: str) -> None:
    """Renames a file or directory within its directory, and syncs the directory."""
    os.rename(old, new)
    sync_directory(os.path.dirname(new))


def write_text(path: str, text: str) -> None:
    """Writes a small file so that any reader, at any moment, sees either the old or the new text."""
    with atomic_write(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[BinaryIO]:
    """Yields a new file, which at the end is synced and replaces the file at `path`.

    Until then it has a temporary name in the same directory, which marks a leftover of a killed process as hookline's.
    """
    temporary = f"{os.path.abspath(path)}{WRITING_SUFFIX}{secrets.token_hex(4)}"
    being_written.add(temporary)
    try:
        with create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Leave no partial file.
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    finally:
        being_written.discard(temporary)
    sync_directory(os.path.dirname(path) or ".")


def create(path: str) -> BinaryIO:
    """Opens a new file to write to; raises `FileExistsError` if there is anything at the path, even a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def _raise(error: OSError) -> None:
    raise error


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
        progress.count += 1
    finally:
        os.close(descriptor)
