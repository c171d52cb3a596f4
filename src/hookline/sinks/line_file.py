"""A sink that is a file of lines, one a point, which goes back with the training."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hookline import arguments, errors
from hookline.checkpoint import durable
from hookline.sinks.sink import Point, Sink, Start

_logger = logging.getLogger(__name__)


class LineFile(Sink):
    """A file of lines; a subclass says how a line reads.

    Written lines survive the end of the process, and a crash of the machine from the next checkpoint on. Where the
    session goes on from an earlier step, the lines of later ones are dropped, and so is a last line that is not whole.
    Both are done in a new file that takes the place of the old one.

    Args:
        path: The file. By default it is in the session's directory for summaries.

    Raises:
        InvalidArgumentError: From `open`: there is no path and no directory.
        FailedPreconditionError: From `open`: the file was not written by this class.
    """

    name = ""
    """What the file is called by default."""
    header = b""
    """Its first line."""
    begins_with: re.Pattern[bytes]
    """What each other line begins with; the step is the group "step", and "again" is there if each start writes it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        given = arguments.path(type(self).__name__, "path", path, optional=True)
        self._given = None if given is None else os.path.abspath(given)
        self._path = ""
        self._file: int | None = None

    def lines(self, points: Sequence[Point]) -> Iterator[str]:
        """Returns the lines of points, each with its end."""
        raise NotImplementedError

    def open(self, start: Start) -> None:
        """Drops what is not to be there, and opens the file."""
        if self._given is None and start.folder is None:
            raise errors.InvalidArgumentError(
                None,
                None,
                f"{type(self).__name__} requires a path, for the session has no directory for summaries: "
                f"{type(self).__name__}('run/{self.name}').",
            )
        self._path = self._given or os.path.join(start.folder or "", self.name)
        self._let_go()
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
            OSError: None was.
        """
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
            self._let_go()  # The next one may find another.
            raise

    def flush(self) -> None:
        """Syncs the file."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self, failed: bool) -> None:
        """Syncs and closes it."""
        self.flush()
        self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _go_back(self, step: int) -> None:
        """Leaves of the file what was written up to a step."""
        with open(self._path, "rb") as old:
            self._check(old.readline())
            old.seek(0)
            dropped = sum(not self._stays(line, step) for line in old)
            if not dropped:
                return
            old.seek(0)
            temporary = f"{self._path}.tmp"
            with open(temporary, "wb") as new:
                new.writelines(line for line in old if self._stays(line, step))
                new.flush()
                os.fsync(new.fileno())
        durable.rename(temporary, self._path)
        _logger.info(
            "%s goes on after step %d: lines of later steps, or not whole, that are no more in '%s': %d.",
            type(self).__name__,
            step,
            self._path,
            dropped,
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
