"""The owner of variables: it stages parts of transactions, and applies them when the step server says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hookline import clock, errors
from hookline.distributed.identity import Member
from hookline.distributed.messages import Inbox, Outbox
from hookline.distributed.protocol import Epoch, Peers, Pulled, Ticket, Transaction
from hookline.distributed.state import Entry, ServerState
from hookline.distributed.wire import Leaves, Structure

STAGED_SECS = 60.0
"""How long a part is kept at least while its sender's request has not come to the step server."""

ASK_SECS = STAGED_SECS / 2
"""How long a part may stay staged before its owner asks the step server about it, and before it asks again."""

CUT_SECS = 300.0
"""How long the values of a snapshot are kept for whoever has asked for it: longer than a lost message may take."""


@dataclass
class _Part:
    """A part of a transaction that waits for the step server's decision.

    Attributes:
        entries: What it does.
        pull: The variables whose values its sender wants afterwards.
        answer: Gets these values.
        since: When it came, or when the step server was last asked about it.
    """

    entries: Sequence[Entry]
    pull: Sequence[str]
    answer: Future[Pulled] = field(default_factory=Future)
    since: float = field(default_factory=clock.monotonic)


class Owner(Member):
    """What every parameter server does, whether or not it is the step server."""

    def __init__(self) -> None:
        super().__init__()
        self._staged: dict[Transaction, _Part] = {}
        self._outbox: Outbox | None = None
        self._begin(None, 0, None)

    def _begin(self, epoch: Epoch | None, index: int, peers: Peers | None) -> None:
        self._begin_epoch(epoch, index)
        self._give_up_parts(self._lost("was initialised or restored anew"))
        if self._outbox is not None:
            self._outbox.close()
        self._state = ServerState(epoch.step_name if epoch and index == 0 else None)
        # When they were made, and the values of snapshots, by name.
        self._cuts: dict[str, tuple[float, dict[str, Leaves]]] = {}
        self._outbox = Outbox(epoch, peers, self._failure_in(epoch)) if epoch else None
        self._inbox = Inbox()
        # On the step server, the number of transactions that reached each server; on others only their own number
        # changes.
        self._counts = [0] * len(epoch.incarnations if epoch else ())

    # Parts of transactions --------------------------------------------------------------------------------------

    def stage(
        self, ticket: Ticket, transaction: Transaction, entries: Sequence[Entry], pull: Sequence[str] = ()
    ) -> Future[Pulled] | None:
        """Keeps this server's part of a transaction until the step server decides on it, and tells the step server.

        Where values are to be pulled, the answer comes with the decision, and holds them as they are then.

        Raises:
            Exception: It cannot be applied: the update's function raised, or a variable has no value.
        """
        if transaction in self._staged:
            raise errors.InternalError(None, None, f"Transaction {transaction} was sent twice.")
        try:
            self._check(ticket)
            self._state.check(entries)
        except Exception as error:
            if self._is_current(ticket):
                self._sending.call(0, "staged", transaction, self._index, error)
            raise
        part = self._staged[transaction] = _Part(entries, pull)
        self._sending.call(0, "staged", transaction, self._index)
        for silent, old in self._staged.items():
            if part.since - old.since > ASK_SECS:
                old.since = part.since
                self._sending.call(0, "fence", silent, self._index)
        return part.answer if pull else None

    def deliver(self, ticket: Ticket, mark: int, message: tuple[Any, ...]) -> None:
        """Takes message number `mark` from the step server, to be carried out after all earlier ones."""
        self._check(ticket)
        for due in self._inbox.receive(mark, message):
            self._handle(*due)
        self._waiting.notify()

    def abandon(self, ticket: Ticket, why: str) -> None:
        """Hears from the step server that the epoch is lost."""
        self._check(ticket)
        self._break(errors.AbortedError(None, None, why))

    def _handle(self, kind: str, *args: Any) -> None:
        if kind == "cut":
            name, names = args
            now = clock.monotonic()
            for old in [old for old, (since, _) in list(self._cuts.items()) if now - since > CUT_SECS]:
                self._cuts.pop(old, None)
            self._cuts[name] = now, self._state.values(names)
        else:
            part = self._staged.pop(args[0], None)
            if kind == "apply":
                self._apply_staged(part, *args)
            if part is not None:
                self._answer(part)

    def _apply_staged(self, part: _Part | None, transaction: Transaction, step: int) -> None:
        # The step server has counted it, so it can no longer be undone.
        if part is None:
            self._break(RuntimeError(f"the staged part of transaction {transaction} is gone"))
            return
        try:
            self._state.apply(self._state.prepare(part.entries), None)
        except Exception as error:
            self._break(error)
            return
        self._state.step = step
        self._counts[self._index] += 1

    def _answer(self, part: _Part) -> None:
        if self._broken is not None:
            self._give_up([part], self._broken)
        else:
            part.answer.set_result(Pulled(self._counts[self._index], self._held_values(part.pull)))

    def _held_values(self, names: Sequence[str]) -> dict[str, Leaves]:
        """Returns values for whoever sent a transaction: it is final, and a failing read must not hide that."""
        held = self._state.names()
        return self._state.values([name for name in names if name in held])

    # Reading ----------------------------------------------------------------------------------------------------

    def pull(self, ticket: Ticket, names: Sequence[str]) -> Pulled:
        """Returns values as they are now."""
        self._check(ticket)
        return Pulled(self._counts[self._index], self._state.values(names))

    def pull_behind(self, ticket: Ticket, names: Sequence[str], mark: int, timeout_secs: float) -> Pulled | None:
        """Returns values after the step server's messages up to `mark` have arrived; `None` if the time is over."""
        with self._waited(ticket, lambda: self._inbox.delivered >= mark, timeout_secs):
            return self.pull(ticket, names) if self._inbox.delivered >= mark else None

    def structures(self, ticket: Ticket, names: Sequence[str]) -> dict[str, Structure]:
        """Returns the tree structures of variables."""
        self._check(ticket)
        return self._state.structures(names)

    def collect(self, ticket: Ticket, name: str, timeout_secs: float) -> dict[str, Leaves] | None:
        """Returns the values kept under a name, once; `None` if they do not arrive in time."""
        with self._waited(ticket, lambda: name in self._cuts, timeout_secs):
            return self._cuts.pop(name, (0.0, None))[1]

    def wait_delivered(self, ticket: Ticket, mark: int, timeout_secs: float) -> bool:
        """Blocks until messages up to `mark` have arrived or the time is over; returns whether they have."""
        with self._waited(ticket, lambda: self._inbox.delivered >= mark, timeout_secs):
            return self._inbox.delivered >= mark

    # What it sends ----------------------------------------------------------------------------------------------

    @property
    def _sending(self) -> Outbox:
        assert self._outbox is not None, "checked with the ticket"
        return self._outbox

    def _failure_in(self, epoch: Epoch) -> Callable[[BaseException], None]:
        """Returns a function that takes the failure of a message, which may come long after its epoch."""

        def fail(error: BaseException) -> None:
            with self._turn:
                if self._epoch is not None and self._epoch.name == epoch.name:
                    self._break(error)

        return fail

    def _break(self, error: BaseException) -> None:
        super()._break(error)
        self._give_up_parts(error)

    def _give_up_parts(self, why: BaseException) -> None:
        parts, self._staged = self._staged, {}
        self._give_up(parts.values(), why)

    def _give_up(self, waiting: Iterable[Any], why: BaseException) -> None:
        """Answers those whose parts or requests will not be decided any more."""
        for item in waiting:
            item.answer.set_exception(why if isinstance(why, errors.AbortedError) else self._could_not_apply(why))
