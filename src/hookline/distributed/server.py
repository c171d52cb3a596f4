"""A parameter server: it owns variables, and the first of several decides the order of all transactions."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hookline import errors
from hookline.distributed.ballots import UNDECIDED_SECS, Ballots, Request, Senders
from hookline.distributed.gate import Gate
from hookline.distributed.owner import Owner
from hookline.distributed.protocol import WAITING, Committed, Epoch, Peers, Status, Ticket, Transaction
from hookline.distributed.state import Entry
from hookline.distributed.updates import PortableUpdate
from hookline.distributed.wire import Leaves


class ParameterServer(Owner):
    """Owns variables. It is a plain class: a Ray actor serves it, and tests call it directly.

    Server 0 holds the global step and decides the order. It accepts, refuses and numbers transactions, and sends the
    others numbered messages, in that order. Values are valid only within one epoch and one instance; a call for another
    one is an `AbortedError`. A call may return a `Future`: then its answer comes when the transaction is decided.

    Example:
        >>> server = ParameterServer()
        >>> server.status().epoch is None
        True
    """

    def __init__(self) -> None:
        self._ballots = Ballots()
        super().__init__()

    def _begin(self, epoch: Epoch | None, index: int, peers: Peers | None) -> None:
        super()._begin(epoch, index, peers)
        self._give_up(self._ballots.close_all(), self._lost("was initialised or restored anew"))
        self._senders = Senders()
        self._gate = Gate(epoch.max_staleness) if epoch and epoch.max_staleness is not None else None
        self._ready_at: int | None = None
        self._sealed = False

    def receive(self, message: tuple[Any, ...]) -> Any:
        """Calls the method whose name comes first in a message, with the rest of it. From any thread."""
        method, *args = message
        if method in WAITING:
            return getattr(self, method)(*args)
        with self._turn:
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
    ) -> Future[Committed]:
        """Accepts a transaction and applies it, or refuses it, once all its parts are staged. At the step server only.

        Args:
            ticket: The instance and epoch meant.
            transaction: Its name; none is accepted twice.
            entries: The part for this server.
            last_step: The transaction is refused if the global step is this or more.
            pull: Variables of this server to return, as they are afterwards.
            owners: The other servers that get a part.

        Raises:
            OutOfRangeError: The training has ended.
            AbortedError: The instance or epoch is gone, or the sender was shut out.
            FailedPreconditionError: A variable has no value.
            Exception: An owner could not stage its part: what its `stage` raised.
        """
        self._check(ticket)
        for silent in self._ballots.silent(UNDECIDED_SECS):
            self._shut_out(silent)
        request = Request(entries, last_step, pull, owners)
        self._ballots.ask(transaction, request)
        self._decide_if_ready(transaction)
        return request.answer

    def staged(
        self, ticket: Ticket, transaction: Transaction, owner: int, failure: BaseException | None = None
    ) -> None:
        """Hears from the owner of a part that it is staged, or why it cannot be."""
        self._check(ticket)
        if self._senders.is_decided(transaction) or not self._ballots.vote(transaction, owner, failure):
            # Comes after the message that applies it, if it was accepted.
            self._sending.send([owner], "drop", transaction)
        else:
            self._decide_if_ready(transaction)

    def _decide_if_ready(self, transaction: Transaction) -> None:
        # Those that cannot be accepted need no vote.
        if self._ballots.is_complete(transaction) or self._sealed or not self._senders.may_send(transaction):
            failure = self._ballots.failure(transaction)
            request = self._ballots.close(transaction)
            if request is not None:
                self._decide(transaction, request, failure)

    def _decide(self, transaction: Transaction, request: Request, failure: BaseException | None) -> None:
        accepted, raised = False, failure
        try:
            accepted = failure is None and self._accept(transaction, request)
        except Exception as error:
            raised = error
        if not accepted:
            self._senders.refuse(transaction)
        # In this order, so that a worker admitted at the gate with a count has marks that cover it.
        self._tell(request.owners, transaction, accepted)
        if self._gate is not None:
            self._gate.leave(transaction[0], self._counts[0] if accepted else None)
        self._waiting.notify()
        if raised is not None:
            request.answer.set_exception(raised)
        else:
            request.answer.set_result(self._committed(accepted, self._held_values(request.pull)))

    def _accept(self, transaction: Transaction, request: Request) -> bool:
        if self._sealed:
            raise self._ended()
        self._senders.decide(transaction)
        if self._gate is not None:
            self._gate.check(transaction[0])
        try:
            accepted = self._state.apply(self._state.prepare(request.entries), request.last_step)
        except BaseException as error:
            if self._state.lost:
                self._break(error)
            raise
        if accepted:
            self._senders.accept(transaction)
        return accepted

    def _tell(self, owners: Sequence[int], transaction: Transaction, accepted: bool) -> None:
        self._sending.send(owners, *(("apply", transaction, self._state.step) if accepted else ("drop", transaction)))
        for server in (0, *owners) if accepted else ():
            self._counts[server] += 1

    def _committed(self, accepted: bool, values: dict[str, Leaves]) -> Committed:
        return Committed(accepted, self._state.step, tuple(self._counts), tuple(self._sending.marks), values)

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
            self._tell(owners, transaction, accepted)
        committed = self._committed(accepted, {})
        if (request := self._ballots.close(transaction)) is not None:
            request.answer.set_result(committed)
        return committed

    def fence(self, ticket: Ticket, transaction: Transaction, owner: int) -> None:
        """Excludes a sender and makes `owner` drop its parts, unless the transaction has been decided by now."""
        self._check(ticket)
        if self._shut_out(transaction):
            self._sending.send([owner], "drop_sender", transaction[0])
        else:
            # Comes after the message that applies it, if it was accepted.
            self._sending.send([owner], "drop", transaction)

    def _shut_out(self, transaction: Transaction) -> bool:
        """Excludes the sender of a transaction, unless this is already decided; returns whether it did."""
        if not self._senders.shut_out(transaction):
            return False
        self._decide_if_ready(transaction)
        self._ballots.close(transaction)
        return True

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

    def _ended(self) -> errors.OutOfRangeError:
        return errors.OutOfRangeError(
            None, None, f"The training has ended at global step {self._state.step}: the chief has sealed it."
        )

    def _break(self, error: BaseException) -> None:
        super()._break(error)
        self._give_up(self._ballots.close_all(), error)
