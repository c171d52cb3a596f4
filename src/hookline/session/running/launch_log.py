"""Logs the programs that this process launches; processes in multi-process SPMD compare their logs."""

from __future__ import annotations

import collections
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from hookline import clock
from hookline.coordination import process_group
from hookline.coordination.liveness import LivenessMonitor
from hookline.coordination.process_group import ProcessGroup
from hookline.errors import AbortedError, FailedPreconditionError, UnauthenticatedError
from hookline.graph import placement

_MASK, _FACTOR = 2**61 - 1, 1_000_003


_MAX_RECENT = 4096
"""The number of launches that a process can report at any time."""
_AROUND = 32
_CONFIRM_SECS = 0.5


class Launch(NamedTuple):
    """A launch of a program: its number, fingerprints of the program and of the fed values, and a description."""

    number: int
    program: int
    fed_checksum: int
    description: str


class LaunchSummary(NamedTuple):
    """The launches of a process so far.

    Args:
        total: The number of launches.
        fingerprint: A hash of all launches, in their order.
        recent: The launches since the last comparison, and some before.
    """

    total: int
    fingerprint: int
    recent: list[Launch]


class OpenSession(Protocol):
    """The methods of an open session that the launch log calls."""

    def is_in_hook(self) -> bool:
        """Returns whether the session calls a hook now: then the processes synchronize before each launch."""
        ...

    def known_failure(self) -> BaseException | None:
        """Returns the error of another process that has failed; None if no failure is known."""
        ...

    def receive(self, message: Any) -> None:
        """Receives a message of another process. Another thread than the session's calls it."""
        ...

    def receive_end(self, ended_process: int | None, tampering: UnauthenticatedError | None) -> None:
        """Called, as `receive`, when no messages will come: a process has ended its script, or tampering was found."""
        ...


