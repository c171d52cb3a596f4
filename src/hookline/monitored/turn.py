"""Turn: one thread at a time inside a monitored session."""

from __future__ import annotations

import threading

from hookline import clock
from hookline.summary.writer_cache import SCOPE, WriterScope

_HOLDER = "holder"


class Turn:
    """Records which thread is inside a session, if any. Taking a free turn costs as much as a lock.

    Args:
        scope: The owner of the writers that the thread inside takes from `FileWriterCache`.

    Example:
        >>> turn = Turn()
        >>> turn.take(), turn.is_mine, turn.take()
        (True, True, False)
        >>> turn.give_back()
        >>> turn.is_mine
        False
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self._scope = scope
        self._outer: WriterScope | None = None
        # Each change is one operation of the interpreter, so that a Ctrl-C finds it either done or not.
        self._inside: dict[str, list[int]] = {}
        self._given_back = threading.Condition()
        self._waiting = 0

    @property
    def is_mine(self) -> bool:
        """Whether this very thread is inside."""
        holder = self._inside.get(_HOLDER)
        return holder is not None and holder[0] == threading.get_ident()

    @property
    def is_taken(self) -> bool:
        """Whether a thread is inside."""
        return bool(self._inside)

    @property
    def is_awaited(self) -> bool:
        """Whether a thread is waiting for it."""
        return self._waiting > 0

    @property
    def owner(self) -> str:
        """The name of the thread inside, for messages."""
        holder = self._inside.get(_HOLDER, [0])
        names = (thread.name for thread in threading.enumerate() if thread.ident == holder[0])
        return next(names, "another thread")

    def take(self) -> bool:
        """Takes the turn if it is free and no thread is waiting for it; returns whether it did."""
        return not self._waiting and self._take()

    def enter(self) -> bool:
        """Takes the turn as `take` does, for who takes no writers, or says itself whose they are."""
        mine = [threading.get_ident()]
        return not self._waiting and self._inside.setdefault(_HOLDER, mine) is mine

    def leave(self) -> None:
        """Gives back a turn that `enter` has taken."""
        self._inside.clear()
        if self._waiting:
            with self._given_back:
                self._given_back.notify_all()

    def wait(self, timeout_secs: float) -> bool:
        """Waits until the turn is free, at most this long, and takes it; returns whether it did."""
        with self._given_back:
            self._waiting += 1
            try:
                return clock.wait_for(self._given_back, self._take, timeout_secs)
            finally:
                self._waiting -= 1

    def give_back(self) -> None:
        """Lets other threads in."""
        if SCOPE.get() is self._scope:
            SCOPE.set(self._outer)
        self.leave()

    def _take(self) -> bool:
        mine = [threading.get_ident()]
        if self._inside.setdefault(_HOLDER, mine) is not mine:
            return False
        self._outer = SCOPE.get()
        SCOPE.set(self._scope)
        return True
