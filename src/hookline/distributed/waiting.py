"""Threads that wait for what another one does."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hookline import clock


class Waiting:
    """A condition whose notification costs nothing while nobody waits.

    Attributes:
        count: How many threads wait.

    Example:
        >>> Waiting().until(lambda: True, timeout_secs=1.0)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def until(self, reached: Callable[[], bool], timeout_secs: float) -> None:
        """Blocks until something is the case or the time is over."""
        with self._changed:
            # Counted before it looks: who changes something after that look sees the count.
            self.count += 1
            try:
                clock.wait_for(self._changed, reached, timeout_secs)
            finally:
                self.count -= 1

    def notify(self) -> None:
        """Makes all that wait look again."""
        if self.count:
            with self._changed:
                self._changed.notify_all()
