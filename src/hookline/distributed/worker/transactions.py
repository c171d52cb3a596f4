"""A worker's transactions: staged in parts, committed as a whole, and never applied twice."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hookline import errors, log
from hookline.distributed.codec import CodecError
from hookline.distributed.protocol import Committed, Reply, Ticket, Transaction, Transport
from hookline.distributed.server.server_state import WriteOp
from hookline.distributed.worker.membership import Membership
from hookline.distributed.worker.pulls import Pulls
from hookline.session.running.retry import RETRY, SentUpdates

logger = log.get_logger(__name__)


class _Recipient(NamedTuple):
    ticket: Ticket
    transaction: Transaction
    owners: Sequence[int]
    seqs: Sequence[int] = ()


class Outcome(NamedTuple):
    """The outcome of a transaction.

    Attributes:
        accepted: Whether it was applied.
        step: The global step after it; for a refused one, the current global step.
        is_repeat: Whether this is a retry of a run whose earlier attempt was applied.
    """

    accepted: bool
    step: int
    is_repeat: bool = False


class Transactions:
    """Sends transactions to the servers that own their variables.

    Attributes:
        sender: The name of this worker in transactions, unique for each session.
    """

    def __init__(self, transport: Transport, members: Membership, pulls: Pulls, worker_index: int) -> None:
        self._transport, self._members, self._pulls = transport, members, pulls
        self.sender = f"{worker_index}-{uuid.uuid4().hex}"
        self._number = 0
        self._unresolved: SentUpdates | None = None
        self._leaving = threading.Lock()

    def set(self, entries: Sequence[tuple[str, WriteOp]]) -> Outcome:
        """Applies entries that set values, each paired with its variable's name; waits for all servers."""
        # Another sender name, so that the bound on staleness does not count this as the update of a current run.
        reply = self._transact(f"{self.sender} sets", SentUpdates((), False), entries, None, {})
        # Values prefetched before are no longer current.
        self._pulls.clear()
        self._pulls.wait_until_delivered(reply.sent_seqs)
        return Outcome(reply.accepted, reply.step)

    def update(self, entries: Sequence[tuple[str, WriteOp]], last_step: int | None, *, counts: bool) -> Outcome:
        """Applies the updates of a run, unless this is a retry and they have already been applied.

        Args:
            entries: The updates in order, each paired with the name of one variable that it writes.
            last_step: Nothing is applied if the global step is this or more.
            counts: Whether one of them writes the global step.
        """
        retry, sent = RETRY.get(), SentUpdates(tuple(entry.name for _, entry in entries), counts)
        if retry is not None:
            before = retry.find_sent(sent.names)
            if before is not None and self._was_applied(before):
                logger.info("The updates of the retried run have already been applied: they are not sent again.")
                assert before.step is not None, "an applied update has a step"
                self._pulls.clear()
                return Outcome(True, before.step, is_repeat=True)
            retry.send(sent, instead_of=before)
        wanted = self._pulls.predicted_reads()
        reply = self._transact(self.sender, sent, entries, last_step, wanted)
        self._pulls.record_commit(reply, sent.tracking.owners, wanted)
        return Outcome(reply.accepted, reply.step)

    def _was_applied(self, sent: SentUpdates) -> bool:
        """Returns whether the current values include the updates; if not, they never will."""
        recipient: _Recipient | None = sent.tracking
        if recipient is None or sent.applied is False:
            return False
        if recipient.ticket == self._members.ticket(0):
            self._find_outcome(sent)
            if sent.applied:
                self._pulls.require_seqs(sent.tracking.seqs)
            return bool(sent.applied)
        # That epoch has ended: the values include its update only if they were restored from a checkpoint that has it.
        # `ready_at` is the step from which this epoch trains. An update that led to step 7 is in the checkpoints of
        # steps 7 and 9, but not of 5. If it does not count steps, a checkpoint of step 7 may be older than the update.
        ready_at = self._members.ready_at()
        if sent.step is None or ready_at is None:
            return False
        return sent.step <= ready_at if sent.writes_step else sent.step < ready_at

    @property
    def is_outcome_known(self) -> bool:
        """Whether the outcome of every transaction sent is known."""
        return self._unresolved is None

    def resolve_outcome(self) -> None:
        """Requests the outcome of the last transaction, if it got no answer; an undecided one is then refused."""
        if (sent := self._unresolved) is not None:
            self._find_outcome(sent)
            with self._leaving:
                # Another thread may have left another transaction undecided in the meantime.
                if self._unresolved is sent:
                    self._unresolved = None

    def give_up(self) -> None:
        """Refuses the last transaction, if it got no answer and is undecided; does not wait for the result."""
        with self._leaving:
            sent, self._unresolved = self._unresolved, None
        if sent is None or sent.applied is not None:
            return
        try:
            self._transport.call(0, "outcome", sent.tracking.ticket, sent.tracking.transaction, sent.tracking.owners)
        except Exception as error:
            logger.info("The step server was not notified that an update was given up: %s", error)

    def _find_outcome(self, sent: SentUpdates) -> None:
        """Requests the outcome of updates that got no answer."""
        recipient: _Recipient = sent.tracking
        if sent.applied is None and recipient.ticket == self._members.ticket(0):
            call = self._transport.call(0, "outcome", recipient.ticket, recipient.transaction, recipient.owners)
            self._record(sent, call.get())

    def _record(self, sent: SentUpdates, reply: Committed) -> None:
        sent.applied, sent.step, sent.tracking = (
            reply.accepted,
            reply.step,
            sent.tracking._replace(seqs=reply.sent_seqs),
        )

    def _transact(
        self,
        sender: str,
        sent: SentUpdates,
        entries: Sequence[tuple[str, WriteOp]],
        last_step: int | None,
        wanted: Mapping[int, list[str]],
    ) -> Committed:
        # The step server remembers only the last outcome of a sender, so request it before the next transaction.
        self.resolve_outcome()
        parts: dict[int, list[WriteOp]] = {0: []}
        for name, entry in entries:
            parts.setdefault(self._members.owner(name), []).append(entry)
        self._number += 1
        transaction, ticket = (sender, self._number), self._members.ticket
        owners = [server for server in parts if server != 0]
        sent.tracking = _Recipient(ticket(0), transaction, owners)
        call, pull = self._transport.call, {server: wanted.get(server, []) for server in parts}
        try:
            # All at once: the owners themselves notify the step server that they have their parts.
            staged = [call(s, "stage", ticket(s), transaction, parts[s], pull[s]) for s in owners]
            asked = call(0, "commit", ticket(0), transaction, parts[0], last_step, pull[0], owners)
            # The owners answer when the transaction is decided, with the new values.
            try:
                pulled = [reply.get() for reply in staged]
            except Exception:
                # An owner has failed, but the transaction may have been accepted before.
                with contextlib.suppress(errors.OpError, CodecError):
                    self._find_outcome(sent)
                raise
            reply: Committed = self._await_decision(sent, asked)
        except BaseException as error:  # Discard the prefetched values; the next call requests the outcome.
            self._pulls.clear()
            if sent.applied is None:
                with self._leaving:
                    self._unresolved = sent
                if isinstance(error, errors.UnavailableError):
                    message = f"{error} Whether the update was applied is not known."
                    raise errors.UnavailableError.from_message(message) from error
            raise
        self._record(sent, reply)
        self._pulls.store_replies(pulled)
        return reply

    def _await_decision(self, sent: SentUpdates, asked: Reply) -> Committed:
        try:
            return asked.get()
        except errors.UnavailableError:
            raise
        except CodecError as error:
            # An answer that cannot be read is no refusal.
            raise errors.UnavailableError.from_message(str(error)) from error
        except Exception:
            # The step server has refused the transaction.
            sent.applied = False
            raise
