"""What the owner of variables keeps for others: staged parts of transactions, and the values of snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from hookline import clock
from hookline.distributed.protocol import Pulled, Transaction
from hookline.distributed.state import Entry
from hookline.distributed.wire import Leaves

STAGED_SECS = 60.0
"""How long a part is kept at least while its sender's request has not come to the step server."""

ASK_SECS = STAGED_SECS / 2
"""How long a part may stay staged before its owner asks the step server about it, and before it asks again."""

CUT_SECS = 300.0
"""How long the values of a snapshot are kept for whoever has asked for it: longer than a lost message may take."""


@dataclass(frozen=True)
class Part:
    """A part of a transaction that waits for the step server's decision.

    Attributes:
        entries: What it does.
        pull: The variables whose values its sender wants afterwards.
        answer: Gets these values.
        since: When it came, or when the step server was last asked about it.
    """

    entries: Sequence[Entry]
    pull: Sequence[str] = ()
    answer: Future[Pulled] = field(default_factory=Future)
    since: float = field(default_factory=clock.monotonic)


class Staging:
    """Staged parts, by transaction.

    Example:
        >>> staging = Staging()
        >>> staging.add(("worker", 1), Part([]))
        >>> ("worker", 1) in staging
        True
    """

    def __init__(self) -> None:
        self._parts: dict[Transaction, Part] = {}

    def __contains__(self, transaction: Transaction) -> bool:
        return transaction in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, transaction: Transaction, part: Part) -> None:
        """Keeps a part."""
        self._parts[transaction] = part

    def pop(self, transaction: Transaction) -> Part | None:
        """Returns a part that is still staged, once."""
        return self._parts.pop(transaction, None)

    def pop_all(self) -> list[Part]:
        """Returns all parts, once."""
        parts, self._parts = list(self._parts.values()), {}
        return parts

    def silent(self, secs: float) -> list[Transaction]:
        """Returns the parts that have been here for longer than this; each at most once in this time."""
        now = clock.monotonic()
        old = [transaction for transaction, part in self._parts.items() if now - part.since > secs]
        for transaction in old:
            self._parts[transaction] = replace(self._parts[transaction], since=now)
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
