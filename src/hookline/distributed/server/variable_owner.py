"""The owner of one server's variables: stages parts of transactions, and applies them on the step server's decision."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hookline import clock, errors, log
from hookline.distributed.protocol import Epoch, Leaves, PeerClient, Pulled, Structure, Transaction
from hookline.distributed.server.server_state import ServerState, WriteOp
from hookline.distributed.worker.updates import PortableUpdate

logger = log.get_logger(__name__)

STAGED_SECS = 60.0
"""The least time for which a part is kept while its sender's request has not reached the step server."""

ASK_SECS = STAGED_SECS / 2
"""The time after which the owner of an undecided part asks the step server about it, and then asks again."""

SNAPSHOT_SECS = 300.0
"""The time for which the values of a snapshot are kept for its reader: longer than a delayed message may take."""

MAX_WAIT_SECS = 60.0
"""The longest wait of a thread, whatever its caller requested: a caller that is still alive calls again."""

REINITIALISED = "was initialised or restored again since this session was created"


class CountedCondition:
    """A condition whose notification costs nothing while no thread waits; `count` is the number of waiting threads.

    Example:
        >>> CountedCondition().wait_until(lambda: True, timeout_secs=1.0)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def wait_until(self, reached: Callable[[], bool], timeout_secs: float) -> None:
        """Blocks until a condition holds or the time is over, at most for `MAX_WAIT_SECS`."""
        with self._changed:
            # Count first, then check the condition: a change after the check then notifies this thread.
            self.count += 1
            try:
                clock.wait_for(self._changed, reached, min(timeout_secs, MAX_WAIT_SECS))
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
        pull: The variables whose new values its sender requests.
        answer: The future of these values.
        since: The time when the part arrived, or when the step server was last asked about it.
    """

    entries: Sequence[WriteOp]
    pull: Sequence[str]
    answer: Future[Pulled] = field(default_factory=Future)
    since: float = field(default_factory=clock.monotonic)


