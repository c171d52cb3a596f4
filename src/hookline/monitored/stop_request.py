"""StopRequest: what is left of a monitored session when its raw session is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

_logger = logging.getLogger(__name__)

_MAX_STILL_WARNINGS = 5


class StopRequest:
    """What outlives the raw session, one a monitored session: the hooks' request to stop, and the count of runs.

    Attributes:
        runs: How many runs were made before.
        asked: Whether anything has ever asked for a stop, a thread or a lost session too: then it is worth looking
            whether it holds. As long as nothing has, `should_stop()` looks here and nowhere else.
        requested: The stop holds: no further run.
        agree: Where several processes run in step: proposes the stop to all of them. It holds when they have agreed.
        carried: It was requested during an attempt that failed. The retry of that run is still allowed, and with its
            success the request holds.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.asked = self.requested = self.carried = False
        self.agree: Callable[[], None] | None = None
        self._still_warnings = 0

    def ask(self) -> None:
        """Notes that something has asked for a stop."""
        self.asked = True
        if self.agree is not None:
            self.agree()

    def request(self) -> None:
        """Makes the stop hold."""
        if self.agree is not None:
            self.agree()
        else:
            self.hold()

    def hold(self) -> None:
        """Makes the stop hold, on which all have agreed."""
        self.requested = True
        self.asked = True  # Last, for other threads look here first.

    def carry(self) -> None:
        """Makes it hold with the success of the run that is made again."""
        self.carried = True
        self.asked = True

    def warn_of_stillness(self, step: int) -> None:
        """Says that the global step does not move, at most five times."""
        if self._still_warnings < _MAX_STILL_WARNINGS:
            self._still_warnings += 1
            _logger.warning(
                "The global step has stayed at %d over two runs. If they were meant to train, check that they fetch "
                "the train_op and that the optimizer was given the global step: minimize(loss, global_step=...).",
                step,
            )
