"""TerminalLine: a line at the bottom of a terminal, below all other output."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO

_ERASE = "\r\x1b[K"
_ERASE_REST = "\x1b[K"
_DEFAULT_CELLS = 80


def is_terminal(file: Any) -> bool:
    """Returns whether a file is a terminal on which lines can be redrawn."""
    isatty = getattr(file, "isatty", None)
    return isatty is not None and isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class TerminalLine:
    """Redraws one line at the bottom of a terminal.

    Until `finish`, output to `sys.stdout` and `sys.stderr`, including that of log handlers, comes above the line. While
    such output ends in the middle of a line, the redrawing waits for its end. A stream that is no terminal, such as a
    file, stays unchanged. Any thread may print.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._others_are_in_a_line = False
        self._lock = threading.RLock()  # A signal handler may print while its own thread does.
        self._guards: list[_Guard] = []
        for stream in {id(each): each for each in (file, sys.stdout, sys.stderr) if is_terminal(each)}.values():
            self._guards.append(_Guard(self, stream))
        for guard in self._guards:
            _replace(guard.stream, guard)

    @property
    def cells(self) -> int:
        """The width in characters, without the last column, where some terminals wrap to the next line."""
        try:
            columns = os.get_terminal_size(self._file.fileno()).columns
        except (AttributeError, OSError, ValueError):
            columns = 0
        return (columns or _DEFAULT_CELLS) - 1

    def draw(self, text: str) -> None:
        """Replaces the text of the line by another, at most `cells` characters long."""
        with self._lock:
            self._text = text
            if not self._others_are_in_a_line:
                self._write(f"\r{text}{_ERASE_REST}")

    def print_above(self, stream: TextIO, text: str) -> int:
        """Writes other output above the line."""
        with self._lock:
            if self._text and not self._others_are_in_a_line:
                self._write(_ERASE)
            written = stream.write(text)
            if text:
                self._others_are_in_a_line = not text.endswith(("\n", "\r"))
            if self._text and not self._others_are_in_a_line:
                stream.flush()
                self._write(self._text)
            return written

    def finish(self) -> None:
        """Keeps the last text, and restores the streams."""
        with self._lock:
            text, self._text = self._text, ""
            if text:
                self._write(f"\n{text}\n" if self._others_are_in_a_line else "\n")
        # Without the lock: a thread that logs holds its handler's lock, needed here, while it waits for this one.
        for guard in self._guards:
            _replace(guard, guard.stream)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _Guard:
    """A stand-in for a stream; once the line is finished, it writes straight to the stream."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        self._line, self.stream = line, stream

    def write(self, text: str) -> int:
        return self._line.print_above(self.stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _replace(stream: Any, by: Any) -> None:
    """Replaces a stream in `sys` and in the handlers of the log."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is stream:
            setattr(sys, name, by)
    loggers = [logging.root, *logging.root.manager.loggerDict.copy().values()]
    for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            handler.setStream(by)
