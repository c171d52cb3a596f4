"""Unwritten: in place of a queue of events where another process writes them."""

from __future__ import annotations


class Unwritten:
    """Takes events and writes none: of processes that run in step the chief writes. Its methods are `EventQueue`'s."""

    def __init__(self) -> None:
        self.closed = self.lost = False

    def add(self, wall_time: float, step: int | None, field: bytes, payload: bytes) -> None:
        """Takes an event."""

    def be_strict(self) -> None:
        """Has nothing that could fail."""

    def flush(self) -> None:
        """Has nothing to write."""

    def sync(self) -> None:
        """Has nothing to write."""

    def request_close(self) -> None:
        """Closes it."""
        self.closed = True

    def close(self) -> None:
        """Closes it."""
        self.closed = True
