"""Boards: keys and texts that processes share."""

from __future__ import annotations

import threading
from typing import Protocol

from hookline import clock


class Board(Protocol):
    """Keys with texts that all processes see."""

    def set(self, key: str, value: str) -> bool:
        """Sets a key; returns False if it was set before."""
        ...

    def get(self, key: str, timeout_secs: float) -> str | None:
        """Waits for a key and returns its text; None when the time is over."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes a key; with a slash at its end, all keys below it."""
        ...


class MemoryBoard:
    """A board within one process.

    Example:
        >>> board = MemoryBoard()
        >>> board.set("word", "yes"), board.set("word", "no"), board.get("word", 0)
        (True, False, 'yes')
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> bool:
        """See `Board`."""
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def get(self, key: str, timeout_secs: float) -> str | None:
        """See `Board`."""
        with self._changed:
            clock.wait_for(self._changed, lambda: key in self._values, timeout_secs)
            return self._values.get(key)

    def delete(self, prefix: str) -> None:
        """See `Board`."""
        with self._changed:
            below = prefix if prefix.endswith("/") else f"{prefix}/"
            for key in [key for key in self._values if key == prefix or key.startswith(below)]:
                del self._values[key]
