"""A parameter server: it owns variables, and server 0 decides the order of all transactions."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hookline import errors
from hookline.distributed.protocol import (
    BLOCKING_METHODS,
    METHODS,
    Committed,
    Epoch,
    Leaves,
    PeerClient,
    Status,
    Ticket,
    Transaction,
)
from hookline.distributed.server.pending_commits import UNDECIDED_SECS, PendingCommits, Request, Senders
from hookline.distributed.server.server_state import WriteOp
from hookline.distributed.server.variable_owner import REINITIALISED, CountedCondition, VariableOwner, lost
from hookline.distributed.staleness_bound import StalenessBound


class ParameterServer:
    """Owns variables. It is a plain class: a Ray actor serves it, and tests call it directly.

    Server 0, the *step server*, holds the global step. It accepts or refuses transactions, in one order, and sends the
    other servers numbered messages in that order (see docs/transactions.md). Values are valid only within one epoch and
    one instance of the server; a call for another one raises an `AbortedError`. If a call returns a `Future`, its
    answer is sent when the transaction is decided.

    Each epoch has a `VariableOwner`, and its `Decisions`.

    Example:
        >>> server = ParameterServer()
        >>> server.status().epoch is None
        True
    """

    def __init__(self) -> None:
        self._incarnation = uuid.uuid4().hex
        # Held by every call that changes something, and never while a call waits.
        self._turn = threading.RLock()
        self._waiting = CountedCondition()
        self._decisions: Decisions | None = None  # For the current epoch.

    def dispatch(self, message: tuple[Any, ...]) -> Any:
        """Calls the method that a message `(method, *args)` names; from any thread.

        `status`, `begin` and `wait_until_ready` are methods of this class. All others are methods of the epoch's
        `VariableOwner` or `Decisions`; their first argument is the ticket.

        Raises:
            UnimplementedError: Other processes may not call a method of that name.
            AbortedError: The instance or the epoch of the ticket has ended, or its values are lost.
        """
        method, *args = message
        if method not in METHODS:
            raise errors.UnimplementedError.from_message(f"A parameter server has no method {method!r} for others.")
        with contextlib.nullcontext() if method in BLOCKING_METHODS else self._turn:
            if hasattr(ParameterServer, method):
                return getattr(self, method)(*args)
            ticket, *args = args
            decisions = self._decisions_of(ticket)
            if method != "stage":  # `stage` checks this itself, and votes against its part.
                decisions.owner.check()
            return getattr(decisions.owner if hasattr(VariableOwner, method) else decisions, method)(*args)

    def answer(self, message: tuple[Any, ...]) -> Any:
        """Dispatches a call, and waits for its result.

        Raises:
            UnavailableError: The transaction was not decided within `UNDECIDED_SECS`; its outcome is unknown.
        """
        value = self.dispatch(message)
        if not isinstance(value, Future):
            return value
        try:
            return value.result(UNDECIDED_SECS)
        except TimeoutError:
            if value.done():
                return value.result()
            raise errors.UnavailableError.from_message(
                f"Parameter server {self._index} has received no decision for {UNDECIDED_SECS:g} s."
            ) from None

    @property
    def _index(self) -> int:
        return 0 if self._decisions is None else self._decisions.owner.index

    def _decisions_of(self, ticket: Ticket) -> Decisions:
        """Returns the decisions of the ticket's epoch; raises `AbortedError` if that is not the current epoch."""
        decisions, was_restarted = self._decisions, ticket[0] != self._incarnation
        if was_restarted or decisions is None or ticket[1] != decisions.owner.epoch.name:
            raise lost(self._index, "was restarted, and came back empty" if was_restarted else REINITIALISED)
        return decisions

    def status(self) -> Status:
        """Returns the state of this server, for workers."""
        decisions = self._decisions
        if decisions is None:
            return Status(self._incarnation, None, frozenset(), 0, None)
        owner = decisions.owner
        epoch = None if owner.broken else owner.epoch
        return Status(self._incarnation, epoch, owner.state.names(), owner.state.step, decisions.ready_at)

    def begin(self, epoch: Epoch, index: int, peers: PeerClient | None) -> None:
        """Discards all values and starts an epoch, in which this is server `index`.

        Raises:
            AbortedError: The epoch was made for another instance of this server.
        """
        if epoch.incarnations[index] != self._incarnation:
            raise lost(self._index, "was restarted while the variables were initialised")
        before = self._decisions
        self._decisions = Decisions(VariableOwner(epoch, index, peers, self._turn, self._waiting))
        if before is not None:
            before.end()
        self._waiting.notify()

    def wait_until_ready(self, timeout_secs: float) -> bool:
        """Waits until the chief has published the model or the time is over; returns whether it has."""

        def is_ready() -> bool:
            return self._decisions is not None and self._decisions.ready_at is not None

        self._waiting.wait_until(is_ready, timeout_secs)
        return is_ready()


