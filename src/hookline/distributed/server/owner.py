"""The owner of variables: it stages parts of transactions, and applies them at the step server's decision."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hookline import clock, errors, log
from hookline.distributed.protocol import Epoch, Leaves, Peers, Pulled, Structure, Ticket, Transaction
from hookline.distributed.server.server_state import Entry, ServerState

logger = log.of(__name__)

STAGED_SECS = 60.0
"""The least time for which a part is kept while its sender's request has not come to the step server."""

ASK_SECS = STAGED_SECS / 2
"""The time for which a part stays staged before its owner asks the step server about it, and before it asks again."""

CUT_SECS = 300.0
"""The time for which the values of a snapshot are kept for its reader: longer than a lost message may take."""

LONGEST_SECS = 60.0
"""The longest wait of a thread, whatever its caller asked for: the caller may be gone, and asks again if not."""


class Waiting:
    """A condition whose notification costs nothing while no thread waits; `count` is the number of waiting threads.

    Example:
        >>> Waiting().until(lambda: True, timeout_secs=1.0)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def until(self, reached: Callable[[], bool], timeout_secs: float) -> None:
        """Blocks until a condition holds or the time is over, at most for `LONGEST_SECS`."""
        with self._changed:
            # Counted before the check, so that a thread that changes something after the check sees the count.
            self.count += 1
            try:
                clock.wait_for(self._changed, reached, min(timeout_secs, LONGEST_SECS))
            finally:
                self.count -= 1

    def notify(self) -> None:
        """Makes all waiting threads check again."""
        if self.count:
            with self._changed:
                self._changed.notify_all()


@dataclass
class _Part:
    """A part of a transaction that waits for the step server's decision.

    Attributes:
        entries: The operations of the part.
        pull: The variables whose values its sender wants afterwards.
        answer: The future that gets these values.
        since: The time when it came, or when the step server was last asked about it.
    """

    entries: Sequence[Entry]
    pull: Sequence[str]
    answer: Future[Pulled] = field(default_factory=Future)
    since: float = field(default_factory=clock.monotonic)


class Owner:
    """The work of every parameter server, whether or not it is the step server. It is in one epoch at a time.

    The step server's messages to it are numbered, and carried out in order, however they arrive.
    """

    def __init__(self) -> None:
        self._incarnation = uuid.uuid4().hex
        # Held by every call that changes something, and by no call that waits.
        self._turn = threading.RLock()
        self._waiting = Waiting()
        self._staged: dict[Transaction, _Part] = {}
        self._peers: Peers | None = None
        self._begin(None, 0, None)

    def _begin(self, epoch: Epoch | None, index: int, peers: Peers | None) -> None:
        # This comes first: a reader during a restart of the epoch checks the epoch last.
        self._epoch, self._index = epoch, index
        self._broken: BaseException | None = None
        self._give_up_parts(self._lost("was initialised or restored anew"))
        if self._peers is not None:
            self._peers.close()
        self._peers = peers
        self._state = ServerState(epoch.step_name if epoch and index == 0 else None)
        # Snapshots by name: the time when each was made, and its values.
        self._cuts: dict[str, tuple[float, dict[str, Leaves]]] = {}
        # The number of the step server's messages that were carried out, and the messages that came before their turn.
        self._delivered, self._early = 0, dict[int, tuple[Any, ...]]()
        # On the step server, the number of transactions that reached each server; on others only their own number
        # changes.
        self._counts = [0] * len(epoch.incarnations if epoch else ())

    # The epoch --------------------------------------------------------------------------------------------------

    def _is_current(self, ticket: Ticket) -> bool:
        return self._epoch is not None and ticket == (self._incarnation, self._epoch.name)

    def _check(self, ticket: Ticket) -> None:
        if self._broken is not None:
            raise self._could_not_apply(self._broken) from self._broken
        if not self._is_current(ticket):
            restarted = ticket[0] != self._incarnation
            raise self._lost(
                "was restarted, and came back empty"
                if restarted
                else "was initialised or restored anew since this session was created"
            )

    @contextmanager
    def _waited(self, ticket: Ticket, reached: Callable[[], bool], timeout_secs: float) -> Iterator[None]:
        """Blocks until a condition holds, the epoch ends or the time is over; then its body reads.

        Waiting calls have their own threads, so the epoch may end at any moment. The values read are valid if the epoch
        had not ended afterwards.
        """
        self._waiting.until(lambda: self._broken is not None or not self._is_current(ticket) or reached(), timeout_secs)
        self._check(ticket)
        try:
            yield
        finally:
            self._check(ticket)

    def _lost(self, what: str) -> errors.AbortedError:
        message = f"Parameter server {self._index} {what}. The session is lost; a recoverable one starts anew."
        return errors.AbortedError.from_message(message)

    def _could_not_apply(self, error: BaseException) -> errors.AbortedError:
        if self._index != 0 and isinstance(error, errors.AbortedError):
            # The step server's own message.
            return errors.AbortedError.from_message(str(error))
        return self._lost(f"could not apply an accepted update ({_said(error)})")

    def _break(self, error: BaseException) -> None:
        if self._broken is None:
            logger.error("Parameter server %d is broken: %s", self._index, _said(error))
            self._broken = error
        else:
            # The first error is the cause.
            logger.info("Parameter server %d is broken, and then: %s", self._index, _said(error))
        self._waiting.notify()
        self._give_up_parts(error)

    def _give_up_parts(self, why: BaseException) -> None:
        parts, self._staged = self._staged, {}
        self._give_up(parts.values(), why)

    def _give_up(self, waiting: Iterable[Any], why: BaseException) -> None:
        """Answers the senders whose parts or requests will not be decided any more."""
        for item in waiting:
            item.answer.set_exception(why if isinstance(why, errors.AbortedError) else self._could_not_apply(why))

    def _call(self, server: int, method: str, *args: Any) -> None:
        """Calls a method of another server, without waiting."""
        assert self._epoch is not None, "checked with the ticket"
        assert self._peers is not None, "several servers know each other"
        self._peers.tell(server, method, self._epoch.ticket(server), *args, on_failure=self._failure_in(self._epoch))

    def _failure_in(self, epoch: Epoch) -> Callable[[BaseException], None]:
        """Returns a function that takes the failure of a message, which may come long after its epoch."""

        def fail(error: BaseException) -> None:
            with self._turn:
                if self._epoch is not None and self._epoch.name == epoch.name:
                    self._break(error)

        return fail

    # Parts of transactions --------------------------------------------------------------------------------------

    def stage(
        self, ticket: Ticket, transaction: Transaction, entries: Sequence[Entry], pull: Sequence[str] = ()
    ) -> Future[Pulled] | None:
        """Keeps this server's part of a transaction until the step server decides on it, and tells the step server.

        If values are to be pulled, the answer comes with the decision, and has the values of that moment.

        Raises:
            Exception: The part cannot be applied: the update's function raised, or a variable has no value.
        """
        if transaction in self._staged:
            raise errors.InternalError.from_message(f"Transaction {transaction} was sent twice.")
        try:
            self._check(ticket)
            self._state.check(entries)
        except Exception as error:
            if self._is_current(ticket):
                self._call(0, "staged", transaction, self._index, error)
            raise
        part = self._staged[transaction] = _Part(entries, pull)
        self._call(0, "staged", transaction, self._index)
        for silent, old in self._staged.items():
            if part.since - old.since > ASK_SECS:
                old.since = part.since
                self._call(0, "fence", silent, self._index)
        return part.answer if pull else None

    def deliver(self, ticket: Ticket, mark: int, message: tuple[Any, ...]) -> None:
        """Takes message number `mark` from the step server, to be carried out after all earlier ones."""
        self._check(ticket)
        self._early[mark] = message
        while (due := self._early.pop(self._delivered + 1, None)) is not None:
            self._handle(*due)
            self._delivered += 1
        self._waiting.notify()

    def abandon(self, ticket: Ticket, why: str) -> None:
        """Receives the step server's message that the epoch is lost."""
        self._check(ticket)
        self._break(errors.AbortedError.from_message(why))

    def _handle(self, kind: str, *args: Any) -> None:
        if kind == "cut":
            name, names = args
            now = clock.monotonic()
            for old in [old for old, (since, _) in list(self._cuts.items()) if now - since > CUT_SECS]:
                self._cuts.pop(old, None)
            self._cuts[name] = now, self._state.values(names)
            return
        part = self._staged.pop(args[0], None)
        if kind == "apply":
            self._apply_staged(part, *args)
        if part is None:
            return
        if self._broken is not None:
            self._give_up([part], self._broken)
        else:
            part.answer.set_result(Pulled(self._counts[self._index], self._held_values(part.pull)))

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

    def _held_values(self, names: Sequence[str]) -> dict[str, Leaves]:
        """Returns values for the sender of a transaction: that is final, and a failing read must not hide it."""
        held = self._state.names()
        return self._state.values([name for name in names if name in held])

    # Reading ----------------------------------------------------------------------------------------------------

    def pull(self, ticket: Ticket, names: Sequence[str]) -> Pulled:
        """Returns the present values."""
        self._check(ticket)
        return Pulled(self._counts[self._index], self._state.values(names))

    def pull_behind(self, ticket: Ticket, names: Sequence[str], mark: int, timeout_secs: float) -> Pulled | None:
        """Returns values after the step server's messages up to `mark` have arrived; `None` if the time is over."""
        with self._waited(ticket, lambda: self._delivered >= mark, timeout_secs):
            return self.pull(ticket, names) if self._delivered >= mark else None

    def structures(self, ticket: Ticket, names: Sequence[str]) -> dict[str, Structure]:
        """Returns the tree structures of variables."""
        self._check(ticket)
        return self._state.structures(names)

    def collect(self, ticket: Ticket, name: str, timeout_secs: float) -> dict[str, Leaves] | None:
        """Returns the values of a snapshot, once; `None` if they do not arrive in time."""
        with self._waited(ticket, lambda: name in self._cuts, timeout_secs):
            return self._cuts.pop(name, (0.0, None))[1]

    def wait_delivered(self, ticket: Ticket, mark: int, timeout_secs: float) -> bool:
        """Waits until messages up to `mark` have arrived or the time is over; returns whether they have."""
        with self._waited(ticket, lambda: self._delivered >= mark, timeout_secs):
            return self._delivered >= mark


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
