"""Parts of transactions that wait for the step server's decision, and the senders it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hookline import clock, errors
from hookline.distributed.protocol import Transaction
from hookline.distributed.state import Entry
from hookline.distributed.wire import Leaves

STAGED_SECS = 60.0
"""How long a part may stay staged before its owner asks the step server to shut its sender out."""


CUT_SECS = 300.0
"""How long the values of a snapshot are kept for whoever has asked for it: longer than a lost message may take."""


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

    def __contains__(self, transaction: Transaction | None) -> bool:
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
        """Drops a part, if it is there."""
        self._parts.pop(transaction, None)

    def drop_sender(self, sender: str) -> None:
        """Drops all parts of a sender."""
        self._parts = {transaction: part for transaction, part in self._parts.items() if transaction[0] != sender}

    def silent(self, secs: float) -> list[Transaction]:
        """Returns the parts that have been here for longer than this; each at most once in this time."""
        now = clock.monotonic()
        old = [transaction for transaction, part in self._parts.items() if now - part.since > secs]
        for transaction in old:
            self._parts[transaction] = self._parts[transaction]._replace(since=now)
        return old


class Cuts:
    """Values kept for snapshots, by name.

    Example:
        >>> cuts = Cuts()
        >>> cuts.add("cut", {"v": []})
        >>> "cut" in cuts, cuts.pop("cut"), cuts.pop("cut")
        (True, {'v': []}, None)
    """

    def __init__(self) -> None:
        self._cuts: dict[str, tuple[float, dict[str, Leaves]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._cuts

    def add(self, name: str, values: dict[str, Leaves]) -> None:
        """Keeps values; values that nobody has taken for long are dropped."""
        now = clock.monotonic()
        for old in [old for old, (since, _) in list(self._cuts.items()) if now - since > CUT_SECS]:
            self._cuts.pop(old, None)
        self._cuts[name] = now, values

    def pop(self, name: str) -> dict[str, Leaves] | None:
        """Returns the values kept under a name, once."""
        return self._cuts.pop(name, (0.0, None))[1]


class Senders:
    """The step server's knowledge of the senders of transactions."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bool]] = {}
        self._out: set[str] = set()

    def decide(self, transaction: Transaction) -> None:
        """Records that a transaction is decided now.

        Raises:
            AbortedError: Its sender was excluded.
            InternalError: It was already decided.
        """
        sender, number = transaction
        if sender in self._out:
            raise errors.AbortedError(
                None,
                None,
                f"Worker {sender} was silent for {STAGED_SECS:g} s in the middle of a transaction and was shut out: "
                f"nothing of it was applied. It has to start a new session.",
            )
        if self._is_decided(transaction):
            raise errors.InternalError(None, None, f"Transaction {transaction} was sent twice, or was given up.")
        self._last[sender] = number, False

    def accept(self, transaction: Transaction) -> None:
        """Records that the last decided transaction was accepted."""
        sender, number = transaction
        self._last[sender] = number, True

    def outcome(self, transaction: Transaction) -> bool:
        """Returns whether a transaction was accepted; if it is not decided yet, it never will be.

        Raises:
            InternalError: Its sender has sent another one since then; only the last outcome is known.
        """
        sender, number = transaction
        if not self._is_decided(transaction):
            self._last[sender] = number, False
        last, accepted = self._last[sender]
        if last != number:
            raise errors.InternalError(None, None, f"Transaction {transaction} is not the last one of its sender.")
        return accepted

    def shut_out(self, transaction: Transaction) -> bool:
        """Excludes the sender of a transaction, unless the transaction is already decided; returns whether it did."""
        if self._is_decided(transaction):
            return False
        self._out.add(transaction[0])
        return True

    def _is_decided(self, transaction: Transaction) -> bool:
        sender, number = transaction
        return number <= self._last.get(sender, (-1, False))[0]
