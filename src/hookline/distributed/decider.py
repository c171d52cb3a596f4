"""The step server's decisions: it accepts, refuses and numbers transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from hookline import errors
from hookline.distributed.ballots import Ballots, Request, Senders
from hookline.distributed.gate import Gate
from hookline.distributed.owner import Owner
from hookline.distributed.protocol import Committed, Epoch, Peers, Ticket, Transaction
from hookline.distributed.state import Entry
from hookline.distributed.wire import Leaves


class Decider(Owner):
    """What the step server does with transactions. The other servers do not use it."""

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

    def commit(
        self,
        ticket: Ticket,
        transaction: Transaction,
        entries: Sequence[Entry],
        last_step: int | None = None,
        pull: Sequence[str] = (),
        owners: Sequence[int] = (),
    ) -> Committed | Future[Committed]:
        """Accepts a transaction and applies it, or refuses it, once all its parts are staged; none is accepted twice.

        The arguments are those of a `Request`.

        Raises:
            OutOfRangeError: The training has ended.
            AbortedError: The instance or epoch is gone, or the sender was shut out.
            FailedPreconditionError: A variable has no value.
            Exception: An owner could not stage its part: what its `stage` raised.
        """
        self._check(ticket)
        for silent in self._ballots.silent():
            self._shut_out(silent)
        request = Request(entries, last_step, pull, owners)
        self._ballots.ask(transaction, request)
        self._decide_if_ready(transaction)
        return request.answer.result() if request.answer.done() else request.answer

    def staged(
        self, ticket: Ticket, transaction: Transaction, owner: int, failure: BaseException | None = None
    ) -> None:
        """Hears from the owner of a part that it is staged, or why it cannot be."""
        self._check(ticket)
        if not self._senders.may_send(transaction) or not self._ballots.vote(transaction, owner, failure):
            # Comes after the message that applies it, if it was accepted.
            self._sending.send([owner], "drop", transaction)
        else:
            self._decide_if_ready(transaction)

    def _decide_if_ready(self, transaction: Transaction) -> None:
        # Those that cannot be accepted need no vote.
        ballot = self._ballots.find(transaction)
        if ballot and (ballot.is_complete or self._sealed or not self._senders.may_send(transaction)):
            self._ballots.close(transaction)
            if ballot.request is not None:
                self._decide(transaction, ballot.request, ballot.failure)

    def _decide(self, transaction: Transaction, request: Request, failure: BaseException | None) -> None:
        accepted, raised = False, failure
        # A request that comes after its refusal does not end the next run of its sender.
        gate = None if self._senders.is_decided(transaction) else self._gate
        try:
            accepted = failure is None and self._accept(transaction, request)
        except Exception as error:
            raised = error
        self._senders.decide(transaction, accepted)
        # In this order, so that a worker admitted at the gate with a count has marks that cover it.
        self._tell(request.owners, transaction, accepted)
        if gate is not None:
            gate.decided(transaction[0], self._counts[0] if accepted else None)
        self._waiting.notify()
        if raised is not None:
            request.answer.set_exception(raised)
        else:
            request.answer.set_result(self._committed(accepted, self._held_values(request.pull)))

    def _accept(self, transaction: Transaction, request: Request) -> bool:
        if self._sealed:
            raise self._ended()
        self._senders.check(transaction)
        if self._gate is not None:
            self._gate.check(transaction[0])
        try:
            return self._state.apply(self._state.prepare(request.entries), request.last_step)
        except BaseException as error:
            if self._state.lost:
                self._break(error)
            raise

    def _tell(self, owners: Sequence[int], transaction: Transaction, accepted: bool) -> None:
        self._sending.send(owners, *(("apply", transaction, self._state.step) if accepted else ("drop", transaction)))
        for server in (0, *owners) if accepted else ():
            self._counts[server] += 1

    def _committed(self, accepted: bool, values: dict[str, Leaves]) -> Committed:
        return Committed(accepted, self._state.step, tuple(self._counts), tuple(self._sending.marks), values)

    def outcome(self, ticket: Ticket, transaction: Transaction, owners: Sequence[int]) -> Committed:
        """Returns the outcome of a transaction whose sender got no answer; if it is undecided, it is refused now.

        It must be the last one of its sender; `owners` are the other servers that may hold parts of it.
        """
        self._check(ticket)
        gate = None if self._senders.is_decided(transaction) else self._gate
        accepted = self._senders.outcome(transaction)
        if not accepted:
            self._tell(owners, transaction, accepted)
        if gate is not None:
            gate.decided(transaction[0])
            self._waiting.notify()
        committed = self._committed(accepted, {})
        if (request := self._ballots.close(transaction)) is not None:
            request.answer.set_result(committed)
        return committed

    def fence(self, ticket: Ticket, transaction: Transaction, owner: int) -> None:
        """Hears that `owner` has kept a part for long, and makes it drop the part unless it is still to be decided.

        A sender whose request is missing as well is excluded, because it seems to have gone. One whose request is here
        has done its share: it waits for another owner, which may be busy.
        """
        self._check(ticket)
        if self._senders.may_send(transaction):
            if not self._ballots.misses(transaction, owner):
                return  # the owner asks again
            self._shut_out(transaction)
        # Comes after the message that applies it, if it was accepted.
        self._sending.send([owner], "drop", transaction)

    def _shut_out(self, transaction: Transaction) -> None:
        """Excludes the sender of a transaction, unless this is already decided."""
        self._senders.shut_out(transaction)
        self._decide_if_ready(transaction)

    def cut(self, ticket: Ticket, name: str, names: Mapping[int, Sequence[str]]) -> Committed:
        """Makes every server keep its values (`names`, for each) after all transactions so far, for `collect`.

        Returns:
            The current state, with the values of this server.
        """
        self._check(ticket)
        for owner, wanted in names.items():
            if owner != 0:
                self._sending.send([owner], "cut", name, wanted)
        return self._committed(True, self._state.values(names.get(0, ())))

    def _ended(self) -> errors.OutOfRangeError:
        return errors.OutOfRangeError(
            None, None, f"The training has ended at global step {self._state.step}: the chief has sealed it."
        )

    def _break(self, error: BaseException) -> None:
        known = self._broken is not None
        super()._break(error)
        self._give_up(self._ballots.close_all(), error)
        if self._index == 0 and not known:
            # They would keep their parts, and the workers that wait for these.
            self._sending.abandon(str(self._could_not_apply(error)))
