"""A worker's side of the gate that bounds staleness."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from hookline import clock, errors, preemption
from hookline.distributed.gate import LEASE_SECS
from hookline.distributed.protocol import Ticket
from hookline.distributed.transport import Transport

logger = logging.getLogger(__name__)

_POLL_SECS = 1.0
_SAY_EVERY_SECS = 30.0


class Entrance:
    """Waits at the step server's gate before each run, and tells it from then on that this worker lives.

    Args:
        transport: How to call the servers.
        ticket: The step server's.
        sender: This worker's name in transactions.
    """

    def __init__(self, transport: Transport, ticket: Ticket, sender: str) -> None:
        self._transport, self._ticket, self._sender = transport, ticket, sender
        self._closed = threading.Event()
        # Compiling a step may take minutes, in which the others wait for it and should.
        threading.Thread(target=self._renew, name="hookline-renew", daemon=True).start()

    def enter(self, since: int) -> tuple[int, int, Sequence[int]]:
        """Blocks until this worker may begin a run.

        Args:
            since: After how many transactions the values were read that it has.

        Returns:
            After how many transactions the values that it uses have to be read; how many there are now; and for each
            server which of the step server's messages it has got once it has carried those out.

        Raises:
            CancelledError: The session was closed meanwhile.
            Preempted: A signal has asked the process to end.
            OutOfRangeError: The training has ended.
            AbortedError, UnavailableError: The step server was lost, or is away.
        """
        said = clock.monotonic()
        while not self._closed.is_set():
            found = self._transport.call(0, "admit", self._ticket, self._sender, since, _POLL_SECS).get()
            if found is not None:
                return found
            preemption.check()
            if clock.monotonic() - said >= _SAY_EVERY_SECS:
                logger.info("Waiting for slower workers: max_staleness allows no further step before their updates.")
                said = clock.monotonic()
        raise errors.CancelledError(None, None, "The session was closed while a run waited for slower workers.")

    def close(self) -> None:
        """Ends waits, and the signs of life."""
        self._closed.set()
        self.leave()

    def leave(self) -> None:
        """Says that no run is under way."""
        try:
            self._transport.call(0, "leave", self._ticket, self._sender)
        except errors.OpError as error:
            logger.info("The step server was not told that this worker leaves: %s", error)

    def _renew(self) -> None:
        while not clock.wait(self._closed, LEASE_SECS / 4):
            try:
                self._transport.call(0, "renew", self._ticket, self._sender).get()
            except errors.UnavailableError as error:
                logger.info("The step server was not told that this worker lives: %s", error)
            except Exception:
                return  # the epoch is over, or Ray is: the next run says so
