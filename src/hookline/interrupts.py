"""Delays Ctrl-C while modules are imported."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delays a Ctrl-C until the end of the block; a second one is not delayed.

    Without the delay, a Ctrl-C during imports may be lost: Python raises it in the next line of Python code, which is
    often in JAX's garbage collection callback. An exception there is printed and dropped: the script continues, and
    ends with 0. While jaxlib initialises, a Ctrl-C becomes an ImportError or a crash.

    Example:
        >>> with held_back():
        ...     import json
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if not held:
            held.append(number)
            return
        held.clear()
        handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)