class LaunchLog:
    """Counts and fingerprints the programs that this process launches.

    Processes that launch different programs compute wrong sums without an error, and processes that feed a program with
    different values diverge. So before a program runs for the first time, the processes exchange fingerprints of the
    program and its feeds, and each process waits for all others. Each launch also updates one fingerprint of all
    launches. The processes compare it from time to time: at the latest before a checkpoint is committed, and at the
    end.

    Args:
        of: The processes.

    Attributes:
        count: The number of launches.
        requested_by: A description of the hook or caller that requested the current run.
        sessions: The open sessions.
    """

    def __init__(self, of: ProcessGroup) -> None:
        self._group = of
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._descriptions: dict[int, str] = {}
        self.requested_by, self._is_strict = "", False
        self.sessions: list[OpenSession] = []
        self._pending: Launch | None = None
        self._reset()
        self._liveness = answer_processes(of)
        self._liveness.answer, self._liveness.diagnose = self._answer, self._judge
        self._liveness.on_broadcast, self._liveness.on_end = self._receive, self._receive_end
        of.on_wait = self._observe

    def reset(self) -> None:
        """Resets the count; all processes call it at the same point of the script."""
        with self._lock:
            self._reset()
            self._liveness.problem = None

    def _reset(self) -> None:
        self.count = self._compared = self._fingerprint = 0
        self._recent: collections.deque[tuple[int, int, str]] = collections.deque(maxlen=_MAX_RECENT)
        self._difference_text: str | None = None
        self._suspected: dict[str, float] = {}

    def record(
        self, known: dict[Any, int], description: str, key: Any, text: Callable[[], str], fed: Iterable[Any] = ()
    ) -> None:
        """Records the next launch, before it is made.

        Args:
            known: The program's fingerprints so far, by `key`.
            description: A description of the program.
            key: The form of its arguments, such as their shapes.
            text: Returns the text of the program.
            fed: The fed values; some may be arrays that span several processes.

        Raises:
            FailedPreconditionError: Another process launches another program, or feeds it with other values.
            DeadlineExceededError: Another process launches no program.
            RuntimeError: The caller is not in the thread that launched first.
        """
        if threading.get_ident() != self._thread.ident:
            raise RuntimeError(
                f"In an SPMD process one thread alone runs sessions, here {self._thread.name}: a program of "
                f"{threading.current_thread().name} ({description}) would be launched in a random order among others."
            )
        program, crc = known.get(key), _checksum_of(fed)
        if program is None:
            digest = hashlib.blake2b(text().encode(), digest_size=7).digest()
            program = known[key] = int.from_bytes(digest, "big")
            self._descriptions[program] = description
            self._compare_next(program, crc)
        elif self._is_strict or self.is_in_hook:
            self._compare_next(program, crc)
        with self._lock:
            self.count += 1
            self._fingerprint = ((self._fingerprint * _FACTOR + program) * _FACTOR + crc) & _MASK
            self._recent.append((program, crc, self.requested_by))

    def _compare_next(self, program: int, fed: int) -> None:
        self._pending = self._launch(self.count + 1, program, fed, self.requested_by)
        try:
            found = self._group.all_gather("program", [self._pending, _compares_every_launch])
        finally:
            self._pending = None
        self._is_strict = any(is_strict for _, is_strict in found)
        if (text := _difference([[each] for each, _ in found], may_follow=False)) is not None:
            raise self._record_difference(text)

    def _observe(self, about: str | None) -> None:
        """Checks the other processes while this one waits for them: they may launch known programs, and never wait.

        Raises:
            FailedPreconditionError: They launch other programs, or wait at another point.
            AbortedError: One of them has failed, or has ended its script.
            UnauthenticatedError: An unauthenticated writer has written to their key-value store.
        """
        if about is not None and self.tampering_error is not None:
            raise self.tampering_error
        is_main = threading.get_ident() == self._thread.ident
        if about is None:
            if is_main:
                self._pending = None
            return
        for session in reversed(self.sessions):
            if (error := session.known_failure()) is not None:
                raise error
        if (exited := self._liveness.exited_process) is not None and exited != self._group.index:
            text = f"Process {exited} has ended its script, and process {self._group.index} waits for it ({about})."
            raise AbortedError.from_message(f"{text} All processes must run the script to its end.")
        if not is_main:  # Its position among the launches is unknown.
            return
        if (error := self.difference) is not None:
            self._liveness.wait_until_acknowledged()
            raise error
        if self._pending is None:
            point = int.from_bytes(hashlib.blake2b(about.encode(), digest_size=7).digest(), "big")
            self._pending = Launch(self.count + 1, point, 0, f"none, for it waits for the others ({about})")
        self._liveness.request_status(str(self._pending.number))

    @property
    def difference(self) -> FailedPreconditionError | None:
        """The error of all processes once one has found that they launched different programs; else None."""
        text = self._difference_text or self._liveness.problem
        return None if text is None else FailedPreconditionError.from_message(text)

    @property
    def is_in_hook(self) -> bool:
        """Whether a session is calling one of its hooks."""
        return any(session.is_in_hook() for session in self.sessions)

    def broadcast(self, message: Any) -> None:
        """Sends a message to the other processes, whatever they are doing."""
        self._liveness.broadcast(message)

    def _receive(self, message: Any) -> None:
        for session in list(self.sessions):
            session.receive(message)

    @property
    def tampering_error(self) -> UnauthenticatedError | None:
        """The error if an unauthenticated writer has written to the processes' key-value store; else None."""
        return self._liveness.error

    def _receive_end(self, gone: int | None) -> None:
        for session in list(self.sessions):
            session.receive_end(gone, self.tampering_error)

    def unresponsive(self, within_secs: float) -> list[int]:
        """Returns the processes that do not answer within this time."""
        return self._liveness.unresponsive(within_secs)

    def _record_difference(self, text: str) -> FailedPreconditionError:
        self._difference_text = text
        return FailedPreconditionError.from_message(text)

    def _answer(self, question: str) -> list[Launch]:
        """Returns the launches of this process near the requested number, and the launch that it waits to make."""
        requested = int(question) if question else self.count
        with self._lock:
            launches, pending = self._recent_launches(_MAX_RECENT), self._pending
        launches = [each for each in launches if abs(each.number - requested) <= _AROUND]
        return launches if pending is None else [*launches, pending]

    def _recent_launches(self, most: int) -> list[Launch]:
        last = list(self._recent)[-most:] if most else []
        first = self.count - len(last) + 1
        return [self._launch(first + index, *each) for index, each in enumerate(last)]

    def _launch(self, number: int, program: int, fed: int, asked_by: str) -> Launch:
        return Launch(number, program, fed, self._descriptions[program] + (f", for {asked_by}" if asked_by else ""))

    def begin_comparison(self, about: str) -> Callable[[], None]:
        """Returns a function that compares the launches of all processes up to this point of the script.

        Each process calls this method and the function at the same points of the script. Only the function waits for
        the others, so another thread may call it.

        Raises:
            FailedPreconditionError: From the function: the processes have launched different programs. The error names
                the first difference.
        """
        with self._lock:
            mine = LaunchSummary(
                self.count, self._fingerprint, self._recent_launches(self.count - self._compared + _AROUND)
            )
            self._compared = self.count
        return functools.partial(self._compare, mine, about)

    def _compare(self, mine: LaunchSummary, about: str) -> None:
        found = self._group.all_gather(about, [mine.total, mine.fingerprint])
        if any(each != found[0] for each in found):
            every = self._group.all_gather(f"{about}, in full", mine.recent)
            raise self._record_difference(
                _difference(every, may_follow=False) or _text(mine.total, [None] * len(found))
            )

    def _judge(self, every: list[list[Any]]) -> str | None:
        """Returns a difference that has lasted some time: in a single check, a process may just have moved on."""
        text, now = _difference(every, may_follow=True), clock.monotonic()
        return text if text is not None and now >= self._suspected.setdefault(text, now) + _CONFIRM_SECS else None


