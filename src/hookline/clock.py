"""Reads the time, sleeps, and waits with a limit; no other module of hookline does.

The functions use the installed `Clock`. Tests install a `hookline.testing.FakeClock`, so they need not wait.
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable

__all__ = ["monotonic", "sleep", "time", "wait", "wait_for"]

_LONGEST_WAIT_SECS = threading.TIMEOUT_MAX


class Clock:
    """The real clock. For another one, override all five methods in a subclass.

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
        """Returns the seconds since the Unix epoch."""
        return _time.time()

    def sleep(self, secs: float) -> None:
        """Sleeps for `secs` seconds; returns at once for a negative number."""
        _time.sleep(max(secs, 0))

    def wait(self, event: threading.Event, timeout_secs: float | None) -> bool:
        """Blocks until `event` is set or the timeout has passed; returns whether it is set."""
        return event.wait(_clamp_timeout(timeout_secs))

    def wait_for(
        self, condition: threading.Condition, predicate: Callable[[], bool], timeout_secs: float | None
    ) -> bool:
        """Blocks until `predicate()` is true or the timeout has passed; returns its last value."""
        return bool(condition.wait_for(predicate, _clamp_timeout(timeout_secs)))


def _clamp_timeout(timeout_secs: float | None) -> float | None:
    # A user may pass float("inf") for no limit, which the threading module refuses.
    return None if timeout_secs is None else min(max(timeout_secs, 0), _LONGEST_WAIT_SECS)


REAL = Clock()
"""The real clock, whatever clock is installed: for signals, and for what describes the machine."""

_installed = Clock()
# Most runs read the time: this saves a call.
_installed.monotonic, _installed.time = _time.monotonic, _time.time


def install(clock: Clock) -> Clock:
    """Installs a clock for the functions of this module.

    Args:
        clock: The new clock, for the whole process.

    Returns:
        The previous clock, to install again later.

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
    """Returns whether a deadline, as a reading of `monotonic`, has passed.

    Example:
        >>> is_past(monotonic()), is_past(monotonic() + 3600)
        (True, False)
    """
    return _installed.monotonic() >= deadline


def time() -> float:
    """Returns the seconds since the Unix epoch. Use it for timestamps only: the system's clock may be set back.

    Example:
        >>> time() > 0
        True
    """
    return _installed.time()


def format_utc(timestamp: float) -> str:
    """Formats a time in seconds since the Unix epoch.

    Example:
        >>> format_utc(86400.0)
        '1970-01-02 00:00:00 UTC'
    """
    try:
        return _time.strftime("%Y-%m-%d %H:%M:%S UTC", _time.gmtime(timestamp))
    except (OverflowError, ValueError, OSError):  # Out of range, as in a damaged file.
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
        secs: The number of seconds; for a negative number it returns at once.

    Example:
        >>> sleep(0)
    """
    _installed.sleep(secs)


def wait(event: threading.Event, timeout_secs: float | None = None) -> bool:
    """Blocks until an event is set or the timeout has passed.

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
    """Blocks until a predicate is true or the timeout has passed. Call it with the condition held.

    Args:
        condition: The condition; code that makes the predicate true must notify it.
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
