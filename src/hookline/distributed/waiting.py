"""Threads that wait for other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hookline import clock

LONGEST_SECS = 60.0
"""For how long a thread waits at most, whatever it was asked for: who asked may have gone, and asks again if not."""


class Waiting:
    """A condition whose notification costs nothing while no thread waits.

    Attributes:
        count: How many threads wait.

    Example:
        >>> Waiting().until(lambda: True, timeout_secs=1.0)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def until(self, reached: Callable[[], bool], timeout_secs: float) -> None:
        """Blocks until a condition holds or the time is over, at most for `LONGEST_SECS`."""
        with self._changed:
            # Counted before the check, so that a thread that changes something after the check sees the count.
            self.count += 1
            try:
                clock.wait_for(self._changed, reached, min(timeout_secs, LONGEST_SECS))
            finally:
                self.count -= 1

    def notify(self) -> None:
        """Makes all waiting threads check again."""
        if self.count:
            with self._changed:
                self._changed.notify_all()
