"""StopRequest: whether a monitored session is to stop, whoever has asked for it."""

from __future__ import annotations

from collections.abc import Callable

from hookline import log

_logger = log.of(__name__)

_MAX_STILL_WARNINGS = 5


class StopRequest:
    """The request to stop a monitored session, and the count of its runs; it outlives the raw sessions.

    Attributes:
        runs: The number of runs made so far.
        asked: Whether anything, such as a hook, a thread or a lost session, has ever asked for a stop. Until then
            `should_stop()` checks nothing else.
        closed: Whether the monitored session is closed, or about to be.
        demanded: Whether the user has asked for it, a signal, or code that closes the session.
        requested: Whether the stop is in effect: no further run.
        agree: In processes that run in step, proposes the stop to all of them, with the code that has asked for it, and
            the reason if it is final. It takes effect when they have agreed.
        final: The reason why the training is complete, after a final request; else empty.
        exit: In processes that run in step: the `sys.exit()` with which to leave the session in the end.
        carried: Whether it was requested during a failed attempt. The retry of that run is still allowed, and the stop
            takes effect when it succeeds.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.asked = self.requested = self.carried = self.demanded = self.closed = False
        self.agree: Callable[[list[str]], None] | None = None
        self.final = ""
        self.exit: BaseException | None = None
        self._carried_for = ("", "")
        self._still_warnings = 0

    @property
    def in_effect(self) -> bool:
        """Whether a hook or the user has requested the stop, also during an attempt that will be retried."""
        return self.requested or self.carried or self.demanded

    def ask(self, asked_by: str) -> None:
        """Notes a request to stop by some code."""
        self.asked = True
        if self.agree is not None:
            self.agree([asked_by, ""])

    def request(self, asked_by: str, final: str = "") -> None:
        """Puts the stop into effect, or proposes it to the other processes."""
        carried_for, carried_final = self._carried_for
        asked_by, final = asked_by or carried_for, final or carried_final
        if self.agree is not None:
            self.agree([asked_by, final])
        else:
            self.hold(final)

    def hold(self, final: str) -> None:
        """Puts the stop into effect, after all processes have agreed."""
        self.final = self.final or final
        self.requested = True
        self.asked = True  # Last, because other threads check this first.

    def carry(self, asked_by: str, final: str = "") -> None:
        """Puts the stop into effect once the retried run succeeds."""
        self.carried, self._carried_for = True, (asked_by, final)
        self.asked = True

    def warn_of_stillness(self, step: int) -> None:
        """Warns that the global step does not move, at most five times."""
        if self._still_warnings < _MAX_STILL_WARNINGS:
            self._still_warnings += 1
            _logger.warning(
                "The global step has stayed at %d over two runs. If they were meant to train, check that they fetch "
                "the train_op and that the optimizer was given the global step: minimize(loss, global_step=...).",
                step,
            )
