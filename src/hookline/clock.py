"""The clock: the only module of hookline that reads the time, sleeps, or waits with a limit.

All other code calls the functions of this module, which use the installed `Clock`. Tests install a
`hookline.testing.FakeClock`, so that they need not wait.
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable

__all__ = ["monotonic", "sleep", "time", "wait", "wait_for"]

_LONGEST_WAIT_SECS = threading.TIMEOUT_MAX


class Clock:
    """Real time. Subclass it and override all five methods to make another kind of time.

    Example:
        >>> clock = Clock()
        >>> start = clock.monotonic()
        >>> clock.sleep(0)
        >>> clock.monotonic() >= start
        True
    """

    def monotonic(self) -> float:
        """Returns the seconds since an arbitrary moment; never goes back."""
        return _time.monotonic()

    def time(self) -> float:
        """Returns the seconds since the epoch, by the calendar."""
        return _time.time()

    def sleep(self, secs: float) -> None:
        """Sleeps for `secs` seconds; not at all for a negative number."""
        _time.sleep(max(secs, 0))

    def wait(self, event: threading.Event, timeout_secs: float | None) -> bool:
        """Blocks until `event` is set or the time is over, and returns whether it is set."""
        return event.wait(_clamp_timeout(timeout_secs))

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_secs: float | None
    ) -> bool:
        """Blocks until `predicate()` is true or the time is over, and returns its last value."""
        return bool(condition.wait_for(predicate, _clamp_timeout(timeout_secs)))


def _clamp_timeout(timeout_secs: float | None) -> float | None:
    # A user's "for ever" may be float("inf"), which the threading module refuses.
    return None if timeout_secs is None else min(max(timeout_secs, 0), _LONGEST_WAIT_SECS)


_installed = Clock()
# Most runs read them, and an extra call takes time.
_installed.monotonic, _installed.time = _time.monotonic, _time.time


def install(clock: Clock) -> Clock:
    """Makes `clock` the clock that the functions of this module use.

    Args:
        clock: The new clock, for the whole process.

    Returns:
        The clock installed until now, to be put back later.

    Example:
        >>> previous = install(Clock())
        >>> _ = install(previous)
    """
    global _installed
    previous, _installed = _installed, clock
    return previous


def monotonic() -> float:
    """Returns the seconds since an arbitrary moment; never goes back. Measure durations with it.

    Example:
        >>> monotonic() <= monotonic()
        True
    """
    return _installed.monotonic()


def is_past(deadline: float) -> bool:
    """Returns whether a reading of `monotonic` has been reached.

    Example:
        >>> is_past(monotonic()), is_past(monotonic() + 3600)
        (True, False)
    """
    return _installed.monotonic() >= deadline


def time() -> float:
    """Returns the seconds since the epoch. Use it for timestamps only, because a user may set the calendar back.

    Example:
        >>> time() > 0
        True
    """
    return _installed.time()


def format_utc(timestamp: float) -> str:
    """Returns a time in seconds since the epoch as text.

    Example:
        >>> format_utc(86400.0)
        '1970-01-02 00:00:00 UTC'
    """
    try:
        return _time.strftime("%Y-%m-%d %H:%M:%S UTC", _time.gmtime(timestamp))
    except (OverflowError, ValueError, OSError):  # Of no calendar.
        return f"{timestamp:g} s"


def thread_cpu_time() -> float:
    """Returns the CPU time of the calling thread in seconds, even if another clock is installed.

    Example:
        >>> thread_cpu_time() <= thread_cpu_time()
        True
    """
    return _time.thread_time()


def sleep(secs: float) -> None:
    """Sleeps.

    Args:
        secs: The number of seconds; a negative number means no sleep.

    Example:
        >>> sleep(0)
    """
    _installed.sleep(secs)


def wait(event: threading.Event, timeout_secs: float | None = None) -> bool:
    """Blocks until an event is set or the time is over.

    Args:
        event: The event.
        timeout_secs: The longest wait in seconds; None for no limit.

    Returns:
        Whether the event is set.

    Example:
        >>> wait(threading.Event(), timeout_secs=0)
        False
    """
    return _installed.wait(event, timeout_secs)


def wait_for(condition: threading.Condition, predicate: Callable[[], bool], timeout_secs: float | None = None) -> bool:
    """Blocks until a predicate is true or the time is over. Call it with the condition held.

    Args:
        condition: The condition, to be notified by the code that makes the predicate true.
        predicate: Called with the condition held, at the start and after each notification.
        timeout_secs: The longest wait in seconds; None for no limit.

    Returns:
        The predicate's last value.

    Example:
        >>> condition = threading.Condition()
        >>> with condition:
        ...     wait_for(condition, lambda: True, timeout_secs=0)
        True
    """
    return _installed.wait_for(condition, predicate, timeout_secs)
