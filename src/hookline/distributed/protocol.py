"""The messages between servers and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hookline.distributed.wire import Leaves

WAITING = ("wait_until_ready", "wait_for_step", "wait_delivered", "admit", "renew", "pull_behind", "collect")
"""The methods that block, or must not wait for others. They run in their own threads, all others one at a time."""

DECIDED = ("stage", "commit")
"""The methods whose answer comes when a transaction is decided; until then they block no other call."""

QUICK = (*DECIDED, "pull", "pull_behind", "collect", "cut", "outcome", "admit", "renew", "leave")
"""The methods that workers call in steps and snapshots. They have their own connections, all others go over Ray."""

BETWEEN = ("staged", "fence", "deliver", "abandon")
"""The methods that servers call on each other."""

METHODS = frozenset((*WAITING, *QUICK, *BETWEEN, "status", "begin", "register", "publish", "seal", "structures"))
"""All methods that other processes may call."""

Ticket = tuple[str, str]
"""(incarnation, epoch): the instance of a server, and the initialisation or restore, that a call is meant for."""

Transaction = tuple[str, int]
"""(sender, number): the numbers of a sender increase."""


class Peers(Protocol):
    """A server's connection to the others."""

    def tell(self, server: int, method: str, *args: Any, on_failure: Callable[[BaseException], None]) -> None:
        """Calls a method of another server without waiting; `on_failure` gets its exception, from any thread."""
        ...

    def close(self) -> None:
        """Forgets the other servers."""
        ...


class Epoch(NamedTuple):
    """One life of the values: from an initialisation or a restore to the next.

    Attributes:
        name: Unique for each epoch.
        incarnations: The servers' instances, in order. The first holds the global step.
        updates: The chief's updates: fingerprints by name.
        variables: The specs of the chief's variables, by name.
        owners: The server of each variable.
        max_staleness: The number of updates of others that an update may miss; `None` for no limit.
    """

    name: str
    incarnations: tuple[str, ...]
    step_name: str | None
    updates: Mapping[str, str]
    variables: Mapping[str, str]
    owners: Mapping[str, int]
    max_staleness: int | None = None

    def ticket(self, server: int) -> Ticket:
        """Returns the ticket for calls of a server in this epoch."""
        return self.incarnations[server], self.name


class Status(NamedTuple):
    """A server's description of itself for workers.

    Attributes:
        held: Names of the variables that have values.
        step: The global step; on the step server only.
        ready_at: The global step at which the chief first declared the model ready; on the step server only.
    """

    incarnation: str
    epoch: Epoch | None
    held: frozenset[str]
    step: int
    ready_at: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a transaction.

    Attributes:
        accepted: False if the limit on the step refused it or it was given up; then nothing was applied.
        step: The global step now.
        counts: For each server, the number of transactions that reached it.
        marks: For each server, the number of messages sent to it.
        values: The requested values of the step server, as they are now.
    """

    accepted: bool
    step: int
    counts: tuple[int, ...]
    marks: tuple[int, ...]
    values: dict[str, Leaves]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Values of variables, after that many `transactions` of their server."""

    transactions: int
    values: dict[str, Leaves]
