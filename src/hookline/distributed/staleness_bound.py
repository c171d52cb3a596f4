"""The bound on staleness: workers begin a step only if no values get too old before their update comes.

`StalenessBound` is the step server's side, `AdmissionClient` that of a worker.
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
"""The time for which an admitted worker without signs of life holds the others back."""

_POLL_SECS = 1.0
_LOG_EVERY_SECS = 30.0


class _AdmittedRun(NamedTuple):
    run: int
    since: int
    until: float


class StalenessBound:
    """Admits a worker to a step only if all updates stay within the bound, in whatever order they commit.

    The update of an admitted worker misses the commits since its values were read, and at most one update of each other
    admitted worker. If this could exceed the bound for any worker, a new worker waits before it begins. No worker waits
    at its commit.

    Example:
        >>> gate = StalenessBound(bound=1)
        >>> gate.admit("a", since=0), gate.admit("b", since=0), gate.admit("c", since=0)
        ((0, 0), (0, 0), None)
        >>> gate.record_decision("a", count=1)
        >>> gate.admit("a", since=1) is None  # "b" has missed one update: not another one before its own
        True

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013. There a
        worker may be a number of clocks ahead of the slowest. Here the bound counts the updates that an update misses.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._count = 0
        self._admitted: dict[str, _AdmittedRun] = {}
        self._expired: dict[str, _AdmittedRun] = {}
        # The first run of each worker that may still begin; the messages of earlier ones may come late.
        self._first_valid_run: dict[str, int] = {}
        # Waiting workers try in their own threads.
        self._lock = threading.RLock()

    def admit(self, sender: str, since: int, run: int = 0) -> tuple[int, int] | None:
        """Admits a worker, if that is possible now. If it was already admitted, its previous step counts as finished.

        Args:
            sender: The worker.
            since: The number of transactions after which its values were read.
            run: The number of its run. A run before one that was admitted, or has left, is no longer admitted.

        Returns:
            The number of transactions that its values must include (`since`, or more if those are too old), and the
            number of transactions so far. `None` if it must wait.
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
        """Checks that a worker may commit now: it may, unless others have begun without waiting for it.

        Raises:
            AbortedError: They have, and the bound would be exceeded for its update or for theirs.
        """
        with self._lock:
            late = self._expired.get(sender)
            found = None if late is None else self.admit(sender, late.since, late.run)
        if late is not None and (found is None or found[0] != late.since):
            raise errors.AbortedError.from_message(
                f"Worker {sender} gave no sign of life for {LEASE_SECS:g} s, and the others went on without it: its "
                f"update does not fit max_staleness={self._bound} any more. Nothing of it was applied.",
            )

    def leave(self, sender: str, run: int) -> None:
        """Records that a run ends without an update. This may come before the run is admitted, or after the next."""
        with self._lock:
            self._first_valid_run[sender] = max(run + 1, self._first_valid_run.get(sender, 0))
            for runs in (self._admitted, self._expired):
                if sender in runs and runs[sender].run <= run:
                    runs.pop(sender)

    def record_decision(self, sender: str, count: int | None = None) -> None:
        """Records that the update of a worker's run is decided, which ends the run.

        `count` is the number of transactions including this one, if it was accepted.
        """
        with self._lock:
            self._admitted.pop(sender, None)
            self._expired.pop(sender, None)
            if count is not None:
                self._count = count


class AdmissionClient:
    """Waits at the step server's gate before each run, and renews this worker's lease during the run."""

    def __init__(self, transport: Transport, ticket: Ticket, sender: str) -> None:
        self._transport, self._ticket, self._sender = transport, ticket, sender
        self._closed = threading.Event()
        self._run, self._is_admitted = 0, False
        # Compiling a step may take minutes, during which the other workers should wait for it.
        threading.Thread(
            target=_renew, args=(weakref.ref(self), self._closed), name="hookline-renew", daemon=True
        ).start()

    def enter(self, since: int) -> tuple[int, int, Sequence[int]]:
        """Blocks until this worker may begin a run; its values were read after `since` transactions.

        Returns:
            The number of transactions that its values must include; the number of transactions so far; and for each
            server, the step server's message that it has received once it includes those transactions.

        Raises:
            CancelledError: The session was closed in the meantime.
            Preempted: A signal has asked the process to end.
            OutOfRangeError: The training has ended.
            AbortedError, UnavailableError: The step server was lost, or is away.
        """
        said = clock.monotonic()
        self._run, self._is_admitted = self._run + 1, True
        while not self._closed.is_set():
            found = self._transport.call(0, "admit", self._ticket, self._sender, self._run, since, _POLL_SECS).get()
            if found is not None:
                return found
            preemption.check()
            if clock.monotonic() - said >= _LOG_EVERY_SECS:
                logger.info("Waiting for slower workers: max_staleness allows no further step before their updates.")
                said = clock.monotonic()
        raise errors.CancelledError.from_message("The session was closed while a run waited for slower workers.")

    def close(self) -> None:
        """Ends waits and renewals. A run that is under way in another thread leaves by itself."""
        self._closed.set()

    def leave(self, *, undecided: bool = False) -> None:
        """Reports that no run is under way.

        If the update of the last run is `undecided`, nothing is reported: the others wait until it is decided, or until
        this worker's lease is over.
        """
        self._is_admitted = False
        if undecided:
            return
        try:
            # Nothing waits for the answer: the number identifies the run, whenever this arrives.
            self._transport.call(0, "leave", self._ticket, self._sender, self._run)
        except errors.OpError as error:
            logger.info("The step server was not told that this worker leaves: %s", error)

    def renew(self) -> bool:
        """Renews the lease if a run is under way; returns False once the epoch or Ray has ended."""
        if not self._is_admitted:
            return True
        try:
            self._transport.call(0, "renew", self._ticket, self._sender).get()
        except errors.UnavailableError as error:
            logger.info("The step server was not told that this worker lives: %s", error)
        except Exception:
            return False  # the epoch or Ray has ended; the next run reports it
        return True


def _renew(reference: weakref.ref[AdmissionClient], closed: threading.Event) -> None:
    # Ends, a while later, if the session is gone without having been closed.
    while not clock.wait(closed, LEASE_SECS / 4):
        entrance = reference()
        if entrance is None or not entrance.renew():
            return
        del entrance
