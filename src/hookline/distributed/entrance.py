"""A worker's side of the gate that bounds staleness."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from hookline import clock, errors
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

    def enter(self, since: int) -> tuple[int, Sequence[int]]:
        """Blocks until this worker may begin a run.

        Args:
            since: After how many transactions the values were read that it has.

        Returns:
            After how many they must have been, and for each server the message that it has to have got by then.

        Raises:
            CancelledError: The session was closed meanwhile.
            OutOfRangeError: The training has ended.
        """
        said = clock.monotonic()
        while not self._closed.is_set():
            found = self._transport.call(0, "admit", self._ticket, self._sender, since, _POLL_SECS).get()
            if found is not None:
                return found
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
            except errors.OpError as error:
                # The next run meets it too, and says what it means.
                logger.info("The step server was not told that this worker lives: %s", error)
