"""A worker's side of the gate that bounds staleness."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from hookline import clock, errors, log
from hookline.distributed.protocol import Ticket
from hookline.distributed.server.gate import LEASE_SECS
from hookline.distributed.transport import Transport
from hookline.signals import preemption

logger = log.of(__name__)

_POLL_SECS = 1.0
_SAY_EVERY_SECS = 30.0


class Entrance:
    """Waits at the step server's gate before each run, and renews this worker's lease during the run."""

    def __init__(self, transport: Transport, ticket: Ticket, sender: str) -> None:
        self._transport, self._ticket, self._sender = transport, ticket, sender
        self._closed = threading.Event()
        self._run, self._inside = 0, False
        # Compiling a step may take minutes, during which the other workers should wait for it.
        threading.Thread(
            target=_renew, args=(weakref.ref(self), self._closed), name="hookline-renew", daemon=True
        ).start()

    def enter(self, since: int) -> tuple[int, int, Sequence[int]]:
        """Blocks until this worker may begin a run; its values were read after `since` transactions.

        Returns:
            The number of transactions that its values must include; the number of transactions so far; and for each
            server, the step server's message that it has received once it includes those transactions.

        Raises:
            CancelledError: The session was closed in the meantime.
            Preempted: A signal has asked the process to end.
            OutOfRangeError: The training has ended.
            AbortedError, UnavailableError: The step server was lost, or is away.
        """
        said = clock.monotonic()
        self._run, self._inside = self._run + 1, True
        while not self._closed.is_set():
            found = self._transport.call(0, "admit", self._ticket, self._sender, self._run, since, _POLL_SECS).get()
            if found is not None:
                return found
            preemption.check()
            if clock.monotonic() - said >= _SAY_EVERY_SECS:
                logger.info("Waiting for slower workers: max_staleness allows no further step before their updates.")
                said = clock.monotonic()
        raise errors.CancelledError.from_message("The session was closed while a run waited for slower workers.")

    def close(self) -> None:
        """Ends waits and renewals. A run that is under way in another thread leaves by itself."""
        self._closed.set()

    def leave(self, *, undecided: bool = False) -> None:
        """Reports that no run is under way.

        If the update of the last run is `undecided`, nothing is reported: the others wait until it is decided, or until
        this worker's lease is over.
        """
        self._inside = False
        if undecided:
            return
        try:
            # Nothing waits for the answer: the number identifies the run, whenever this arrives.
            self._transport.call(0, "leave", self._ticket, self._sender, self._run)
        except errors.OpError as error:
            logger.info("The step server was not told that this worker leaves: %s", error)

    def renew(self) -> bool:
        """Renews the lease if a run is under way; returns False once the epoch or Ray has ended."""
        if not self._inside:
            return True
        try:
            self._transport.call(0, "renew", self._ticket, self._sender).get()
        except errors.UnavailableError as error:
            logger.info("The step server was not told that this worker lives: %s", error)
        except Exception:
            return False  # the epoch or Ray has ended; the next run reports it
        return True


def _renew(reference: weakref.ref[Entrance], closed: threading.Event) -> None:
    # Ends, a while later, if the session is gone without having been closed.
    while not clock.wait(closed, LEASE_SECS / 4):
        entrance = reference()
        if entrance is None or not entrance.renew():
            return
        del entrance
