"""The bound on staleness: a worker begins a step only if no update can miss more than `max_staleness` others.

`StalenessBound` runs on the step server, `AdmissionClient` in a worker.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from hookline import clock, errors, log
from hookline.distributed.protocol import Ticket, Transport
from hookline.signals import preemption

logger = log.get_logger(__name__)

LEASE_SECS = 60.0
"""The time for which the others wait for an admitted worker without a heartbeat."""

_POLL_SECS = 1.0
_LOG_EVERY_SECS = 30.0


class _AdmittedRun(NamedTuple):
    run: int
    since: int
    until: float


class StalenessBound:
    """Admits a worker to a step only if all updates stay within the bound, in whatever order they commit.

    The update of an admitted worker misses the transactions since its values were read, and at most one update of each
    other admitted worker. If this sum could exceed the bound for any worker, a new worker waits before it begins. No
    worker waits at its commit.

    Example:
        >>> bound = StalenessBound(bound=1)
        >>> bound.admit("a", since=0), bound.admit("b", since=0), bound.admit("c", since=0)
        ((0, 0), (0, 0), None)
        >>> bound.record_decision("a", count=1)
        >>> bound.admit("a", since=1) is None  # "b" has missed one update, and may not miss another one
        True

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013. There a
        worker may be a number of clocks ahead of the slowest one. Here the bound counts missed updates.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._count = 0
        self._admitted: dict[str, _AdmittedRun] = {}
        self._expired: dict[str, _AdmittedRun] = {}
        # For each worker the first run that may still begin: messages of earlier runs may arrive late.
        self._first_valid_run: dict[str, int] = {}
        # The calls of waiting workers run in their own threads.
        self._lock = threading.RLock()

    def admit(self, sender: str, since: int, run: int = 0) -> tuple[int, int] | None:
        """Admits a worker, if that is possible now. If it was already admitted, its previous step counts as finished.

        Args:
            sender: The worker.
            since: The number of transactions that its values include.
            run: The number of its run. A run before one that was admitted, or has left, is no longer admitted.

        Returns:
            The number of transactions that its values must include (`since`, or all so far if those values are too
            old), and the number of transactions so far. `None` if it must wait.
        """
        with self._lock:
            now, count = clock.monotonic(), self._count
            if run < self._first_valid_run.get(sender, run):
                return None
            self._admitted.pop(sender, None)
            for other, held in list(self._admitted.items()):
                if now > held.until:
                    self._expired[other] = self._admitted.pop(other)
            others = len(self._admitted)
            if any(count - held.since + others > self._bound for held in self._admitted.values()):
                return None
            self._expired.pop(sender, None)
            since = since if count - since + others <= self._bound else count
            self._admitted[sender] = _AdmittedRun(run, since, now + LEASE_SECS)
            self._first_valid_run[sender] = run
            return since, count

    def renew(self, sender: str) -> None:
        """Records that a worker is alive."""
        with self._lock:
            if sender in self._admitted:
                self._admitted[sender] = self._admitted[sender]._replace(until=clock.monotonic() + LEASE_SECS)

    def check(self, sender: str) -> None:
        """Checks that a worker may commit now. It may, unless its lease has expired and others have begun without it.

        Raises:
            AbortedError: The commit would exceed the bound for its update or for those of others.
        """
        with self._lock:
            expired = self._expired.get(sender)
            found = None if expired is None else self.admit(sender, expired.since, expired.run)
        if expired is not None and (found is None or found[0] != expired.since):
            raise errors.AbortedError.from_message(
                f"Worker {sender} sent no heartbeat for {LEASE_SECS:g} s, and the others continued without it: its "
                f"update would exceed max_staleness={self._bound}. Nothing of it was applied.",
            )

    def leave(self, sender: str, run: int) -> None:
        """Records that a run ends without an update. This may arrive before the run's `admit`, or after the next's."""
        with self._lock:
            self._first_valid_run[sender] = max(run + 1, self._first_valid_run.get(sender, 0))
            for runs in (self._admitted, self._expired):
                if sender in runs and runs[sender].run <= run:
                    runs.pop(sender)

    def record_decision(self, sender: str, count: int | None = None) -> None:
        """Records that the update of a worker's run was accepted or refused, which ends the run.

        `count` is the number of transactions including this one; `None` if it was refused.
        """
        with self._lock:
            self._admitted.pop(sender, None)
            self._expired.pop(sender, None)
            if count is not None:
                self._count = count


class AdmissionClient:
    """Waits for admission by the step server before each run, and renews this worker's lease during the run."""

    def __init__(self, transport: Transport, ticket: Ticket, sender: str) -> None:
        self._transport, self._ticket, self._sender = transport, ticket, sender
        self._closed = threading.Event()
        self._run, self._is_admitted = 0, False
        # Compiling a step may take minutes, during which the other workers wait for this one.
        threading.Thread(
            target=_renew, args=(weakref.ref(self), self._closed), name="hookline-renew", daemon=True
        ).start()

    def enter(self, since: int) -> tuple[int, int, Sequence[int]]:
        """Blocks until this worker may begin a run; its values include `since` transactions.

        Returns:
            The number of transactions that its values must include; the number of transactions so far; and for each
            server, the number of the step server's last message: a server that has received it has all transactions so
            far.

        Raises:
            CancelledError: The session was closed in the meantime.
            Preempted: The process has got a signal to end.
            OutOfRangeError: The training has ended.
            AbortedError, UnavailableError: The step server was lost, or does not answer.
        """
        logged = clock.monotonic()
        self._run, self._is_admitted = self._run + 1, True
        while not self._closed.is_set():
            found = self._transport.call(0, "admit", self._ticket, self._sender, self._run, since, _POLL_SECS).get()
            if found is not None:
                return found
            preemption.check()
            if clock.monotonic() - logged >= _LOG_EVERY_SECS:
                logger.info("Waiting for slower workers: max_staleness allows no further step before their updates.")
                logged = clock.monotonic()
        raise errors.CancelledError.from_message("The session was closed while a run waited for slower workers.")

    def close(self) -> None:
        """Ends waits and renewals. A run in another thread leaves by itself."""
        self._closed.set()

    def leave(self, *, undecided: bool = False) -> None:
        """Reports to the step server that this worker runs nothing.

        If the update of the last run is `undecided`, nothing is reported: the others wait until it is decided, or until
        this worker's lease expires.
        """
        self._is_admitted = False
        if undecided:
            return
        try:
            # Without waiting for the answer: the number identifies the run, whenever the call arrives.
            self._transport.call(0, "leave", self._ticket, self._sender, self._run)
        except errors.OpError as error:
            logger.info("The step server was not notified that this worker leaves: %s", error)

    def renew(self) -> bool:
        """Renews the lease if a run is under way; returns False once the epoch or Ray has ended."""
        if not self._is_admitted:
            return True
        try:
            self._transport.call(0, "renew", self._ticket, self._sender).get()
        except errors.UnavailableError as error:
            logger.info("This worker could not renew its lease at the step server: %s", error)
        except Exception:
            return False  # The epoch or Ray has ended; the next run raises the error.
        return True


def _renew(reference: weakref.ref[AdmissionClient], closed: threading.Event) -> None:
    # A weak reference: the thread also ends if the session was dropped without being closed.
    while not clock.wait(closed, LEASE_SECS / 4):
        client = reference()
        if client is None or not client.renew():
            return
        del client
