"""The instance and epoch of a server, and checks that a call means exactly these."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hookline import clock, errors
from hookline.distributed.protocol import Epoch, Ticket

logger = logging.getLogger(__name__)

LONGEST_SECS = 60.0
"""For how long a thread waits at most, whatever it was asked for: who asked may have gone, and asks again if not."""


class Waiting:
    """A condition whose notification costs nothing while no thread waits; `count` says how many do.

    Example:
        >>> Waiting().until(lambda: True, timeout_secs=1.0)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def until(self, reached: Callable[[], bool], timeout_secs: float) -> None:
        """Blocks until a condition holds or the time is over, at most for `LONGEST_SECS`."""
        with self._changed:
            # Counted before the check, so that a thread that changes something after the check sees the count.
            self.count += 1
            try:
                clock.wait_for(self._changed, reached, min(timeout_secs, LONGEST_SECS))
            finally:
                self.count -= 1

    def notify(self) -> None:
        """Makes all waiting threads check again."""
        if self.count:
            with self._changed:
                self._changed.notify_all()


class Member:
    """One instance of a server, in one epoch at a time."""

    def __init__(self) -> None:
        self._incarnation = uuid.uuid4().hex
        # Held by every call that changes something, and by no call that waits.
        self._turn = threading.RLock()
        self._waiting = Waiting()
        self._begin_epoch(None, 0)

    def _begin_epoch(self, epoch: Epoch | None, index: int) -> None:
        # This comes first: a reader during a restart of the epoch checks the epoch last.
        self._epoch, self._index = epoch, index
        self._broken: BaseException | None = None

    def _is_current(self, ticket: Ticket) -> bool:
        return self._epoch is not None and ticket == (self._incarnation, self._epoch.name)

    def _check(self, ticket: Ticket) -> None:
        if self._broken is not None:
            raise self._could_not_apply(self._broken) from self._broken
        if not self._is_current(ticket):
            restarted = ticket[0] != self._incarnation
            raise self._lost(
                "was restarted, and came back empty"
                if restarted
                else "was initialised or restored anew since this session was created"
            )

    @contextmanager
    def _waited(self, ticket: Ticket, reached: Callable[[], bool], timeout_secs: float) -> Iterator[None]:
        """Blocks until a condition holds, the epoch ends or the time is over; then its body reads.

        Waiting calls have their own threads, so the epoch may end at any moment. The values read are valid if the epoch
        had not ended afterwards.
        """
        self._waiting.until(lambda: self._broken is not None or not self._is_current(ticket) or reached(), timeout_secs)
        self._check(ticket)
        try:
            yield
        finally:
            self._check(ticket)

    def _lost(self, what: str) -> errors.AbortedError:
        message = f"Parameter server {self._index} {what}. The session is lost; a recoverable one starts anew."
        return errors.AbortedError(None, None, message)

    def _could_not_apply(self, error: BaseException) -> errors.AbortedError:
        if self._index != 0 and isinstance(error, errors.AbortedError):
            # The step server's own words.
            return errors.AbortedError(None, None, str(error))
        return self._lost(f"could not apply an accepted update ({_said(error)})")

    def _break(self, error: BaseException) -> None:
        if self._broken is None:
            logger.error("Parameter server %d is broken: %s", self._index, _said(error))
            self._broken = error
        else:
            # The first one is the cause.
            logger.info("Parameter server %d is broken, and then: %s", self._index, _said(error))
        self._waiting.notify()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
