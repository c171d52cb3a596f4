"""A parameter server: owns variables, applies updates to them, and decides their order."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline import errors
from hookline.distributed.gate import Gate
from hookline.distributed.identity import Member
from hookline.distributed.messages import Inbox, Outbox
from hookline.distributed.protocol import Committed, Epoch, Peers, Pulled, Status, Ticket, Transaction
from hookline.distributed.staging import STAGED_SECS, Cuts, Senders, Staging
from hookline.distributed.state import Entry, ServerState
from hookline.distributed.updates import PortableUpdate
from hookline.distributed.wire import Leaves, Structure

logger = logging.getLogger(__name__)


class ParameterServer(Member):
    """Owns variables. It is a plain class: Ray makes an actor of it, and tests call it directly.

    Server 0 holds the global step and decides the order. It accepts, refuses and numbers transactions, and sends the
    others numbered messages, in that order. Values are valid only within one epoch and one instance; a call for another
    one is an `AbortedError`.

    Example:
        >>> server = ParameterServer()
        >>> server.status().epoch is None
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin(None, 0, None)

    def _begin(self, epoch: Epoch | None, index: int, peers: Peers | None) -> None:
        self._begin_epoch(epoch, index)
        self._state = ServerState(epoch.step_name if epoch and index == 0 else None)
        self._staged = Staging()
        self._cuts = Cuts()
        self._senders = Senders()
        self._gate = Gate(epoch.max_staleness) if epoch and epoch.max_staleness is not None else None
        self._ready_at: int | None = None
        self._sealed = False
        self._outbox = Outbox(epoch, peers, self._failure_in(epoch)) if epoch else None
        self._inbox = Inbox()
        # On the step server, the number of transactions that reached each server; on others only their own number
        # changes.
        self._counts = [0] * len(epoch.incarnations if epoch else ())

    def receive(self, message: tuple[Any, ...]) -> Any:
        """Calls the method whose name comes first in a message, with the rest of it."""
        method, *args = message
        return getattr(self, method)(*args)

    # Epochs -----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Returns the server's description of itself."""
        epoch = None if self._broken else self._epoch
        return Status(self._incarnation, epoch, self._state.names(), self._state.step, self._ready_at)

    def begin(self, epoch: Epoch, index: int, peers: Peers | None) -> None:
        """Forgets everything and starts an epoch.

        Args:
            epoch: The new epoch.
            index: The number of this server in it.
            peers: The other servers.

        Raises:
            AbortedError: The epoch was made for another instance.
        """
        if epoch.incarnations[index] != self._incarnation:
            raise self._lost("was restarted while the variables were initialised")
        self._begin(epoch, index, peers)
        self._waiting.notify()

    def register(
        self,
        ticket: Ticket,
        updates: Sequence[PortableUpdate],
        variables: Mapping[str, str] = types.MappingProxyType({}),
        owners: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        """Registers updates, which transactions then name, and new variables of the chief's graph."""
        self._check(ticket)
        self._state.register(updates)
        assert self._epoch is not None
        known = {update.name: update.fingerprint for update in updates}
        self._epoch = self._epoch._replace(
            updates={**self._epoch.updates, **known},
            variables={**self._epoch.variables, **variables},
            owners={**self._epoch.owners, **owners},
        )

    def publish(self, ticket: Ticket) -> None:
        """Admits workers: the model can be trained from here on, even if an earlier training has ended."""
        self._check(ticket)
        if self._ready_at is None:
            self._ready_at = self._state.step
        self._sealed = False
        self._waiting.notify()

    def seal(self, ticket: Ticket) -> Committed:
        """Ends the training: further transactions are refused. Returns the current state for `wait_delivered`."""
        self._check(ticket)
        self._sealed = True
        self._waiting.notify()
        return self._committed(True, {})

    # Transactions -----------------------------------------------------------------------------------------------

    def commit(
        self,
        ticket: Ticket,
        transaction: Transaction,
        entries: Sequence[Entry],
        last_step: int | None = None,
        pull: Sequence[str] = (),
        owners: Sequence[int] = (),
    ) -> Committed:
        """Accepts a transaction and applies it, or refuses it. Called at the step server only.

        Args:
            ticket: The instance and epoch meant.
            transaction: Its name; none is accepted twice.
            entries: The part for this server.
            last_step: The transaction is refused if the global step is this or more.
            pull: Variables of this server to return, as they are afterwards.
            owners: The other servers that hold staged parts of it.

        Raises:
            OutOfRangeError: The training has ended.
            AbortedError: The instance or epoch is gone, or the sender was shut out.
            FailedPreconditionError: A variable has no value.
        """
        self._check(ticket)
        accepted = False
        try:
            accepted = self._accept(transaction, entries, last_step)
        finally:
            self._decided(transaction, owners, accepted)
        # The commit is final: a failing read must not fail the call.
        held = self._state.names()
        return self._committed(accepted, self._state.values([name for name in pull if name in held]))

    def _decided(self, transaction: Transaction, owners: Sequence[int], accepted: bool) -> None:
        # In this order, so that a worker admitted at the gate with a count has marks that cover it.
        self._sending.send(owners, *(("apply", transaction, self._state.step) if accepted else ("drop", transaction)))
        for server in (0, *owners) if accepted else ():
            self._counts[server] += 1
        if self._gate is not None:
            self._gate.leave(transaction[0], self._counts[0] if accepted else None)
        self._waiting.notify()

    def _committed(self, accepted: bool, values: dict[str, Leaves]) -> Committed:
        return Committed(accepted, self._state.step, tuple(self._counts), tuple(self._sending.marks), values)

    def _accept(self, transaction: Transaction, entries: Sequence[Entry], last_step: int | None) -> bool:
        if self._sealed:
            raise self._ended()
        self._senders.decide(transaction)
        if self._gate is not None:
            self._gate.check(transaction[0])
        accepted = self._apply(self._state.prepare(entries), last_step)
        if accepted:
            self._senders.accept(transaction)
        return accepted

    def outcome(self, ticket: Ticket, transaction: Transaction, owners: Sequence[int]) -> Committed:
        """Returns the outcome of a transaction whose sender got no answer; if it is undecided, it is refused now.

        Args:
            ticket: The instance and epoch meant.
            transaction: The last transaction of its sender.
            owners: The other servers that may hold staged parts of it.
        """
        self._check(ticket)
        accepted = self._senders.outcome(transaction)
        if not accepted:
            self._sending.send(owners, "drop", transaction)
        return self._committed(accepted, {})

    def _apply(self, prepared: Any, last_step: int | None) -> bool:
        try:
            return self._state.apply(prepared, last_step)
        except BaseException as error:
            if self._state.lost:
                self._break(error)
            raise

    def stage(self, ticket: Ticket, transaction: Transaction, entries: Sequence[Entry]) -> None:
        """Keeps this server's part of a transaction until the step server decides on it.

        Raises:
            Exception: It cannot be applied: the update's function raised, or a variable has no value.
        """
        self._check(ticket)
        self._state.check(entries)
        self._staged.add(transaction, entries)
        for silent in self._staged.silent(STAGED_SECS):
            self._sending.call(0, "fence", silent, self._index)

    def drop(self, ticket: Ticket, transaction: Transaction) -> None:
        """Forgets a staged part of a transaction that its sender gives up."""
        self._check(ticket)
        self._staged.drop(transaction)
        self._waiting.notify()

    def fence(self, ticket: Ticket, transaction: Transaction, owner: int) -> None:
        """Excludes a sender and makes `owner` drop its parts, unless the transaction has been decided by now."""
        self._check(ticket)
        if self._senders.shut_out(transaction):
            self._sending.send([owner], "drop_sender", transaction[0])
        else:
            # Comes after the message that applies it, if it was accepted.
            self._sending.send([owner], "drop", transaction)

    # From the step server to the owners -------------------------------------------------------------------------

    def deliver(self, ticket: Ticket, mark: int, message: tuple[Any, ...]) -> None:
        """Takes message number `mark` from the step server, to be carried out after all earlier ones."""
        self._check(ticket)
        for due in self._inbox.receive(mark, message):
            self._handle(*due)
        self._waiting.notify()

    def _handle(self, kind: str, *args: Any) -> None:
        if kind == "cut":
            name, names = args
            self._cuts.add(name, self._state.values(names))
        elif kind == "drop_sender":
            self._staged.drop_sender(args[0])
        else:
            if kind == "apply":
                self._apply_staged(*args)
            self._staged.drop(args[0])

    def _apply_staged(self, transaction: Transaction, step: int) -> None:
        # The step server has counted it, so it can no longer be undone.
        entries = self._staged.get(transaction)
        if entries is None:
            self._break(RuntimeError(f"the staged part of transaction {transaction} is gone"))
            return
        try:
            self._state.apply(self._state.prepare(entries), None)
        except Exception as error:
            self._break(error)
            return
        self._state.step = step
        self._counts[self._index] += 1

    # Reading ----------------------------------------------------------------------------------------------------

    def pull(self, ticket: Ticket, names: Sequence[str]) -> Pulled:
        """Returns values as they are now."""
        self._check(ticket)
        return Pulled(self._counts[self._index], self._state.values(names))

    def pull_behind(
        self, ticket: Ticket, names: Sequence[str], transaction: Transaction | None, mark: int, timeout_secs: float
    ) -> Pulled | None:
        """Returns values after a transaction or a message has arrived; `None` if the time is over.

        Args:
            ticket: Which instance and epoch is meant.
            names: The names of the variables.
            transaction: If it is staged here, wait until it is applied or dropped.
            mark: Wait until messages up to this one have arrived.
            timeout_secs: How long to wait.
        """

        def has_come() -> bool:
            return transaction not in self._staged and self._inbox.delivered >= mark

        with self._waited(ticket, has_come, timeout_secs):
            return self.pull(ticket, names) if has_come() else None

    def structures(self, ticket: Ticket, names: Sequence[str]) -> dict[str, Structure]:
        """Returns the tree structures of variables."""
        self._check(ticket)
        return self._state.structures(names)

    def cut(self, ticket: Ticket, name: str, names: Mapping[int, Sequence[str]]) -> Committed:
        """Makes every server keep its values after all transactions so far, for `collect`.

        Args:
            ticket: Which instance and epoch is meant.
            name: A name for the values.
            names: The variables, for each server.

        Returns:
            The current state, with the values of this server.
        """
        self._check(ticket)
        for owner, wanted in names.items():
            if owner != 0:
                self._sending.send([owner], "cut", name, wanted)
        return self._committed(True, self._state.values(names.get(0, ())))

    def collect(self, ticket: Ticket, name: str, timeout_secs: float) -> dict[str, Leaves] | None:
        """Returns the values kept under a name, once; `None` if they do not arrive in time."""
        with self._waited(ticket, lambda: name in self._cuts, timeout_secs):
            return self._cuts.pop(name)

    # Waiting ----------------------------------------------------------------------------------------------------

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Blocks until the chief admits workers or the time is over; returns whether it has. Open to any process."""
        self._waiting.until(lambda: self._ready_at is not None, timeout_secs)
        return self._ready_at is not None

    def admit(
        self, ticket: Ticket, sender: str, since: int, timeout_secs: float
    ) -> tuple[int, int, tuple[int, ...]] | None:
        """Blocks until a worker may begin a step without any values getting too old, or the time is over.

        Args:
            ticket: Which instance and epoch is meant.
            sender: The worker.
            since: The number of transactions after which its values were read.
            timeout_secs: How long to wait.

        Returns:
            The result of `Gate.admit`, and the number of messages sent to each server by then; `None` if the time is
            over.

        Raises:
            OutOfRangeError: The training has ended.
        """
        # The gate of the ticket's epoch; otherwise the ticket is refused.
        gate = self._gate
        found: list[tuple[int, int]] = []

        def may_begin() -> bool:
            if gate is not None and not self._sealed and (admitted := gate.admit(sender, since)) is not None:
                found.append(admitted)
            return bool(found) or self._sealed

        with self._waited(ticket, may_begin, timeout_secs):
            if self._sealed:
                raise self._ended()
            return (*found[0], tuple(self._sending.marks)) if found else None

    def renew(self, ticket: Ticket, sender: str) -> None:
        """Records that an admitted worker is alive."""
        self._check(ticket)
        if self._gate is not None:
            self._gate.renew(sender)

    def leave(self, ticket: Ticket, sender: str) -> None:
        """Records that an admitted worker will not commit."""
        self._check(ticket)
        if self._gate is not None:
            self._gate.leave(sender)
            self._waiting.notify()

    def wait_for_step(self, ticket: Ticket, step: int, timeout_secs: float) -> tuple[int, bool]:
        """Blocks until the global step is at least `step`, the training has ended or the time is over.

        Returns:
            The global step, and whether the training has ended.
        """
        with self._waited(ticket, lambda: self._state.step >= step or self._sealed, timeout_secs):
            return self._state.step, self._sealed

    def wait_delivered(self, ticket: Ticket, mark: int, timeout_secs: float) -> bool:
        """Blocks until messages up to `mark` have arrived or the time is over; returns whether they have."""
        with self._waited(ticket, lambda: self._inbox.delivered >= mark, timeout_secs):
            return self._inbox.delivered >= mark

    # What it sends ----------------------------------------------------------------------------------------------

    def _ended(self) -> errors.OutOfRangeError:
        return errors.OutOfRangeError(
            None, None, f"The training has ended at global step {self._state.step}: the chief has sealed it."
        )

    @property
    def _sending(self) -> Outbox:
        assert self._outbox is not None, "checked with the ticket"
        return self._outbox

    def _failure_in(self, epoch: Epoch) -> Callable[[BaseException], None]:
        """Returns a function that takes the failure of a message, which may come long after its epoch."""

        def fail(error: BaseException) -> None:
            if self._epoch is not None and self._epoch.name == epoch.name:
                self._break(error)

        return fail
