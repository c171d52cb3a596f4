"""Agreement: SPMD processes act on a fact that only one of them knows, all before the same run.

SPMD processes make the same runs, numbered from 1. A fact that only one of them knows (the chief's clock, a signal, a
request to stop) is *proposed*. In a *round* all agree on a *boundary*, a number of runs, and each applies the decision
between that run and the next. Round r, in a key-value store whose keys are set only once:

1. A process with a proposal sets `r/call`. In each process a listener thread waits for this key.
2. A listener that reads it *pledges*: `r/pledge/<process>` holds the number of runs its main thread has started, and
   its proposals. From then on the main thread starts no further run before it knows the decision.
3. The chief reads all pledges. The largest number in them is the boundary; the chief writes it to `r/decision`.
4. Each listener reads the decision, and lets its main thread start runs up to the boundary. There the main thread
   applies the decision, and only then its listener waits for the next call.

*No process runs past a boundary that it has not read.* A boundary is no smaller than any pledge of its round, and a
process that has pledged starts no run beyond its pledge before it reads the decision. It remains to show that the
pledge counts every started run. The main thread first counts a run (`started += 1`) and then compares with `limit`;
the listener first sets the limit to 0 and then reads `started`. If two threads each write first and then read the
other's variable, at least one sees the other's write. If the main thread sees the limit 0, it waits. If it does not,
it had counted its run before the listener read `started`, so the pledge includes that run.

*All apply the same decisions at the same runs.* A round has one decision. A listener pledges in round r + 1 only when
its main thread has applied decision r, at boundary r; so boundary r + 1 is no smaller, and no process has run past it.

*If all request a stop after run n, they stop after run n.* A main thread that proposes starts no run until the
decision, so no pledge is above n.

A run without a proposal costs one comparison.

Example: the chief has started 7 runs and process 1 has started 5 when a save is requested in process 1.

    process 1                                              the chief
    proposes "save": limit 5, no run starts                runs on
    sets the key 0/call
    its listener pledges (5, save)                         its listener sets limit 0, reads 7, pledges (7): limit 7
                                                           its main thread counts run 8: 8 > 7, so back to 7, and waits
                                                           reads both pledges: boundary max(7, 5) = 7
    reads the decision: limit 7, runs 6 and 7 start        applies the decision, already at run 7: saves step 7
    applies the decision at run 7: saves step 7            limit infinity: run 8 starts
    limit infinity: run 8 starts
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import math
import threading
import weakref
from collections.abc import Generator
from typing import Any, NamedTuple

from hookline import clock, log
from hookline.coordination.key_value_store import KeyValueStore
from hookline.errors import UnauthenticatedError, UnavailableError

_logger = log.get_logger(__name__)

_LOG_EVERY_SECS = 10.0
_WAIT_SECS = 3600.0
_LEAVE_SECS = 10.0
_CALL, _END = "call", "end"

FAILURE = "failure"
"""The kind of proposal that reports a failed process: the others act on it at once, without a common boundary.

Its value is a list: the failed process, which may be another than the proposer, and the reason.
"""


class Decision(NamedTuple):
    """The decision of a round.

    Attributes:
        boundary: The run after which the processes act.
        proposals: The proposals, as (process, kind, value).
    """

    boundary: float
    proposals: tuple[tuple[int, str, Any], ...]


class Get(NamedTuple):
    """A listener's request: wait for a key and read its text."""

    key: str


class Set(NamedTuple):
    """A listener's request: set a key, if it is not set yet."""

    key: str
    text: str


class Delete(NamedTuple):
    """A listener's request: delete the keys with this prefix."""

    prefix: str


class WaitUntilApplied(NamedTuple):
    """A listener's request: wait until the main thread has applied the decision."""


Request = Get | Set | Delete | WaitUntilApplied


