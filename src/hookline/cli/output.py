"""The output of several processes, line by line, with the name of the process before each line."""

from __future__ import annotations

import re
import threading
from typing import IO, TextIO

_FINISH_SECS = 5.0


class Echo:
    r"""Shows the lines of several processes as they come, whole and never mixed.

    A line that a process overwrites (with a carriage return, as progress bars do) is shown as a separate line. Empty
    lines are left out.

    Args:
        width: The space for names.
        without: A pattern to remove from lines.

    Example:
        >>> import io
        >>> echo, shown = Echo(width=8), io.StringIO()
        >>> echo.follow("chief", io.BytesIO(b"step 1\rstep 2\n"), shown)
        >>> echo.finish()
        >>> print(shown.getvalue(), end="")
        chief    | step 1
        chief    | step 2
    """

    def __init__(self, width: int, without: re.Pattern[bytes] | None = None) -> None:
        self._width, self._without = width, without
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def follow(self, name: str, source: IO[bytes] | None, to: TextIO) -> None:
        """Shows the lines of `source` until it ends, and closes it."""
        assert source is not None
        thread = threading.Thread(target=self._copy, args=(f"{name:{self._width}} | ", source, to), daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        """Waits until everything has been shown."""
        for thread in self._threads:
            thread.join(_FINISH_SECS)

    def _copy(self, prefix: str, source: IO[bytes], to: TextIO) -> None:
        rest = b""
        with source:
            while chunk := source.read1(65536):  # type: ignore[attr-defined]
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                self._show(prefix, lines, to)
            self._show(prefix, [rest], to)

    def _show(self, prefix: str, lines: list[bytes], to: TextIO) -> None:
        if self._without is not None:
            lines = [self._without.sub(b"", line) for line in lines]
        texts = [line.decode(errors="replace").rstrip() for line in lines]
        with self._lock:
            to.write("".join(f"{prefix}{text}\n" for text in texts if text))
            to.flush()
