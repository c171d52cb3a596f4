"""StopRequest: the request to stop a monitored session."""

from __future__ import annotations

from collections.abc import Callable

from hookline import log

_logger = log.get_logger(__name__)

_MAX_STALL_WARNINGS = 5

FINAL_STOP_KEY = "final_stop"
"""The key in a session's `hook_data` for the reason of a final stop that came before the first run."""


class StopRequest:
    """Records whether to stop a monitored session, and counts its runs; it outlives the raw sessions.

    Attributes:
        runs: The number of runs made so far.
        was_ever_requested: Whether a stop was ever requested, by a hook, a thread, a lost session or other code. Until
            then `should_stop()` checks nothing else.
        closed: Whether the monitored session is closed or closing.
        requested_by_user: Whether the user, a signal or closing the session has requested it.
        requested: Whether the stop is in effect, so that no further run is made.
        propose: In SPMD processes, proposes the stop to all of them: a list of the code that requests it, and the
            reason if it is final. It takes effect when they have agreed. Otherwise None.
        final_reason: The reason of a final stop; empty without one.
        requested_by: The code that has requested the stop which is in effect, in words; empty without one.
        reason: Why the session ends, in words; None before that.
        exit_error: In SPMD processes, the `SystemExit` to raise after the session has closed.
        requested_for_retry: Whether it was requested during a failed attempt. That run is still retried, and the stop
            takes effect when it succeeds.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.was_ever_requested = self.requested = self.requested_for_retry = self.requested_by_user = self.closed = (
            False
        )
        self.propose: Callable[[list[str]], None] | None = None
        self.final_reason = self.requested_by = ""
        self.reason: str | None = None
        self.exit_error: BaseException | None = None
        self._pending_request = ("", "")
        self._stall_warnings = 0

    @property
    def is_requested_or_pending(self) -> bool:
        """Whether a hook or the user has requested the stop, also in an attempt that will be retried."""
        return self.requested or self.requested_for_retry or self.requested_by_user

    def note_request(self, requested_by: str) -> None:
        """Records that some code requests a stop; in SPMD processes, proposes it to all."""
        self.was_ever_requested = True
        if self.propose is not None:
            self.propose([requested_by, ""])

    def request(self, requested_by: str, final_reason: str = "") -> None:
        """Puts the stop into effect; in SPMD processes, proposes it to all."""
        pending_by, pending_reason = self._pending_request
        requested_by, final_reason = requested_by or pending_by, final_reason or pending_reason
        if self.propose is not None:
            self.propose([requested_by, final_reason])
        else:
            self.apply(requested_by, final_reason)

    def apply(self, requested_by: str, final_reason: str) -> None:
        """Puts the stop into effect, in SPMD processes after all have agreed."""
        self.requested_by = self.requested_by or requested_by
        self.final_reason = self.final_reason or final_reason
        self.requested = True
        self.was_ever_requested = True  # Last, because other threads check this first.

    def request_after_retry(self, requested_by: str, final_reason: str = "") -> None:
        """Requests a stop that takes effect when the retried run succeeds."""
        self.requested_for_retry, self._pending_request = True, (requested_by, final_reason)
        self.was_ever_requested = True

    def warn_stalled(self, step: int) -> None:
        """Warns that the global step stays the same, at most five times."""
        if self._stall_warnings < _MAX_STALL_WARNINGS:
            self._stall_warnings += 1
            _logger.warning(
                "The global step has stayed at %d over two runs. If they were meant to train, check that they fetch "
                "the train_op and that the optimizer was given the global step: minimize(loss, global_step=...).",
                step,
            )
