"""Unwritten: stands in for a queue of events if another process writes them."""

from __future__ import annotations


class Unwritten:
    """Drops events, because among processes that run in step only the chief writes. Its methods are `EventQueue`'s."""

    def __init__(self) -> None:
        self.closed = self.lost = False

    def add(self, wall_time: float, step: int | None, field: bytes, payload: bytes) -> None:
        """Drops an event."""

    def be_strict(self) -> None:
        """Does nothing: no write can fail."""

    def flush(self) -> None:
        """Does nothing: there are no events."""

    def sync(self) -> None:
        """Does nothing: there are no events."""

    def request_close(self) -> None:
        """Closes it."""
        self.closed = True

    def close(self) -> None:
        """Closes it."""
        self.closed = True
