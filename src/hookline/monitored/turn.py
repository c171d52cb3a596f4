"""Turn: one thread at a time inside a monitored session."""

from __future__ import annotations

import threading

from hookline import clock


class Turn:
    """Says which thread is inside a session, if one is. Taking a free turn costs what a lock costs.

    Example:
        >>> turn = Turn()
        >>> turn.take(), turn.is_mine, turn.take()
        (True, True, False)
        >>> turn.give_back()
        >>> turn.is_mine
        False
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._given_back = threading.Condition()
        self._waiting = 0

    @property
    def is_mine(self) -> bool:
        """Whether this very thread is inside."""
        return self._owner == threading.get_ident()

    @property
    def owner(self) -> str:
        """The name of the thread that is inside, for messages."""
        names = (thread.name for thread in threading.enumerate() if thread.ident == self._owner)
        return next(names, "another thread")

    def take(self) -> bool:
        """Takes the turn if it is free, and returns whether it was."""
        if not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        return True

    def wait(self, timeout_secs: float) -> bool:
        """Waits until the turn is free, at most so long, and takes it. Returns whether it was."""
        with self._given_back:
            self._waiting += 1
            try:
                return clock.wait_for(self._given_back, self.take, timeout_secs)
            finally:
                self._waiting -= 1

    def give_back(self) -> None:
        """Lets others in."""
        self._owner = None
        self._lock.release()
        if self._waiting:
            with self._given_back:
                self._given_back.notify_all()
