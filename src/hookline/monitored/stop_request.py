"""StopRequest: whether a monitored session is to stop, whoever has asked for it."""

from __future__ import annotations

from collections.abc import Callable

from hookline import log

_logger = log.get_logger(__name__)

_MAX_STALL_WARNINGS = 5


class StopRequest:
    """The request to stop a monitored session, and the count of its runs; it outlives the raw sessions.

    Attributes:
        runs: The number of runs made so far.
        was_ever_requested: Whether anything, such as a hook, a thread or a lost session, has ever asked for a stop.
            Until then
            `should_stop()` checks nothing else.
        closed: Whether the monitored session is closed, or about to be.
        requested_by_user: Whether the user has asked for it, a signal, or code that closes the session.
        requested: Whether the stop is in effect: no further run.
        propose: In processes that run in step, proposes the stop to all of them, with the code that has asked for it,
            and
            the reason if it is final. It takes effect when they have agreed.
        final_reason: The reason why the training is complete, after a final request; else empty.
        exit_error: In processes that run in step: the `sys.exit()` with which to leave the session in the end.
        requested_for_retry: Whether it was requested during a failed attempt. The retry of that run is still allowed,
            and the stop
            takes effect when it succeeds.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.was_ever_requested = self.requested = self.requested_for_retry = self.requested_by_user = self.closed = (
            False
        )
        self.propose: Callable[[list[str]], None] | None = None
        self.final_reason = ""
        self.exit_error: BaseException | None = None
        self._pending_request = ("", "")
        self._stall_warnings = 0

    @property
    def is_requested_or_pending(self) -> bool:
        """Whether a hook or the user has requested the stop, also during an attempt that will be retried."""
        return self.requested or self.requested_for_retry or self.requested_by_user

    def note_request(self, requested_by: str) -> None:
        """Notes a request to stop by some code."""
        self.was_ever_requested = True
        if self.propose is not None:
            self.propose([requested_by, ""])

    def request(self, requested_by: str, final_reason: str = "") -> None:
        """Puts the stop into effect, or proposes it to the other processes."""
        carried_for, carried_final = self._pending_request
        requested_by, final_reason = requested_by or carried_for, final_reason or carried_final
        if self.propose is not None:
            self.propose([requested_by, final_reason])
        else:
            self.apply(final_reason)

    def apply(self, final_reason: str) -> None:
        """Puts the stop into effect, after all processes have agreed."""
        self.final_reason = self.final_reason or final_reason
        self.requested = True
        self.was_ever_requested = True  # Last, because other threads check this first.

    def request_after_retry(self, requested_by: str, final_reason: str = "") -> None:
        """Puts the stop into effect once the retried run succeeds."""
        self.requested_for_retry, self._pending_request = True, (requested_by, final_reason)
        self.was_ever_requested = True

    def warn_stalled(self, step: int) -> None:
        """Warns that the global step does not move, at most five times."""
        if self._stall_warnings < _MAX_STALL_WARNINGS:
            self._stall_warnings += 1
            _logger.warning(
                "The global step has stayed at %d over two runs. If they were meant to train, check that they fetch "
                "the train_op and that the optimizer was given the global step: minimize(loss, global_step=...).",
                step,
            )