class VariableOwner:
    """One server's variables in one epoch, and its parts of transactions, whether or not it is the step server.

    The step server's messages to it are numbered, and handled in order, however they arrive. Another epoch has another
    owner: a call that still waits in this one gets an `AbortedError`.

    Attributes:
        on_break: Called, under the server's lock, with an error that breaks this server and whether it is the first.
        state: The values of the variables.
        counts: On the step server, for each server, the number of accepted transactions with a part for it; on others
            only their own count changes.
        broken: The error that has broken this server; None while it can be used.
    """

    def __init__(
        self, epoch: Epoch, index: int, peers: PeerClient | None, turn: threading.RLock, waiting: CountedCondition
    ) -> None:
        self.epoch, self.index, self.waiting = epoch, index, waiting
        self._peer_client, self._write_lock = peers, turn
        self.on_break: Callable[[BaseException, bool], None] = lambda error, is_first: None
        self.state = ServerState(epoch.step_name if index == 0 else None)
        self.counts = [0] * len(epoch.incarnations)
        self.broken: BaseException | None = None
        self._has_ended = False
        self._staged: dict[Transaction, _Part] = {}
        # Snapshots by name: the time when each was made, and its values.
        self._snapshots: dict[str, tuple[float, dict[str, Leaves]]] = {}
        # The number of the step server's messages that were handled, and the messages that arrived out of order.
        self._delivered_seq, self._out_of_order = 0, dict[int, tuple[Any, ...]]()

    # Lifetime ---------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the epoch here: another one begins."""
        self._has_ended = True
        self._abort_parts(lost(self.index, "was initialised or restored again"))
        if self._peer_client is not None:
            self._peer_client.close()

    def check(self) -> None:
        """Raises `AbortedError` if this server is broken, or the epoch has ended."""
        if self.broken is not None:
            raise self.could_not_apply(self.broken) from self.broken
        if self._has_ended:
            raise lost(self.index, REINITIALISED)

    @contextmanager
    def waited(self, reached: Callable[[], bool], timeout_secs: float) -> Iterator[None]:
        """Blocks until a condition holds, the epoch ends or the time is over; then the body of the `with` block reads.

        Waiting calls have their own threads, so the epoch may end at any moment. Values are valid if the epoch has not
        ended after they were read, so this checks again after the body.
        """
        self.waiting.wait_until(lambda: self.broken is not None or self._has_ended or reached(), timeout_secs)
        self.check()
        try:
            yield
        finally:
            self.check()

    def could_not_apply(self, error: BaseException) -> errors.AbortedError:
        """Returns the error that all calls of a broken server raise."""
        if self.index != 0 and isinstance(error, errors.AbortedError):
            # The message of the step server, from `abandon`.
            return errors.AbortedError.from_message(str(error))
        return lost(self.index, f"could not apply an accepted update ({_format_error(error)})")

    def break_off(self, error: BaseException) -> None:
        """Records that the values can no longer be used; the first error is the cause."""
        is_first = self.broken is None
        if is_first:
            logger.error("Parameter server %d is broken: %s", self.index, _format_error(error))
            self.broken = error
        else:
            logger.info("Parameter server %d is broken, and then: %s", self.index, _format_error(error))
        self.waiting.notify()
        self._abort_parts(error)
        self.on_break(error, is_first)

    def _abort_parts(self, why: BaseException) -> None:
        parts, self._staged = self._staged, {}
        self.give_up(parts.values(), why)

    def give_up(self, waiting: Iterable[Any], why: BaseException) -> None:
        """Answers the senders of parts or requests that will not be decided any more."""
        for item in waiting:
            item.answer.set_exception(why if isinstance(why, errors.AbortedError) else self.could_not_apply(why))

    def notify(self, server: int, method: str, *args: Any) -> None:
        """Calls a method of another server, without waiting."""
        assert self._peer_client is not None, "several servers have a peer client"
        self._peer_client.notify(server, method, self.epoch.ticket(server), *args, on_failure=self._note_failure)

    def _note_failure(self, error: BaseException) -> None:
        """Handles the failure of a message to another server; it may be reported after the end of the epoch."""
        with self._write_lock:
            if not self._has_ended:
                self.break_off(error)

    def register(
        self,
        updates: Sequence[PortableUpdate],
        variables: Mapping[str, str] = types.MappingProxyType({}),
        owners: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        """Registers updates, to which transactions refer by name, and new variables of the chief's graph."""
        self.state.register(updates)
        known = {update.name: update.fingerprint for update in updates}
        self.epoch = self.epoch._replace(
            updates={**self.epoch.updates, **known},
            variables={**self.epoch.variables, **variables},
            owners={**self.epoch.owners, **owners},
        )

    # Parts of transactions --------------------------------------------------------------------------------------

    def stage(
        self, transaction: Transaction, entries: Sequence[WriteOp], pull: Sequence[str] = ()
    ) -> Future[Pulled] | None:
        """Checks this server's part of a transaction, keeps it until the step server decides, and sends the vote.

        With variables to `pull`, the answer is sent after the decision, and has their values at that moment.

        Raises:
            Exception: The part cannot be applied: for example the update's function raised, or a variable has no value.
        """
        if transaction in self._staged:
            raise errors.InternalError.from_message(f"Transaction {transaction} was sent twice.")
        try:
            self.check()
            self.state.check(entries)
        except Exception as error:
            self.notify(0, "vote", transaction, self.index, error)
            raise
        part = self._staged[transaction] = _Part(entries, pull)
        self.notify(0, "vote", transaction, self.index)
        for silent, old in self._staged.items():
            if part.since - old.since > ASK_SECS:
                old.since = part.since
                self.notify(0, "report_stuck", silent, self.index)
        return part.answer if pull else None

    def deliver(self, seq: int, message: tuple[Any, ...]) -> None:
        """Receives message number `seq` of the step server, and handles it after all earlier ones.

        If 3 arrives before 2, it waits; when 2 arrives, both are handled, in order.
        """
        self._out_of_order[seq] = message
        while (due := self._out_of_order.pop(self._delivered_seq + 1, None)) is not None:
            self._handle(*due)
            self._delivered_seq += 1
        self.waiting.notify()

    def abandon(self, why: str) -> None:
        """Breaks this server, because the step server has lost the epoch."""
        self.break_off(errors.AbortedError.from_message(why))

    def _handle(self, kind: str, *args: Any) -> None:
        if kind == "begin_snapshot":
            name, names = args
            now = clock.monotonic()
            for old in [old for old, (since, _) in list(self._snapshots.items()) if now - since > SNAPSHOT_SECS]:
                self._snapshots.pop(old, None)
            self._snapshots[name] = now, self.state.values(names)
            return
        part = self._staged.pop(args[0], None)
        if kind == "apply":
            self._apply_staged(part, *args)
        if part is None:
            return
        if self.broken is not None:
            self.give_up([part], self.broken)
        else:
            part.answer.set_result(Pulled(self.counts[self.index], self.held_values(part.pull)))

    def _apply_staged(self, part: _Part | None, transaction: Transaction, step: int) -> None:
        # The step server has counted the transaction, so it can no longer be undone: any failure breaks this server.
        if part is None:
            self.break_off(RuntimeError(f"the staged part of transaction {transaction} is gone"))
            return
        try:
            self.state.apply(self.state.prepare(part.entries), None)
        except Exception as error:
            self.break_off(error)
            return
        self.state.step = step
        self.counts[self.index] += 1

    def held_values(self, names: Sequence[str]) -> dict[str, Leaves]:
        """Returns the values that exist: the transaction is decided, and a missing value must not hide its outcome."""
        held = self.state.names()
        return self.state.values([name for name in names if name in held])

    # Reading ----------------------------------------------------------------------------------------------------

    def pull(self, names: Sequence[str]) -> Pulled:
        """Returns the current values."""
        return Pulled(self.counts[self.index], self.state.values(names))

    def pull_after(self, names: Sequence[str], seq: int, timeout_secs: float) -> Pulled | None:
        """Returns values after the step server's messages up to `seq` have arrived; `None` if the time is over."""
        with self.waited(lambda: self._delivered_seq >= seq, timeout_secs):
            return self.pull(names) if self._delivered_seq >= seq else None

    def structures(self, names: Sequence[str]) -> dict[str, Structure]:
        """Returns the tree structures of variables."""
        return self.state.structures(names)

    def collect(self, name: str, timeout_secs: float) -> dict[str, Leaves] | None:
        """Returns the values of a snapshot, once; `None` if they do not arrive in time."""
        with self.waited(lambda: name in self._snapshots, timeout_secs):
            return self._snapshots.pop(name, (0.0, None))[1]

    def wait_delivered(self, seq: int, timeout_secs: float) -> bool:
        """Waits until messages up to `seq` have arrived or the time is over; returns whether they have."""
        with self.waited(lambda: self._delivered_seq >= seq, timeout_secs):
            return self._delivered_seq >= seq


def lost(server: int, what: str) -> errors.AbortedError:
    """Returns the error of a call to a server that no longer has the values of the caller's epoch."""
    message = f"Parameter server {server} {what}. The session is lost; a recoverable one is created again."
    return errors.AbortedError.from_message(message)


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
