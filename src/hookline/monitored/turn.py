"""Turn: the guard of a monitored session, which admits one thread at a time."""

from __future__ import annotations

import threading
from typing import Any, Self

from hookline import clock
from hookline.summary.writer_cache import SCOPE, WriterScope

_HOLDER = "holder"


class Turn:
    """Records the thread that is inside a session, if any. Taking a free turn costs as much as a lock.

    A thread takes the turn with a key, a list with the thread's number, and gives it back with the same key. The key
    exists before the turn is taken, and giving the turn back twice does nothing: so it is given back in two `finally`s,
    or at the end of a `Claim` that was entered twice, and a Ctrl-C at any moment leaves no thread inside.

    Example:
        >>> turn = Turn()
        >>> with Claim(turn) as claim, claim:
        ...     claim.take(), claim.take(), turn.is_mine
        (True, True, True)
        >>> turn.is_mine
        False
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self.scope = scope
        # Each change is one operation of the interpreter, so that a Ctrl-C finds it either done or not.
        self._inside: dict[str, list[int]] = {}
        self._given_back = threading.Condition()
        self._waiting = 0

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside."""
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

    def enter(self, key: list[int]) -> bool:
        """Takes the turn if it is free and no thread is waiting for it; returns whether it did."""
        return not self._waiting and self._inside.setdefault(_HOLDER, key) is key

    def leave(self, key: list[int]) -> None:
        """Lets other threads in, if the turn is held with this key."""
        if self._inside.get(_HOLDER) is key:
            self._inside.clear()
        if self._waiting:
            with self._given_back:
                self._given_back.notify_all()

    def wait(self, key: list[int], timeout_secs: float) -> bool:
        """Waits for the turn, at most this long and ahead of `enter`, and takes it; returns whether it did."""
        with self._given_back:
            self._waiting += 1
            try:
                free = lambda: self._inside.setdefault(_HOLDER, key) is key  # noqa: E731
                return clock.wait_for(self._given_back, free, timeout_secs)
            finally:
                self._waiting -= 1


class Claim:
    """One call's claim to a turn and its summary writers: `with Claim(turn) as claim, claim:`, entered twice."""

    def __init__(self, turn: Turn) -> None:
        self._turn, self._key, self._outer = turn, [threading.get_ident()], SCOPE.get()

    def take(self, wait_secs: float | None = None) -> bool:
        """Takes the turn if it is free, or waits for it; returns whether it did."""
        taken = self._turn.enter(self._key) if wait_secs is None else self._turn.wait(self._key, wait_secs)
        if taken:
            SCOPE.set(self._turn.scope)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if SCOPE.get() is self._turn.scope:
            SCOPE.set(self._outer)
        self._turn.leave(self._key)
