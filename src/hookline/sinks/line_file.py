"""The base of sinks that write a file with one point a line, which goes back with the training."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hookline import arguments, errors, log
from hookline.checkpoint import durable
from hookline.regular_file import NotReadable, open_regular
from hookline.sinks.sink import Point, Sink, Start

_logger = log.of(__name__)


class LineFile(Sink):
    """A file of lines; a subclass defines their format.

    Written lines survive the end of the process, and from the next checkpoint on a crash of the machine. If the session
    resumes at an earlier step, a new file without the lines of later steps, and without an incomplete last line,
    replaces the old one.

    Args:
        path: The file. By default it is in the session's directory for summaries.

    Raises:
        InvalidArgumentError: From `open`: there is no path and no directory.
        FailedPreconditionError: From `open`: the file was not written by this class.
    """

    name = ""
    """The default name of the file."""
    header = b""
    """Its first line."""
    begins_with: re.Pattern[bytes]
    """The beginning of every other line; the group "step" is the step, and "again" matches lines of each start."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        given = arguments.path(type(self).__name__, "path", path, optional=True)
        self._given = None if given is None else os.path.abspath(given)
        self._path = ""
        self._file: int | None = None

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Yields the lines of points, with their newlines."""
        raise NotImplementedError

    def open(self, start: Start) -> None:
        """Drops the lines of later steps, and opens the file."""
        if self._given is None and start.folder is None:
            raise errors.InvalidArgumentError(
                None,
                None,
                f"{type(self).__name__} requires a path, for the session has no directory for summaries: "
                f"{type(self).__name__}('run/{self.name}').",
            )
        self._path = self._given or os.path.join(start.folder or "", self.name)
        self._let_go()
        with suppress(FileNotFoundError):
            try:
                os.close(open_regular(self._path))
            except NotReadable as error:
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"{type(self).__name__} cannot write '{self._path}': {error}. Give another path, or remove that.",
                ) from error
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        if os.path.exists(self._path):
            self._go_back(start.step)
        self.append(b"")

    def write(self, points: Sequence[Point]) -> None:
        """Appends lines."""
        self.append("".join(self.lines(points)).encode())

    def append(self, data: bytes) -> None:
        """Appends whole lines, all or none.

        Raises:
            OSError: Nothing was appended.
        """
        if self._file is None:
            self._file = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        found = os.fstat(self._file)
        try:
            if not found.st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was being written", self._path)
            left = memoryview(data if found.st_size else self.header + data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, found.st_size)
            self._let_go()  # The next attempt opens the file again.
            raise

    def flush(self) -> None:
        """Syncs the file."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self, failed: bool) -> None:
        """Syncs and closes the file."""
        self.flush()
        self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _go_back(self, step: int) -> None:
        """Drops the lines after a step, and an incomplete last line."""
        with open(self._path, "rb") as old:
            self._check(old.readline())
            old.seek(0)
            dropped = sum(not self._stays(line, step) for line in old)
            if not dropped:
                return
            old.seek(0)
            with durable.replacing(self._path) as new:
                new.writelines(line for line in old if self._stays(line, step))
        _logger.info(
            "%s resumes after step %d: dropped %d lines of later steps or incomplete lines from '%s'.",
            type(self).__name__,
            step,
            dropped,
            self._path,
        )

    def _check(self, first: bytes) -> None:
        is_own = first == self.header if self.header else self.begins_with.match(first)
        if first.endswith(b"\n") and not is_own:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"{type(self).__name__} did not write '{self._path}', which begins with {first[:60]!r}. Give another "
                f"path, or move that file.",
            )

    def _stays(self, line: bytes, step: int) -> bool:
        found = self.begins_with.match(line)
        if not line.endswith(b"\n"):
            return False
        if found is None or not found["step"].isdigit():
            return True
        return int(found["step"]) < step + ("again" not in found.re.groupindex or found["again"] is None)
