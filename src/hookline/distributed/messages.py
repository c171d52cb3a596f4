"""Numbered messages from the step server to the others, carried out in order, however they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hookline.distributed.protocol import Epoch, Peers, Ticket

Message = tuple[Any, ...]


class Outbox:
    """The messages that the step server has sent.

    Args:
        epoch: Names the servers.
        peers: Calls them.
        fail: Receives the exception of a message that did not arrive.

    Attributes:
        marks: The number of messages sent to each server.
    """

    def __init__(self, epoch: Epoch, peers: Peers | None, fail: Callable[[BaseException], None]) -> None:
        self._epoch, self._peers, self._fail = epoch, peers, fail
        self.marks = [0] * len(epoch.incarnations)

    def ticket(self, server: int) -> Ticket:
        """Returns the ticket that identifies this epoch in a call of a server."""
        return self._epoch.incarnations[server], self._epoch.name

    def call(self, server: int, method: str, *args: Any) -> None:
        """Calls a method of another server, without waiting."""
        assert self._peers is not None, "several servers know each other"
        self._peers.tell(server, method, self.ticket(server), *args, on_failure=self._fail)

    def abandon(self, why: str) -> None:
        """Tells all other servers that the epoch is lost, as far as they can be reached."""
        if self._peers is None:
            return
        for server in range(1, len(self.marks)):
            self._peers.tell(server, "abandon", self.ticket(server), why, on_failure=lambda error: None)

    def close(self) -> None:
        """Ends the connections to the other servers."""
        if self._peers is not None:
            self._peers.close()

    def send(self, servers: Sequence[int], *message: Any) -> None:
        """Sends a message to servers."""
        for server in servers:
            self.marks[server] += 1
            self.call(server, "deliver", self.marks[server], message)


class Inbox:
    """The messages that a server has received from the step server.

    Attributes:
        delivered: The number of messages carried out.

    Example:
        >>> inbox = Inbox()
        >>> list(inbox.receive(2, ("second",)))
        []
        >>> list(inbox.receive(1, ("first",)))
        [('first',), ('second',)]
    """

    def __init__(self) -> None:
        self.delivered = 0
        self._early: dict[int, Message] = {}

    def receive(self, mark: int, message: Message) -> Iterator[Message]:
        """Yields the messages that are due after number `mark` has arrived."""
        self._early[mark] = message
        while (due := self._early.pop(self.delivered + 1, None)) is not None:
            yield due
            self.delivered += 1