class Member:
    """One process's part in the protocol, without the key-value store: `listen` yields the requests to it.

    The main thread counts each run with `started += 1` before it starts it. If the count exceeds `limit`, it calls
    `undo_start`, then `try_start` until it may continue.

    Args:
        index: The number of this process.
        count: The number of processes.

    Attributes:
        started: The number of runs that the main thread has started.
        limit: The number of runs that it may start before it must call `try_start`.
        waiting_for: The process that the chief waits for, in words; empty for none.
    """

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count
        self.started: float = 0
        self.limit: float = math.inf
        self.waiting_for = ""
        self._proposals: list[tuple[str, Any]] = []
        self._hold: float = math.inf
        self._open_call: str | None = None
        self.decision: Decision | None = None
        self.is_closing = self.has_ended = False
        self.changed = threading.Condition(threading.RLock())

    # The listener -----------------------------------------------------------------------------------------------

    def listen(self) -> Generator[Request, Any, None]:
        """Yields requests to the key-value store; the caller sends back each text that was read."""
        for number in itertools.count():
            call = f"{number}/call"
            with self.changed:
                calls = _END if self.is_closing and not self._proposals else _CALL if self._proposals else None
                self._open_call = None if calls else call
            if calls:
                yield Set(call, calls)
            if (yield Get(call)) == _END:
                self._end()
                return
            mine = self._pledge()
            yield Set(f"{number}/pledge/{self.index}", json.dumps(mine))
            if self.index == 0:
                pledges = []
                for process in range(self.count):
                    self.waiting_for = f"process {process}"
                    pledges.append(json.loads((yield Get(f"{number}/pledge/{process}"))))
                self.waiting_for = ""
                proposals = [(process, *each) for process, (_, given) in enumerate(pledges) for each in given]
                yield Set(f"{number}/decision", json.dumps([max(started for started, _ in pledges), proposals]))
                yield Delete(f"{number - 1}/")  # Each pledge shows that its process has read the earlier decision.
            elif self.is_closing:
                continue
            boundary, proposals = json.loads((yield Get(f"{number}/decision")))
            self._decide(boundary, tuple(map(tuple, proposals)))
            yield WaitUntilApplied()

    def _pledge(self) -> tuple[float, list[tuple[str, Any]]]:
        with self.changed:
            self._open_call = None
            self.limit = 0
            # A main thread that has proposed something starts no run, but may have counted one that it will undo.
            self.limit = started = min(self.started, self._hold)
            given, self._proposals, self._hold = self._proposals, [], math.inf
            return started, given

    def _decide(self, boundary: float, proposals: tuple[tuple[int, str, Any], ...]) -> None:
        with self.changed:
            if any(kind == FAILURE for _, kind, _ in proposals):  # Runs up to there may need the failed process.
                boundary = self.limit
            self.decision = Decision(boundary, proposals)
            self.limit = boundary
            self.changed.notify_all()

    def _end(self) -> None:
        """Records that a process has left normally: there are no more rounds."""
        with self.changed:
            self.has_ended = True
            if self._proposals:  # The others have made their last run: this one acts alone.
                self.decision = Decision(self.limit, tuple((self.index, *each) for each in self._proposals))
            else:
                self.limit = math.inf
            self.changed.notify_all()

    def record_failure(self, process: int, why: str) -> None:
        """Records a failure that was detected outside the protocol, so that this process waits for no decision."""
        with self.changed:
            if self.decision is None or all(kind != FAILURE for _, kind, _ in self.decision.proposals):
                self.limit = min(self.limit, self.started)
                self.decision = Decision(self.limit, ((process, FAILURE, [process, why]),))
                self.changed.notify_all()

    @property
    def is_decision_applied(self) -> bool:
        """Whether the main thread has applied the decision, or will apply no more."""
        return self.decision is None or self.is_closing

    # The main thread --------------------------------------------------------------------------------------------

    def add_proposal(self, kind: str, value: Any = None, *, from_main_thread: bool = False) -> Set | None:
        """Adds a proposal, and returns the request to the key-value store that starts a round, if one is needed.

        Args:
            kind: The kind of proposal.
            value: Its details, as JSON.
            from_main_thread: Whether the caller is the main thread, which starts no run until the decision.
        """
        with self.changed:
            if self.is_closing:
                return None
            self._proposals.append((kind, value))
            if from_main_thread:
                self._hold = min(self._hold, self.started)
                if self.decision is None:
                    self.limit = min(self.limit, self.started)
            if self.has_ended:
                self.decision = self.decision or Decision(self.limit, ((self.index, kind, value),))
            call, self._open_call = self._open_call, None
            return None if call is None else Set(call, _CALL)

    def undo_start(self) -> None:
        """Uncounts a run beyond the limit."""
        with self.changed:
            self.started -= 1

    def try_start(self) -> tuple[bool, Decision | None]:
        """Returns a decision that is due, or counts a run if one may start.

        Returns:
            Whether the main thread may continue, and the decision to apply; with None a run was counted.
        """
        with self.changed:
            decision = self.decision
            if decision is not None and self.started >= decision.boundary:
                self.decision = None
                if self.has_ended:
                    self._proposals, self._hold = [], math.inf
                if self._hold < math.inf:  # Proposed before this boundary; the runs up to here were made.
                    self._hold = self.started
                self.limit = self._hold
                self.changed.notify_all()
                return True, decision
            if self.started < self.limit:
                self.started += 1
                return True, None
            return False, None

    def leave(self) -> Set | None:
        """Ends the listener, and returns the request to the key-value store that ends the others, if one is needed."""
        with self.changed:
            self.is_closing = True
            self._proposals = [each for each in self._proposals if each[0] == FAILURE]
            self.changed.notify_all()
            call, self._open_call = self._open_call, None
            return None if call is None else Set(call, _END)


