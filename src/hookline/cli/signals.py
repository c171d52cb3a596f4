"""The signals that ask a launcher to stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType

from hookline import clock, preemption


class _Flag(threading.Event):
    """An event that a signal handler may set.

    The handler may interrupt the main thread while that holds the lock of a usual event, and would then wait for it for
    ever. This one has a pipe in place of the lock; once set, it stays so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._has_come = False

    def is_set(self) -> bool:
        return self._has_come

    def set(self) -> None:
        self._has_come = True
        with contextlib.suppress(BlockingIOError):  # It is full: whoever waits is woken anyway.
            os.write(self._write, b"!")

    def wait(self, timeout: float | None = None) -> bool:
        if not self._has_come:
            select.select([self._read], [], [], timeout)
        return self._has_come

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Signals:
    """Catches SIGINT, SIGTERM, and SIGHUP of a closed terminal, inside the `with` block.

    Attributes:
        event: Set by the first one.
        caught: The signals so far.
        again: Whether another one came, later than a duplicate delivery of the first could.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.event = _Flag()
        self.again = False
        self.caught: list[int] = []
        self._first_at = 0.0

    @property
    def exit_status(self) -> int:
        """The exit status of a command that the first signal has stopped."""
        return 128 + self.caught[0]

    def __enter__(self) -> Signals:
        # Ignored signals stay ignored: this is how `nohup` and shells protect a background process.
        caught = [number for number in self._NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._catch) for number in caught}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.event.close()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        now = clock.monotonic()
        if not self.caught:
            self._first_at = now
        self.again = self.again or now - self._first_at > preemption.SAME_SECS[signal.Signals(number)]
        self.caught.append(number)
        self.event.set()
