"""The step server's records of undecided transactions, and of the senders of decided ones."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from hookline import clock, errors
from hookline.distributed.protocol import Committed, Transaction
from hookline.distributed.server.server_state import WriteOp
from hookline.distributed.server.variable_owner import STAGED_SECS

UNDECIDED_SECS = 10 * STAGED_SECS
"""The timeout of an undecided transaction, for example one whose parts have reached no owner."""

REQUEST_LAG_SECS = 10.0
"""The time by which a request may arrive after an owner's question about it: a busy step server may read it later."""


@dataclass(frozen=True)
class Request:
    """A sender's request to the step server to commit a transaction.

    Attributes:
        entries: The step server's own part.
        last_step: The transaction is refused if the global step is this or more.
        pull: Variables of the step server whose values to return, after the transaction.
        owners: The other servers that get a part.
        answer: The future of the outcome.
    """

    entries: Sequence[WriteOp]
    last_step: int | None
    pull: Sequence[str]
    owners: Sequence[int]
    answer: Future[Committed] = field(default_factory=Future)


class PendingCommit:
    """The undecided transaction of one sender: a sender has one at a time, with increasing numbers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.request: Request | None = None
        self.votes: dict[int, BaseException | None] = {}
        self.asked_at: dict[int, float] = {}
        self.since = clock.monotonic()

    @property
    def failure(self) -> BaseException | None:
        """The first error of an owner that cannot apply its part, if any."""
        return next((failure for failure in self.votes.values() if failure is not None), None)

    @property
    def is_complete(self) -> bool:
        """Whether everything needed for a decision has arrived."""
        if self.request is None:
            return False
        return self.votes.keys() >= set(self.request.owners) or self.failure is not None


class PendingCommits:
    """Undecided transactions: for each, the request of its sender and the votes of the owners of its parts.

    Request and votes may arrive in any order.

    Example:
        >>> commits, transaction = PendingCommits(), ("worker", 1)
        >>> commits.vote(transaction, 2, None)
        True
        >>> commits.add_request(transaction, Request([], None, (), [2]))
        >>> commits.find(transaction).is_complete
        True
    """

    def __init__(self) -> None:
        self._open: dict[str, PendingCommit] = {}

    def _get_or_open(self, transaction: Transaction) -> PendingCommit | None:
        sender, number = transaction
        pending = self._open.get(sender)
        if pending is None or pending.number < number:
            # The sender has abandoned its earlier transaction.
            if pending is not None and pending.request is not None:
                pending.request.answer.set_exception(_duplicate_error((sender, pending.number)))
            self._open[sender] = PendingCommit(number)
        return self.find(transaction)

    def add_request(self, transaction: Transaction, request: Request) -> None:
        """Records a request.

        Raises:
            InternalError: The request was recorded before, or its sender has begun another transaction since.
        """
        pending = self._get_or_open(transaction)
        if pending is None or pending.request is not None:
            raise _duplicate_error(transaction)
        pending.request = request

    def vote(self, transaction: Transaction, owner: int, failure: BaseException | None) -> bool:
        """Records the vote of a part's owner: `None` if the part can be applied, else the error.

        Returns:
            False if the sender has begun another transaction since.
        """
        pending = self._get_or_open(transaction)
        if pending is not None:
            pending.votes[owner] = failure
        return pending is not None

    def is_request_overdue(self, transaction: Transaction, owner: int) -> bool:
        """Returns whether the request is missing, although an owner asked about it at least `REQUEST_LAG_SECS` ago."""
        pending = self._get_or_open(transaction)
        if pending is None or pending.request is not None:
            return False
        now = clock.monotonic()
        return now - pending.asked_at.setdefault(owner, now) >= REQUEST_LAG_SECS

    def find(self, transaction: Transaction) -> PendingCommit | None:
        """Returns the pending commit of a transaction; None if there is none."""
        sender, number = transaction
        pending = self._open.get(sender)
        return pending if pending is not None and pending.number == number else None

    def close(self, transaction: Transaction) -> Request | None:
        """Removes a transaction; returns its request, if that has arrived."""
        return None if self.find(transaction) is None else self._open.pop(transaction[0]).request

    def close_all(self) -> list[Request]:
        """Removes all transactions; returns their requests."""
        pending_commits, self._open = self._open, {}
        return [pending.request for pending in pending_commits.values() if pending.request is not None]

    def timed_out(self) -> list[Transaction]:
        """Returns the transactions that have been undecided for longer than `UNDECIDED_SECS`."""
        now = clock.monotonic()
        return [
            (sender, pending.number) for sender, pending in self._open.items() if now - pending.since > UNDECIDED_SECS
        ]


class Senders:
    """The last decided transaction of each sender, and the senders that are excluded."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bool]] = {}
        self._excluded: set[str] = set()

    def check(self, transaction: Transaction) -> None:
        """Checks that a transaction may be decided now.

        Raises:
            AbortedError: Its sender was excluded.
            InternalError: The transaction is already decided.
        """
        sender, _ = transaction
        if sender in self._excluded:
            raise errors.AbortedError.from_message(
                f"Worker {sender} was excluded in the middle of a transaction: its request was missing for "
                f"{STAGED_SECS:g} s, or a part of it for {UNDECIDED_SECS:g} s. Nothing of it was applied. The worker "
                f"has to start a new session.",
            )
        if self.is_decided(transaction):
            raise _duplicate_error(transaction)

    def decide(self, transaction: Transaction, accepted: bool) -> None:
        """Records the outcome of a transaction, unless it is already decided."""
        sender, number = transaction
        if not self.is_decided(transaction):
            self._last[sender] = number, accepted

    def outcome(self, transaction: Transaction) -> bool:
        """Returns whether a transaction was accepted; refuses it, if it is undecided.

        Raises:
            InternalError: Its sender has sent a later transaction; only the last outcome is known.
        """
        self.decide(transaction, False)
        sender, number = transaction
        last, accepted = self._last[sender]
        if last != number:
            raise errors.InternalError.from_message(f"Transaction {transaction} is not the last one of its sender.")
        return accepted

    def exclude(self, transaction: Transaction) -> None:
        """Excludes the sender of a transaction, unless the transaction is already decided."""
        if not self.is_decided(transaction):
            self._excluded.add(transaction[0])

    def may_commit(self, transaction: Transaction) -> bool:
        """Returns whether a transaction may still be accepted: it is not decided, and its sender was not excluded."""
        return not self.is_decided(transaction) and transaction[0] not in self._excluded

    def is_decided(self, transaction: Transaction) -> bool:
        """Returns whether a transaction, or a later one of its sender, was accepted or refused."""
        sender, number = transaction
        return number <= self._last.get(sender, (-1, False))[0]


def _duplicate_error(transaction: Transaction) -> errors.InternalError:
    return errors.InternalError.from_message(f"Transaction {transaction} was sent twice, or was given up.")