class Decisions:
    """Decides in one epoch, on the step server, which transactions are accepted, their order, and who may begin a run.

    Unused on other servers.

    Attributes:
        owner: This server's variables in that epoch.
        ready_at: The global step at which the chief first published the model; None before.
    """

    def __init__(self, owner: VariableOwner) -> None:
        self.owner = owner
        owner.on_break = self._note_break
        self.ready_at: int | None = None
        self._pending_commits, self._senders = PendingCommits(), Senders()
        # The number of messages sent to each server.
        self._sent_seqs = [0] * len(owner.counts)
        self._staleness_bound = None if owner.epoch.max_staleness is None else StalenessBound(owner.epoch.max_staleness)
        self._training_ended = False

    def end(self) -> None:
        """Ends the epoch here: another one begins."""
        self.owner.end()
        self.owner.give_up(
            self._pending_commits.close_all(), lost(self.owner.index, "was initialised or restored again")
        )

    def _note_break(self, error: BaseException, is_first: bool) -> None:
        self.owner.give_up(self._pending_commits.close_all(), error)
        if self.owner.index == 0 and is_first:
            # Otherwise the owners would keep their parts, and the workers would wait for these.
            for server in range(1, len(self._sent_seqs)):
                self.owner.notify(server, "abandon", str(self.owner.could_not_apply(error)))

    def publish(self) -> None:
        """Publishes the model: from now on workers may train it, even if an earlier training has ended."""
        if self.ready_at is None:
            self.ready_at = self.owner.state.step
        self._training_ended = False
        self.owner.waiting.notify()

    def end_training(self) -> Committed:
        """Ends the training: further transactions are refused. Returns the current state for `wait_delivered`."""
        self._training_ended = True
        self.owner.waiting.notify()
        return self._committed(True, {})

    # Transactions ----------------------------------------------------------------------------------------------

    def commit(
        self,
        transaction: Transaction,
        entries: Sequence[WriteOp],
        last_step: int | None = None,
        pull: Sequence[str] = (),
        owners: Sequence[int] = (),
    ) -> Committed | Future[Committed]:
        """Accepts and applies a transaction, or refuses it, once all its parts are staged. None is accepted twice.

        See `Request` for the arguments.

        Raises:
            OutOfRangeError: The training has ended.
            AbortedError: The instance or epoch has ended, or the sender was excluded.
            FailedPreconditionError: A variable has no value.
            Exception: The error of an owner's `stage`.
        """
        for silent in self._pending_commits.timed_out():
            self._exclude(silent)
        request = Request(entries, last_step, pull, owners)
        self._pending_commits.add_request(transaction, request)
        self._decide_if_ready(transaction)
        return request.answer.result() if request.answer.done() else request.answer

    def vote(self, transaction: Transaction, owner: int, failure: BaseException | None = None) -> None:
        """Records the vote of a part's owner: `None` if the part is staged, else the error."""
        if not self._senders.may_commit(transaction) or not self._pending_commits.vote(transaction, owner, failure):
            # If the transaction was accepted, the owner gets this after the message that applies the part.
            self._send_in_order([owner], "drop", transaction)
        else:
            self._decide_if_ready(transaction)

    def _decide_if_ready(self, transaction: Transaction) -> None:
        # A transaction that cannot be accepted need not wait for votes.
        pending = self._pending_commits.find(transaction)
        if pending and (pending.is_complete or self._training_ended or not self._senders.may_commit(transaction)):
            self._pending_commits.close(transaction)
            if pending.request is not None:
                self._decide(transaction, pending.request, pending.failure)

    def _decide(self, transaction: Transaction, request: Request, failure: BaseException | None) -> None:
        accepted, raised = False, failure
        # If the request arrives after its refusal, it must not end the next run of its sender.
        bound = None if self._senders.is_decided(transaction) else self._staleness_bound
        try:
            accepted = failure is None and self._accept(transaction, request)
        except Exception as error:
            raised = error
        self._senders.decide(transaction, accepted)
        # In this order: if a worker is admitted with a transaction count, its `sent_seqs` include those transactions.
        self._notify_owners(request.owners, transaction, accepted)
        if bound is not None:
            bound.record_decision(transaction[0], self.owner.counts[0] if accepted else None)
        self.owner.waiting.notify()
        if raised is not None:
            request.answer.set_exception(raised)
        else:
            request.answer.set_result(self._committed(accepted, self.owner.held_values(request.pull)))

    def _accept(self, transaction: Transaction, request: Request) -> bool:
        if self._training_ended:
            raise self._training_ended_error()
        self._senders.check(transaction)
        if self._staleness_bound is not None:
            self._staleness_bound.check(transaction[0])
        try:
            return self.owner.state.apply(self.owner.state.prepare(request.entries), request.last_step)
        except BaseException as error:  # If values were lost, end the epoch.
            if self.owner.state.has_lost_values:
                self.owner.break_off(error)
            raise

    def _notify_owners(self, owners: Sequence[int], transaction: Transaction, accepted: bool) -> None:
        self._send_in_order(
            owners, *(("apply", transaction, self.owner.state.step) if accepted else ("drop", transaction))
        )
        for server in (0, *owners) if accepted else ():
            self.owner.counts[server] += 1

    def _send_in_order(self, servers: Sequence[int], *message: Any) -> None:
        """Sends servers a message, which they handle after all earlier ones."""
        for server in servers:
            self._sent_seqs[server] += 1
            self.owner.notify(server, "deliver", self._sent_seqs[server], message)

    def _committed(self, accepted: bool, values: dict[str, Leaves]) -> Committed:
        return Committed(accepted, self.owner.state.step, tuple(self.owner.counts), tuple(self._sent_seqs), values)

    def outcome(self, transaction: Transaction, owners: Sequence[int]) -> Committed:
        """Returns the outcome of a transaction whose sender got no answer; refuses it, if it is undecided.

        It must be the last transaction of its sender; `owners` are the other servers that may have parts of it.
        """
        bound = None if self._senders.is_decided(transaction) else self._staleness_bound
        accepted = self._senders.outcome(transaction)
        if not accepted:
            self._notify_owners(owners, transaction, accepted)
        if bound is not None:
            bound.record_decision(transaction[0])
            self.owner.waiting.notify()
        committed = self._committed(accepted, {})
        if (request := self._pending_commits.close(transaction)) is not None:
            request.answer.set_result(committed)
        return committed

    def report_stuck(self, transaction: Transaction, owner: int) -> None:
        """Handles a report that `owner` has had a part for `ASK_SECS` or more.

        If the transaction is undecided and its request overdue, the sender seems to be dead and is excluded. The owner
        drops the part, unless the transaction stays undecided: if its request has arrived, another owner may be busy.
        """
        if self._senders.may_commit(transaction):
            if not self._pending_commits.is_request_overdue(transaction, owner):
                return  # The owner asks again.
            self._exclude(transaction)
        # If the transaction was accepted, the owner gets this after the message that applies the part.
        self._send_in_order([owner], "drop", transaction)

    def _exclude(self, transaction: Transaction) -> None:
        """Excludes the sender of a transaction, unless the transaction is already decided."""
        self._senders.exclude(transaction)
        self._decide_if_ready(transaction)

    def begin_snapshot(self, name: str, names: Mapping[int, Sequence[str]]) -> Committed:
        """Begins a snapshot: every server keeps the values of `names` after all transactions so far, for `collect`.

        Returns:
            The current state, with the values of the step server.
        """
        for owner, wanted in names.items():
            if owner != 0:
                self._send_in_order([owner], "begin_snapshot", name, wanted)
        return self._committed(True, self.owner.state.values(names.get(0, ())))

    def _training_ended_error(self) -> errors.OutOfRangeError:
        return errors.OutOfRangeError.from_message(
            f"The training has ended at global step {self.owner.state.step}: the chief accepts no more updates."
        )

    # Waiting ----------------------------------------------------------------------------------------------------

    def admit(self, sender: str, run: int, since: int, timeout_secs: float) -> tuple[int, int, tuple[int, ...]] | None:
        """Waits until the bound on staleness lets a worker begin a step, or the time is over.

        See `StalenessBound.admit` for the arguments.

        Returns:
            The result of `StalenessBound.admit`, and the number of messages sent to each server so far; `None` if the
            time is over.

        Raises:
            OutOfRangeError: The training has ended.
        """
        bound = self._staleness_bound
        found: list[tuple[int, int]] = []

        def may_begin() -> bool:
            if (
                bound is not None
                and not self._training_ended
                and (admitted := bound.admit(sender, since, run)) is not None
            ):
                found.append(admitted)
            return bool(found) or self._training_ended

        with self.owner.waited(may_begin, timeout_secs):
            if self._training_ended:
                raise self._training_ended_error()
            return (*found[0], tuple(self._sent_seqs)) if found else None

    def renew(self, sender: str) -> None:
        """Records that an admitted worker is alive; not delayed by the compilation of an update."""
        if self._staleness_bound is not None:
            self._staleness_bound.renew(sender)

    def leave(self, sender: str, run: int) -> None:
        """Records that a worker's run, admitted or still waiting for admission, ends without an update."""
        if self._staleness_bound is not None:
            self._staleness_bound.leave(sender, run)
            self.owner.waiting.notify()

    def wait_for_step(self, step: int, timeout_secs: float) -> tuple[int, bool]:
        """Waits until the global step is at least `step`, the training has ended or the time is over.

        Returns:
            The global step, and whether the training has ended.
        """
        with self.owner.waited(lambda: self.owner.state.step >= step or self._training_ended, timeout_secs):
            return self.owner.state.step, self._training_ended
