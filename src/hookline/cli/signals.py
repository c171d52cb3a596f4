"""The signals that ask a launcher to stop."""

from __future__ import annotations

import signal
from types import FrameType

from hookline import clock, preemption

_LOOK_EVERY_SECS = 0.05


class Signals:
    """Catches SIGINT, SIGTERM, and SIGHUP of a closed terminal, inside the `with` block.

    The handler takes no lock: it may interrupt the main thread while that thread holds it, or itself. So there is no
    event to be set, and waits look at what was caught.

    Attributes:
        caught: The signals so far.
        again: Whether another one came, later than a duplicate delivery of the first could.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.again = False
        self.caught: list[int] = []
        self._first_at: float | None = None

    @property
    def exit_status(self) -> int:
        """The exit status of a command that has ended in order on the first signal."""
        return 128 + self.caught[0]

    def came(self) -> bool:
        """Returns whether a signal was caught."""
        return bool(self.caught)

    def wait(self, timeout_secs: float) -> bool:
        """Waits until a signal is caught or the time is over, and returns whether one was caught."""
        deadline = clock.monotonic() + timeout_secs
        while not self.caught and (left := deadline - clock.monotonic()) > 0:
            clock.sleep(min(left, _LOOK_EVERY_SECS))
        return self.came()

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
        if self._first_at is None:
            self._first_at = now
        self.again = self.again or now - self._first_at > preemption.SAME_SECS[number]
        self.caught.append(number)
