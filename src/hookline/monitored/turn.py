"""Turn: one thread at a time inside a monitored session."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from hookline import clock
from hookline.summary.writer_cache import SCOPE, WriterScope

_HOLDER = "holder"


class Turn:
    """Records which thread is inside a session, if any. Taking a free turn costs as much as a lock.

    Who takes it brings a claim, a list with the number of the thread, and gives it back with that. The claim is there
    before the turn is taken, and giving it back twice does nothing: so it is given back in two `finally`s, and a Ctrl-C
    at any moment leaves nobody inside.

    Args:
        scope: The owner of the writers that the thread inside takes from `FileWriterCache`.

    Example:
        >>> turn = Turn()
        >>> with turn.held() as mine, turn.held() as again:
        ...     mine, again, turn.is_mine
        (True, False, True)
        >>> turn.is_mine
        False
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self._scope = scope
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

    def enter(self, claim: list[int]) -> bool:
        """Takes the turn if it is free and no thread is waiting for it; returns whether it did."""
        return not self._waiting and self._inside.setdefault(_HOLDER, claim) is claim

    def leave(self, claim: list[int]) -> None:
        """Lets other threads in, if the turn is held with this claim."""
        if self._inside.get(_HOLDER) is claim:
            self._inside.clear()
            if self._waiting:
                with self._given_back:
                    self._given_back.notify_all()

    @contextlib.contextmanager
    def held(self, wait_secs: float | None = None) -> Iterator[bool]:
        """Holds the turn and its writers inside the block; gives whether it could be taken.

        Args:
            wait_secs: How long to wait for it at most, and before all others; None to take it only if it is free.
        """
        claim, outer = [threading.get_ident()], SCOPE.get()
        try:
            taken = self.enter(claim) if wait_secs is None else self._wait(claim, wait_secs)
            try:
                if taken:
                    SCOPE.set(self._scope)
                yield taken
            finally:
                SCOPE.set(outer)
                self.leave(claim)
        finally:
            self.leave(claim)

    def _wait(self, claim: list[int], timeout_secs: float) -> bool:
        with self._given_back:
            self._waiting += 1
            try:
                free = lambda: self._inside.setdefault(_HOLDER, claim) is claim  # noqa: E731
                return clock.wait_for(self._given_back, free, timeout_secs)
            finally:
                self._waiting -= 1