class Agreement(Member):
    """A process's part in the protocol, with a key-value store and a listener thread.

    Args:
        store: The key-value store that the processes share.
        index: The number of this process.
        count: The number of processes.
        name: A name that all members of an agreement share.

    Example:
        >>> from hookline.coordination.key_value_store import MemoryKeyValueStore
        >>> alone = Agreement(MemoryKeyValueStore(), 0, 1, "ours")
        >>> for run in range(3):
        ...     while (decision := alone.before_run()) is not None:
        ...         print("before run", run, decision.proposals)
        ...     if run == 1:
        ...         alone.propose("stop", "enough")
        before run 2 ((0, 'stop', 'enough'),)
        >>> alone.close()
    """

    def __init__(self, store: KeyValueStore, index: int, count: int, name: str) -> None:
        super().__init__(index, count)
        self._store, self._prefix = store, f"agreement/{name}/"
        self._main = threading.current_thread()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="hookline-agreement", daemon=True)
        self._thread.start()
        _open.add(self)

    def before_run(self) -> Decision | None:
        """Counts a run that is about to start; or returns a decision to apply first, and must then be called again.

        Raises:
            UnavailableError: The other processes cannot be reached.
            UnauthenticatedError: An unauthenticated writer has written to the key-value store.
        """
        self.started += 1
        if self.started <= self.limit:
            return None
        self.undo_start()
        with self.changed:
            while True:
                if isinstance(self._error, UnauthenticatedError):
                    raise self._error
                if self._error is not None:
                    raise UnavailableError.from_message(
                        f"Process {self.index} cannot reach the other processes of this SPMD job: {self._error}. One "
                        "of them has probably ended; check the last output of each.",
                    ) from self._error
                goes_on, decision = self.try_start()
                if goes_on:
                    return decision
                if not clock.wait_for(self.changed, self._can_proceed, _LOG_EVERY_SECS):
                    _logger.info(
                        "Process %d waits after run %d for a decision of all processes%s.",
                        self.index,
                        self.started,
                        f"; {self.waiting_for} has not answered" if self.waiting_for else "",
                    )

    def _can_proceed(self) -> bool:
        is_there = self.decision is not None and self.started >= self.decision.boundary
        return is_there or self.started < self.limit or self._error is not None

    def propose(self, kind: str, value: Any = None) -> None:
        """Makes a proposal, from any thread but not from a signal handler.

        A main thread that proposes starts no run until the decision.
        """
        self._execute(self.add_proposal(kind, value, from_main_thread=threading.current_thread() is self._main))

    def failure(self) -> tuple[int, str] | None:
        """Returns a failed process and the reason, if a failure is known and not applied yet."""
        with self.changed:
            found = () if self.decision is None else self.decision.proposals
            value = next((value for _, kind, value in found if kind == FAILURE), None)
        return None if value is None else (value[0], value[1])

    def abort(self, error: BaseException) -> None:
        """Makes the main thread raise an error before its next run, because no agreement is possible any more."""
        with self.changed:
            self._error, self.limit = self._error or error, -1
            self.changed.notify_all()

    def close(self, within_secs: float = _LEAVE_SECS) -> None:
        """Leaves the agreement. First sends a proposed failure to the others, which takes at most this time."""
        _open.discard(self)
        with contextlib.suppress(Exception):  # A lost process need not be notified.
            self._execute(self.leave())
        self._thread.join(within_secs)

    def _execute(self, request: Request | None) -> Any:
        if isinstance(request, Set):
            return self._store.set(self._prefix + request.key, request.text)
        if isinstance(request, Delete):
            return self._store.delete(self._prefix + request.prefix)
        if isinstance(request, WaitUntilApplied):
            with self.changed:
                return self.changed.wait_for(lambda: self.is_decision_applied)
        if request is None:
            return None
        while (text := self._store.get(self._prefix + request.key, _WAIT_SECS)) is None:
            pass
        return text

    def _work(self) -> None:
        try:
            listener = self.listen()
            request = next(listener)
            while True:
                request = listener.send(self._execute(request))
        except StopIteration:
            pass
        except BaseException as error:  # A waiting main thread would otherwise wait forever.
            self.abort(error)


_open: weakref.WeakSet[Agreement] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the listeners before JAX ends the service they listen to."""
    for agreement in list(_open):
        agreement.close()