def _difference(every: list[list[Any]], *, may_follow: bool) -> str | None:
    """Returns the first difference between the launches of processes, as the text of an error.

    Args:
        every: Launches of all processes, as JSON.
        may_follow: Whether a process with fewer launches may still launch the same.
    """
    by_number = [{each[0]: Launch(*each) for each in launches} for launches in every]
    starts, ends = [min(found, default=1) for found in by_number], [max(found, default=0) for found in by_number]
    for number in range(max(starts), max(ends) + 1):
        compared = [found.get(number) for found in by_number]
        if len({each and (each.program, each.fed_checksum) for each in compared if each or not may_follow}) > 1:
            return _text(number, compared)
    return None


def _text(number: int, launches: list[Launch | None]) -> str:
    is_fed = None not in launches and len({each.program for each in launches if each}) == 1
    lines = [
        f"process {index}: launch {number}, {each.description if each else 'none'}"
        + (f", given values with crc32c {each.fed_checksum:08x}" if is_fed and each else "")
        for index, each in enumerate(launches)
    ]
    shown = "; ".join(lines if len(lines) <= 8 else [*lines[:8], f"and {len(lines) - 8} more"])
    if is_fed:
        return (
            f"The processes give different values to one program, and would diverge: {shown}. Initial values, fed "
            "values and the results of host operations must be the same in all. If each process reads a part of each "
            "batch, hookline.data.iterator makes arrays that span all processes."
        )
    is_alike = None not in launches and len({each.description for each in launches if each}) == 1
    alike = " They differ in shapes, constants or order; if a `set` decides the order, set PYTHONHASHSEED=0 for all."
    return (
        f"The processes launch different programs, which would give wrong sums: {shown}.{alike if is_alike else ''} "
        "All processes must run the same script, and their hooks must fetch the same values in the same runs: a value "
        "that only one process has (a clock, its index, random numbers) must not decide that."
    )


def _checksum_of(fed: Iterable[Any]) -> int:
    """Returns a checksum of the values that this process has put on devices since the last launch, and of its feeds.

    Fed arrays that span several processes are left out: each process feeds its own shard.
    """
    crc = placement.pop_checksum()
    for leaf in fed:
        if isinstance(leaf, jax.Array):
            if not leaf.is_fully_addressable:
                continue
            leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        crc = placement.crc32c(np.asarray(leaf), crc)
    return crc


_monitor: LivenessMonitor | None = None


def answer_processes(found: ProcessGroup, ended: Callable[[int | None], None] = lambda gone: None) -> LivenessMonitor:
    """Starts to answer the other processes, the first time; notifies them when this one ends its script.

    Args:
        found: The processes.
        ended: Called in another thread if a process ends its script before this process has a session; gets the index
            of that process, if it is known.
    """
    global _monitor
    if _monitor is None:
        _monitor = LivenessMonitor(found, ended)
    return _monitor


@functools.cache
def _launch_log(found: ProcessGroup) -> LaunchLog:
    return LaunchLog(found)


def current() -> LaunchLog | None:
    """Returns the launch log of this process if it is one of several SPMD processes; else None."""
    found = process_group.current()
    return None if found is None else _launch_log(found)


_compares_every_launch = False


def compare_every_launch() -> None:
    """Makes the processes synchronize before each launch, from the next new program on."""
    global _compares_every_launch
    _compares_every_launch = True


def inputs_key(inputs: Any) -> tuple[Any, ...]:
    """Returns a key of the inputs of a program; a new key means a new compilation."""
    return tuple(
        [(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else type(leaf) for leaf in jax.tree.leaves(inputs)]
    )
