"""The signals that ask a launcher to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from hookline import clock, preemption


class Signals:
    """Catches SIGINT, SIGTERM, and SIGHUP of a closed terminal, inside the `with` block.

    Attributes:
        event: Set by the first one.
        caught: The signals so far.
        again: Whether another one came, later than a duplicate delivery of the first could.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.event = threading.Event()
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

    def _catch(self, number: int, frame: FrameType | None) -> None:
        now = clock.monotonic()
        if not self.caught:
            self._first_at = now
        self.again = self.again or now - self._first_at > preemption.SAME_SECS[signal.Signals(number)]
        self.caught.append(number)
        self.event.set()
