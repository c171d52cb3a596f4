"""A worker's transactions: their parts staged, their whole committed, and none of them carried out twice."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hookline import errors
from hookline.distributed.membership import Membership
from hookline.distributed.protocol import Committed, Transaction
from hookline.distributed.pulls import Pulls
from hookline.distributed.state import Entry
from hookline.distributed.transport import Transport
from hookline.session.retry import RETRY, Sent

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What became of a transaction.

    Attributes:
        accepted: Whether it was applied.
        step: The global step then.
        repeats: It is that of a run that is tried again, and an earlier attempt had been applied.
    """

    accepted: bool
    step: int
    repeats: bool = False


class Transactions:
    """Sends transactions to the servers that own their variables.

    Args:
        transport: How to call the servers.
        members: Who owns what, in which epoch.
        pulls: Learns what the transactions bring along.
        worker_index: Which worker this is.

    Attributes:
        sender: The name of this worker in them, a new one for each session.
    """

    def __init__(self, transport: Transport, members: Membership, pulls: Pulls, worker_index: int) -> None:
        self._transport, self._members, self._pulls = transport, members, pulls
        self.sender = f"{worker_index}-{uuid.uuid4().hex}"
        self._number = 0

    def set(self, entries: Sequence[tuple[str, Entry]]) -> Outcome:
        """Carries out entries that set values, each with the name of its variable; returns when all servers have."""
        reply = self._transact(entries, None, {})
        self._pulls.wait_until_delivered(reply.marks)
        return Outcome(reply.accepted, reply.step)

    def update(self, names: tuple[str, ...], entries: Sequence[tuple[str, Entry]], last_step: int | None) -> Outcome:
        """Carries out the updates of a run, unless it is tried again and they have been carried out before.

        Args:
            names: Of the updates.
            entries: In order, each with the name of a variable of its.
            last_step: Nothing is done if the global step would pass this.
        """
        retry = RETRY.get()
        if retry is not None and (sent := retry.sent_before(names)) is not None:
            if self._was_applied(sent):
                logger.info("The updates of the run that is tried again have been applied: they are not sent again.")
                return Outcome(True, self._members.step(), repeats=True)
            retry.drop(sent)
        reply = self._transact(entries, last_step, self._pulls.wanted(), names)
        return Outcome(reply.accepted, reply.step)

    def _was_applied(self, sent: Sent) -> bool:
        """Returns what became of updates; if it is not decided yet, they never will be applied."""
        ticket, transaction, owners = sent.where
        if ticket != self._members.ticket(0):
            return False  # the values of that epoch are gone
        if sent.applied is None:
            reply: Committed = self._transport.call(0, "outcome", ticket, transaction, owners).get()
            sent.applied = reply.accepted
        if sent.applied:
            self._pulls.behind(transaction, owners)
        return sent.applied

    def _transact(
        self,
        entries: Sequence[tuple[str, Entry]],
        last_step: int | None,
        wanted: Mapping[int, list[str]],
        names: tuple[str, ...] | None = None,
    ) -> Committed:
        parts: dict[int, list[Entry]] = {0: []}
        for name, entry in entries:
            parts.setdefault(self._members.owner(name), []).append(entry)
        self._number += 1
        transaction = (self.sender, self._number)
        owners = [server for server in parts if server != 0]
        self._stage(transaction, {server: parts[server] for server in owners})
        ticket, retry = self._members.ticket(0), RETRY.get()
        sent = None if names is None or retry is None else retry.send(names, (ticket, transaction, owners))
        call = self._transport.call(0, "commit", ticket, transaction, parts[0], last_step, wanted.get(0, []), owners)
        self._pulls.pull_behind(transaction, owners, wanted)
        try:
            reply: Committed = call.get()
        except BaseException as error:
            self._pulls.forget(owners)
            if isinstance(error, errors.UnavailableError):
                message = f"{error} Whether the update was applied is not known."
                raise errors.UnavailableError(None, None, message) from error
            if retry is not None and sent is not None:
                retry.drop(sent)
            raise
        if sent is not None:
            sent.applied = reply.accepted
        self._pulls.committed(reply, [0, *owners])
        return reply

    def _stage(self, transaction: Transaction, parts: Mapping[int, Sequence[Entry]]) -> None:
        call, ticket = self._transport.call, self._members.ticket
        staged = [call(server, "stage", ticket(server), transaction, part) for server, part in parts.items()]
        failure: BaseException | None = None
        for reply in staged:
            try:
                reply.get()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            for server in parts:
                call(server, "drop", ticket(server), transaction)
            raise failure
