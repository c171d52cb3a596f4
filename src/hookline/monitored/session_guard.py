"""SessionGuard: admits one thread at a time to a monitored session."""

from __future__ import annotations

import threading
from typing import Any, Self

from hookline import clock
from hookline.signals.interrupts import uninterruptible
from hookline.signals.preemption import raise_pending_interrupt
from hookline.summary.writer_cache import WRITER_SCOPE, WriterScope

_HOLDER = "holder"


class SessionGuard:
    """Admits one thread at a time to a monitored session, at the cost of a lock.

    A thread enters with a key, a list with the thread's identifier, and leaves with the same key; a second `leave` does
    nothing. A Ctrl-C in between is pending (see `preemption`); the code that calls `leave` then raises it.

    Args:
        scope: The scope of the summary writers that a thread takes inside.

    Example:
        >>> guard = SessionGuard()
        >>> with SessionAccess(guard) as claim:
        ...     claim.acquire(), claim.acquire(), guard.is_held_by_this_thread
        (True, True, True)
        >>> guard.is_held_by_this_thread
        False
    """

    def __init__(self, scope: WriterScope | None = None) -> None:
        self.scope = scope
        self._holder: dict[str, list[int]] = {}
        self._released = threading.Condition()
        self._waiting = 0

    @property
    def is_held_by_this_thread(self) -> bool:
        """Whether the calling thread is inside. Takes no lock, because the signal handler calls it."""
        holder = self._holder.get(_HOLDER)
        return holder is not None and holder[0] == threading.get_ident()

    @property
    def is_held(self) -> bool:
        """Whether a thread is inside."""
        return bool(self._holder)

    @property
    def has_waiters(self) -> bool:
        """Whether a thread is waiting to enter."""
        return self._waiting > 0

    @property
    def owner(self) -> str:
        """The name of the thread inside, for messages."""
        holder = self._holder.get(_HOLDER, [0])
        names = (thread.name for thread in threading.enumerate() if thread.ident == holder[0])
        return next(names, "another thread")

    def enter(self, key: list[int]) -> bool:
        """Enters if no thread is inside or waits; returns whether it entered."""
        return not self._waiting and self._holder.setdefault(_HOLDER, key) is key

    @uninterruptible
    def leave(self, key: list[int]) -> None:
        """Leaves, if the thread inside entered with this key."""
        if self._holder.get(_HOLDER) is key:
            self._holder.clear()
        if self._waiting:
            with self._released:
                self._released.notify_all()

    def wait(self, key: list[int], timeout_secs: float) -> bool:
        """Waits to enter, before any later `enter`, at most this long; returns whether it entered."""
        with self._released:
            self._waiting += 1
            try:
                free = lambda: self._holder.setdefault(_HOLDER, key) is key  # noqa: E731
                return clock.wait_for(self._released, free, timeout_secs)
            finally:
                self._waiting -= 1


class SessionAccess:
    """One call inside a session, in the scope of its summary writers; at its end it raises a pending Ctrl-C."""

    def __init__(self, guard: SessionGuard) -> None:
        self._guard, self._key, self._outer = guard, [threading.get_ident()], WRITER_SCOPE.get()

    def acquire(self, wait_secs: float | None = None) -> bool:
        """Enters the session if no thread is inside, or waits for that; returns whether it entered."""
        taken = self._guard.enter(self._key) if wait_secs is None else self._guard.wait(self._key, wait_secs)
        if taken:
            WRITER_SCOPE.set(self._guard.scope)
        return taken

    def __enter__(self) -> Self:
        return self

    @uninterruptible
    def __exit__(self, *exc_info: Any) -> None:
        if WRITER_SCOPE.get() is self._guard.scope:
            WRITER_SCOPE.set(self._outer)
        self._guard.leave(self._key)
        raise_pending_interrupt()
