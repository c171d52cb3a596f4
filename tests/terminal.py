"""A terminal for tests: the final contents of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading

CONTROL = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(\r\n|\r|\n)|([^\x1b\r\n]+)")


class Terminal:
    """A `file` that is a terminal, and after its close the contents of the screen."""

    def __init__(self, columns: int = 100) -> None:
        self.columns = columns
        self._received = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.file = os.fdopen(slave, "w", encoding="utf-8")
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while received := os.read(self._master, 65536):
                self._received += received
        except OSError:  # Linux's error when the other side is closed.
            pass

    def close(self) -> None:
        """Closes its input."""
        if not self.file.closed:
            self.file.close()
            self._reader.join()
            os.close(self._master)

    @property
    def text(self) -> str:
        """All that was written, once it is closed."""
        self.close()
        return self._received.decode()

    @property
    def screen(self) -> list[str]:
        """Returns the final lines; those longer than the terminal is wide are wrapped."""
        lines, column = [""], 0
        for argument, command, end, text in CONTROL.findall(self.text):
            if command == "K":
                assert not argument
                lines[-1] = lines[-1][:column]
            elif command:
                assert command == "m", "a sequence that this terminal does not know"
            elif end:
                column = 0
                if end == "\r\n":
                    lines.append("")
                assert end != "\n", "the terminal makes \\r\\n of it"
            for character in text:
                if column == self.columns:
                    lines.append("")
                    column = 0
                lines[-1] = lines[-1][:column] + character + lines[-1][column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]
