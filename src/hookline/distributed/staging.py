"""Parts of transactions that wait for the step server's word, and whom it listens to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hookline import clock, errors
from hookline.distributed.protocol import Transaction
from hookline.distributed.state import Entry

STAGED_SECS = 60.0
"""How long a part may stay staged before its owner asks the step server to shut its sender out."""


class _Part(NamedTuple):
    entries: Sequence[Entry]
    since: float


class Staging:
    """Staged parts, by transaction.

    Example:
        >>> staging = Staging()
        >>> staging.add(("worker", 1), [])
        >>> ("worker", 1) in staging
        True
    """

    def __init__(self) -> None:
        self._parts: dict[Transaction, _Part] = {}

    def __contains__(self, transaction: Transaction) -> bool:
        return transaction in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, transaction: Transaction, entries: Sequence[Entry]) -> None:
        """Keeps a part."""
        self._parts[transaction] = _Part(entries, clock.monotonic())

    def get(self, transaction: Transaction) -> Sequence[Entry] | None:
        """Returns a part that is still staged, or `None`."""
        part = self._parts.get(transaction)
        return None if part is None else part.entries

    def drop(self, transaction: Transaction) -> None:
        """Forgets a part, if it is there."""
        self._parts.pop(transaction, None)

    def drop_sender(self, sender: str) -> None:
        """Forgets all parts of a sender."""
        self._parts = {transaction: part for transaction, part in self._parts.items() if transaction[0] != sender}

    def silent(self, secs: float) -> list[Transaction]:
        """Returns the parts that have been here for longer than that; each once in that time."""
        now = clock.monotonic()
        old = [transaction for transaction, part in self._parts.items() if now - part.since > secs]
        for transaction in old:
            self._parts[transaction] = self._parts[transaction]._replace(since=now)
        return old


class Senders:
    """What the step server knows of those that send it transactions."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._out: set[str] = set()

    def decide(self, transaction: Transaction) -> None:
        """Takes note that a transaction is decided now.

        Raises:
            AbortedError: Its sender was shut out.
            InternalError: It was decided before.
        """
        sender, number = transaction
        if sender in self._out:
            raise errors.AbortedError(
                None,
                None,
                f"Worker {sender} was silent for {STAGED_SECS:g} s in the middle of a transaction and was shut out: "
                f"nothing of it was applied. It has to start a new session.",
            )
        if number <= self._last.get(sender, -1):
            raise errors.InternalError(None, None, f"Transaction {transaction} was sent twice.")
        self._last[sender] = number

    def shut_out(self, transaction: Transaction) -> bool:
        """Shuts the sender of a transaction out, unless it is decided by now; returns whether it did."""
        sender, number = transaction
        if number <= self._last.get(sender, -1):
            return False
        self._out.add(sender)
        return True
