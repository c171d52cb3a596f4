"""TerminalLine: a line at the bottom of a terminal that others print above."""

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
    """Returns whether lines can be drawn anew on it."""
    isatty = getattr(file, "isatty", None)
    return isatty is not None and isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class TerminalLine:
    """Draws one line over and over at the bottom of a terminal.

    Until `finish`, what is printed to `sys.stdout` and `sys.stderr`, and what handlers of the log write to them, comes
    above the line; where others are in the middle of a line of theirs, it waits for the end of that. A stream that
    leads elsewhere, into a file, is left alone. Any thread may print.
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
        """How many characters fit in; the last place stays free, for some terminals go on to the next line there."""
        try:
            columns = os.get_terminal_size(self._file.fileno()).columns
        except (AttributeError, OSError, ValueError):
            columns = 0
        return (columns or _DEFAULT_CELLS) - 1

    def draw(self, text: str) -> None:
        """Shows a text, not longer than `cells`, in place of the one before."""
        with self._lock:
            self._text = text
            if not self._others_are_in_a_line:
                self._write(f"\r{text}{_ERASE_REST}")

    def print_above(self, stream: TextIO, text: str) -> int:
        """Writes what somebody else has to say."""
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
        """Leaves the last text standing, and the streams to others."""
        with self._lock:
            text, self._text = self._text, ""
            if text:
                self._write(f"\n{text}\n" if self._others_are_in_a_line else "\n")
        # Without the lock: who logs holds the lock of its handler, which is needed here, when it comes for this one.
        for guard in self._guards:
            _replace(guard, guard.stream)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _Guard:
    """Stands in the place of a stream; whoever keeps it longer than the line lasts writes to the stream."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        self._line, self.stream = line, stream

    def write(self, text: str) -> int:
        return self._line.print_above(self.stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _replace(stream: Any, by: Any) -> None:
    """Puts another stream where this one is in use."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is stream:
            setattr(sys, name, by)
    loggers = [logging.root, *logging.root.manager.loggerDict.copy().values()]
    for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            handler.setStream(by)
