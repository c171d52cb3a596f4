"""Activity: what a session does while it makes no steps, and for how long."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from hookline import clock

_LONG_SECS = 1.0


class Activity:
    """Measures what a session does while it makes no steps, and reports events to one listener.

    It is called only where a run takes the slow path: not by runs that find their batch and their program ready.

    Attributes:
        listener: Called with each event: its name, and facts as keyword arguments.
        account_path: The file of the account of the run; empty without one.

    Example:
        >>> activity = Activity()
        >>> with activity.during("evaluation"):
        ...     pass
        >>> list(activity.secs())
        ['evaluation']
    """

    def __init__(self) -> None:
        self.listener: Callable[..., Any] = lambda event, **facts: None
        self.account_path = ""
        self._secs: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, what: str, event: str = "") -> Iterator[None]:
        """Counts the time of a block; that of blocks inside it counts for them alone, and other threads not at all.

        Args:
            what: The activity.
            event: The event to report if the block took a second or more; empty for none.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._switch(lambda stack: stack.append(what))
        begin_secs = clock.REAL.monotonic()
        try:
            yield
        finally:
            self._switch(list.pop)
            if event and (secs := clock.REAL.monotonic() - begin_secs) >= _LONG_SECS:
                self.listener(event, took=secs)

    def add(self, what: str, secs: float) -> None:
        """Counts a time that has passed already, and takes it from the activity that is under way."""
        with self._lock:
            self._secs[what] += secs
            if self._stack:
                self._secs[self._stack[-1]] -= secs

    @property
    def under_way(self) -> str:
        """The activity that is under way: "steps" if it is no other. It takes no lock, which a hang may hold."""
        return next(iter(self._stack[-1:]), "steps")

    def secs(self) -> dict[str, float]:
        """Returns the seconds of each activity so far, with the one that is under way."""
        with self._lock:
            self._settle()
            return {what: max(secs, 0.0) for what, secs in self._secs.items()}

    def _switch(self, change: Callable[[list[str]], Any]) -> None:
        with self._lock:
            self._settle()
            change(self._stack)

    def _settle(self) -> None:
        """Counts the time since the last call for the activity that is under way."""
        now = clock.REAL.monotonic()
        if self._stack:
            self._secs[self._stack[-1]] += now - self._since
        self._since = now
