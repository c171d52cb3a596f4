"""`tf.gfile`: local files and folders."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from hookline.errors import AlreadyExistsError
from hookline.extend import from_os_error
from hookline_tf1._machinery.namespaces import made_in, offered

__all__ = [
    "Copy",
    "DeleteRecursively",
    "Exists",
    "FastGFile",
    "FileStatistics",
    "GFile",
    "Glob",
    "IsDirectory",
    "ListDirectory",
    "MakeDirs",
    "MkDir",
    "Open",
    "Remove",
    "Rename",
    "Stat",
    "Walk",
]


class GFile:
    """A file, opened on first use.

    Args:
        name: Its path.
        mode: See `open`.

    References:
        `tf.gfile.GFile`, `FastGFile` and `Open`. Text is UTF-8.
    """

    _file: IO[Any] | None = None

    def __init__(self, name: Any, mode: str = "r") -> None:
        self.name, self.mode = name, mode
        if "r" not in mode:
            self._opened()

    def _opened(self) -> IO[Any]:
        file = self._file
        if file is None:
            text: Any = {} if "b" in self.mode else {"encoding": "utf-8", "newline": ""}
            with _errors("open", self.name):
                file = self._file = open(self.name, self.mode, **text)  # noqa: SIM115 - closed by `close`
        return file

    def size(self) -> int:
        """Returns the file's length in bytes."""
        self.flush()
        return os.path.getsize(self.name)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, n: int = -1) -> Any:
        """Returns up to `n` characters or bytes, or the rest."""
        return self._opened().read(n)

    def readline(self) -> Any:
        """Returns the next line, with its line end."""
        return self._opened().readline()

    def readlines(self) -> list[Any]:
        """Returns the remaining lines."""
        return self._opened().readlines()

    def write(self, file_content: Any) -> None:
        """Writes text or bytes."""
        self._opened().write(file_content)

    def seek(self, offset: int, whence: int = 0) -> None:
        """Sets the position in the file."""
        self._opened().seek(offset, whence)

    def tell(self) -> int:
        """Returns the position in the file."""
        return self._opened().tell()

    def flush(self) -> None:
        """Flushes the buffer to the operating system."""
        self._opened().flush()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._opened())

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


FastGFile = Open = GFile


@contextmanager
def _errors(verb: str, *names: Any) -> Iterator[None]:
    """Converts an `OSError` to an exception of `tf.errors`."""
    try:
        yield
    except OSError as error:
        paths = " to ".join(repr(os.fspath(name)) for name in names)
        raise from_os_error(error, f"gfile could not {verb} {paths}") from error


def Exists(filename: Any) -> bool:
    """Whether a file or folder exists."""
    return os.path.exists(filename)


def IsDirectory(dirname: Any) -> bool:
    """Whether it is a folder."""
    return os.path.isdir(dirname)


def ListDirectory(dirname: Any) -> list[str]:
    """Returns the names in a folder, in no order."""
    with _errors("list", dirname):
        return os.listdir(dirname)


def MkDir(dirname: Any) -> None:
    """Creates a folder in an existing one."""
    with _errors("make", dirname):
        os.mkdir(dirname)


def MakeDirs(dirname: Any) -> None:
    """Creates a folder and its parents; accepts an existing one."""
    with _errors("make", dirname):
        os.makedirs(dirname, exist_ok=True)


def Remove(filename: Any) -> None:
    """Removes a file."""
    with _errors("remove", filename):
        os.remove(filename)


def DeleteRecursively(dirname: Any) -> None:
    """Removes a folder and its contents."""
    with _errors("remove", dirname):
        shutil.rmtree(dirname)


def Glob(filename: Any) -> list[str]:
    """Returns the paths that match a pattern, or any of several."""
    patterns = filename if isinstance(filename, list | tuple) else [filename]
    return [path for pattern in patterns for path in sorted(glob.glob(os.fspath(pattern)))]


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:
    """Copies a file."""
    _check_free(newpath, overwrite)
    with _errors("copy", oldpath, newpath):
        shutil.copyfile(oldpath, newpath)


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:
    """Moves a file or folder."""
    _check_free(newname, overwrite)
    with _errors("move", oldname, newname):
        os.replace(oldname, newname)


def Walk(top: Any, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each folder with its folders and files, top-down or bottom-up."""
    return os.walk(top, topdown=in_order)


def Stat(filename: Any) -> Any:
    """Returns a file's `length` in bytes, when it was last changed (`mtime_nsec`), and whether it `is_directory`."""
    with _errors("read the status of", filename):
        return FileStatistics(os.stat(filename))


class FileStatistics:
    """The statistics of a file, as `Stat` returns them.

    Args:
        found: The result of `os.stat`.
    """

    def __init__(self, found: os.stat_result) -> None:
        self.length, self.mtime_nsec = found.st_size, found.st_mtime_ns
        self.is_directory = stat.S_ISDIR(found.st_mode)


def _check_free(path: Any, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise AlreadyExistsError.from_message(f"gfile: {os.fspath(path)!r} is there already: pass overwrite=True.")


_OFFERED = made_in(__name__, globals())
__getattr__, __dir__ = offered("tf.gfile", lambda: _OFFERED)
