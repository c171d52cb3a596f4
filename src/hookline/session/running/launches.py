"""A record of the programs that this process has launched, which processes in step compare."""

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
from hookline.coordination import peers
from hookline.coordination.peers import Peers
from hookline.coordination.roll_call import RollCall
from hookline.errors import AbortedError, FailedPreconditionError, UnauthenticatedError
from hookline.graph import placement

_MASK, _FACTOR = 2**61 - 1, 1_000_003


_KEPT = 4096
"""The number of launches that a process can report at any time."""
_AROUND = 32
_SURE_SECS = 0.5


class Launch(NamedTuple):
    """A launch of a program: its number, fingerprints of the program and of the fed values, and a description."""

    number: int
    program: int
    fed: int
    about: str


class Launched(NamedTuple):
    """The launches of a process so far.

    Args:
        total: The number of launches.
        fingerprint: A hash of all launches, in their order.
        recent: At least the launches since the last comparison.
    """

    total: int
    fingerprint: int
    recent: list[Launch]


class OpenSession(Protocol):
    """The part of an open session that launches need."""

    def is_inside(self) -> bool:
        """Returns whether one of its hooks is being called: then the processes meet before each launch."""
        ...

    def known_failure(self) -> BaseException | None:
        """Returns the error of another process that has failed; None if none is known."""
        ...

    def hear(self, news: Any) -> None:
        """Receives a message of another process; called in a thread."""
        ...

    def hear_end(self, gone: int | None, distrusted: UnauthenticatedError | None) -> None:
        """Notes, in a thread, that no messages will come: a process has ended its script, or a stranger has written."""
        ...


class Launches:
    """Counts and fingerprints the programs that this process launches.

    Processes that launch different programs compute wrong sums without an error, and processes that feed a program with
    different values diverge. So before a program runs for the first time, the processes exchange fingerprints of the
    program and its feeds, and wait for those that have not come. Later launches update a fingerprint, which the
    processes compare from time to time: at the latest before a checkpoint is committed, and at the end.

    Args:
        of: The processes.

    Attributes:
        count: The number of launches.
        asked_by: The hook or caller that asked for the current run, in words.
        sessions: The open sessions.
    """

    def __init__(self, of: Peers) -> None:
        self._peers = of
        self._thread = threading.current_thread()
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}
        self.asked_by, self._is_strict = "", False
        self.sessions: list[OpenSession] = []
        self._pending: Launch | None = None
        self._forget()
        self._roll_call = listen(of)
        self._roll_call.answer, self._roll_call.judge = self._stands, self._judge
        self._roll_call.heard, self._roll_call.ended = self._hear, self._note_end
        of.observe = self._observe

    def begin(self) -> None:
        """Starts the count anew. All processes do so at the same place of the script."""
        with self._lock:
            self._forget()
            self._roll_call.verdict = None

    def _forget(self) -> None:
        self.count = self._compared = self._fingerprint = 0
        self._recent: collections.deque[tuple[int, int, str]] = collections.deque(maxlen=_KEPT)
        self._found: str | None = None
        self._suspected: dict[str, float] = {}

    def note(
        self, known: dict[Any, int], about: str, kind: Any, text: Callable[[], str], fed: Iterable[Any] = ()
    ) -> None:
        """Records a launch that follows.

        Args:
            known: The fingerprints known so far of a program, by `kind`.
            about: A description of the program.
            kind: The form of its arguments, such as their shapes.
            text: Returns the text of the program.
            fed: The fed values, those of this process alone and those shared with others.

        Raises:
            FailedPreconditionError: Another process launches another program, or feeds it with other values.
            DeadlineExceededError: Another process launches no program.
            RuntimeError: The caller is not in the thread that launched first.
        """
        if threading.get_ident() != self._thread.ident:
            raise RuntimeError(
                f"In processes that run in step one thread alone runs sessions, here {self._thread.name}: a program "
                f"of {threading.current_thread().name} ({about}) would come between others, elsewhere in each process."
            )
        program, crc = known.get(kind), _crc_of(fed)
        if program is None:
            digest = hashlib.blake2b(text().encode(), digest_size=7).digest()
            program = known[kind] = int.from_bytes(digest, "big")
            self._texts[program] = about
            self._meet(program, crc)
        elif self._is_strict or self.is_inside:
            self._meet(program, crc)
        with self._lock:
            self.count += 1
            self._fingerprint = ((self._fingerprint * _FACTOR + program) * _FACTOR + crc) & _MASK
            self._recent.append((program, crc, self.asked_by))

    def _meet(self, program: int, fed: int) -> None:
        self._pending = self._launch(self.count + 1, program, fed, self.asked_by)
        try:
            found = self._peers.gather("program", [self._pending, _wants_to_meet])
        finally:
            self._pending = None
        self._is_strict = any(is_strict for _, is_strict in found)
        if (text := _difference([[each] for each, _ in found], may_follow=False)) is not None:
            raise self._differs(text)

    def _observe(self, about: str | None) -> None:
        """Checks the other processes while this one waits for them: one that launches known programs does not meet it.

        Raises:
            FailedPreconditionError: They launch other programs, or wait at another place.
            AbortedError: One of them has failed, or has ended its script.
            UnauthenticatedError: Somebody else has written on their board.
        """
        if about is not None and self.distrusted is not None:
            raise self.distrusted
        is_main = threading.get_ident() == self._thread.ident
        if about is None:
            if is_main:
                self._pending = None
            return
        for session in reversed(self.sessions):
            if (error := session.known_failure()) is not None:
                raise error
        if (gone := self._roll_call.gone) is not None and gone != self._peers.index:
            text = f"Process {gone} has ended its script, and process {self._peers.index} waits for it ({about})."
            raise AbortedError.from_message(f"{text} All processes must run the script to its end.")
        if not is_main:  # Its place among the launches is unknown.
            return
        if (error := self.difference) is not None:
            self._roll_call.await_heard()
            raise error
        if self._pending is None:
            place = int.from_bytes(hashlib.blake2b(about.encode(), digest_size=7).digest(), "big")
            self._pending = Launch(self.count + 1, place, 0, f"none, for it waits for the others ({about})")
        self._roll_call.call(str(self._pending.number))

    @property
    def difference(self) -> FailedPreconditionError | None:
        """The error of all processes once one has found that they launched different programs; else None."""
        text = self._found or self._roll_call.verdict
        return None if text is None else FailedPreconditionError.from_message(text)

    @property
    def is_inside(self) -> bool:
        """Whether a session is calling one of its hooks."""
        return any(session.is_inside() for session in self.sessions)

    def tell(self, news: Any) -> None:
        """Sends a message to the other processes, whatever they are doing."""
        self._roll_call.tell(news)

    def _hear(self, news: Any) -> None:
        for session in list(self.sessions):
            session.hear(news)

    @property
    def distrusted(self) -> UnauthenticatedError | None:
        """The error if somebody other than the processes has written on their board; else None."""
        return self._roll_call.error

    def _note_end(self, gone: int | None) -> None:
        for session in list(self.sessions):
            session.hear_end(gone, self.distrusted)

    def silent(self, within_secs: float) -> list[int]:
        """Returns the processes that do not answer within this time."""
        return self._roll_call.silent(within_secs)

    def _differs(self, text: str) -> FailedPreconditionError:
        self._found = text
        return FailedPreconditionError.from_message(text)

    def _stands(self, question: str) -> list[Launch]:
        """Returns the launches of this process around the requested one, and the one it waits with."""
        asked = int(question) if question else self.count
        with self._lock:
            told, pending = self._told(_KEPT), self._pending
        told = [each for each in told if abs(each.number - asked) <= _AROUND]
        return told if pending is None else [*told, pending]

    def _told(self, most: int) -> list[Launch]:
        last = list(self._recent)[-most:] if most else []
        first = self.count - len(last) + 1
        return [self._launch(first + place, *each) for place, each in enumerate(last)]

    def _launch(self, number: int, program: int, fed: int, asked_by: str) -> Launch:
        return Launch(number, program, fed, self._texts[program] + (f", for {asked_by}" if asked_by else ""))

    def check(self, about: str) -> Callable[[], None]:
        """Returns a function that compares the launches of all processes up to this place of the script.

        Each process calls `check` and the function at the same places, the function in any thread: only the function
        waits for the others.

        Raises:
            FailedPreconditionError: They have launched different programs. The error names the first difference.
        """
        with self._lock:
            mine = Launched(self.count, self._fingerprint, self._told(self.count - self._compared + _AROUND))
            self._compared = self.count
        return functools.partial(self._compare, mine, about)

    def _compare(self, mine: Launched, about: str) -> None:
        found = self._peers.gather(about, [mine.total, mine.fingerprint])
        if any(each != found[0] for each in found):
            every = self._peers.gather(f"{about}, in full", mine.recent)
            raise self._differs(_difference(every, may_follow=False) or _text(mine.total, [None] * len(found)))

    def _judge(self, every: list[list[Any]]) -> str | None:
        """Returns a difference once it has lasted some time: in one roll call, a process may just have moved on."""
        text, now = _difference(every, may_follow=True), clock.monotonic()
        return text if text is not None and now >= self._suspected.setdefault(text, now) + _SURE_SECS else None


def _difference(every: list[list[Any]], *, may_follow: bool) -> str | None:
    """Returns the first difference between the launches of processes, as the text of an error.

    Args:
        every: Launches of all processes, as JSON.
        may_follow: Whether a process with fewer launches may still launch the same.
    """
    by_number = [{each[0]: Launch(*each) for each in launches} for launches in every]
    starts, ends = [min(found, default=1) for found in by_number], [max(found, default=0) for found in by_number]
    for number in range(max(starts), max(ends) + 1):
        told = [found.get(number) for found in by_number]
        if len({each and (each.program, each.fed) for each in told if each or not may_follow}) > 1:
            return _text(number, told)
    return None


def _text(number: int, told: list[Launch | None]) -> str:
    is_fed = None not in told and len({each.program for each in told if each}) == 1
    lines = [
        f"process {index}: launch {number}, {each.about if each else 'none'}"
        + (f", given values with crc32c {each.fed:08x}" if is_fed and each else "")
        for index, each in enumerate(told)
    ]
    shown = "; ".join(lines if len(lines) <= 8 else [*lines[:8], f"and {len(lines) - 8} more"])
    if is_fed:
        return (
            f"The processes give different values to one program, and would part from each other: {shown}. Initial "
            "values, fed values and the results of host operations must be the same in all. If each process reads a "
            "part of each batch, hookline.data.iterator makes arrays that lie in all."
        )
    is_alike = None not in told and len({each.about for each in told if each}) == 1
    alike = " They differ in shapes, constants or order; if a `set` decides the order, set PYTHONHASHSEED=0 for all."
    return (
        f"The processes launch different programs, which would give wrong sums: {shown}.{alike if is_alike else ''} "
        "All processes must run the same script, and their hooks ask for the same values on the same runs: a value "
        "that one process knows alone (a clock, its index, random numbers) must not decide that."
    )


def _crc_of(fed: Iterable[Any]) -> int:
    """Returns a checksum of the values that this process has put on devices since the last launch, and of its feeds.

    Fed arrays that span several processes are left out: each process feeds its own part.
    """
    crc = placement.take_crc()
    for leaf in fed:
        if isinstance(leaf, jax.Array):
            if not leaf.is_fully_addressable:
                continue
            leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        crc = placement.crc32c(np.asarray(leaf), crc)
    return crc


_roll_call: RollCall | None = None


def listen(found: Peers, ended: Callable[[int | None], None] = lambda gone: None) -> RollCall:
    """Starts to answer the other processes, once; when this one ends its script, they hear of it.

    Args:
        found: The processes.
        ended: Called, in a thread, with the process that has ended its script before this one has a session.
    """
    global _roll_call
    if _roll_call is None:
        _roll_call = RollCall(found, ended)
    return _roll_call


@functools.cache
def _of(found: Peers) -> Launches:
    return Launches(found)


def current() -> Launches | None:
    """Returns the launches of this process if it runs in step with others; else None."""
    found = peers.current()
    return None if found is None else _of(found)


_wants_to_meet = False


def meet_always() -> None:
    """Makes the processes meet before each launch, from the next new program on."""
    global _wants_to_meet
    _wants_to_meet = True


def kind_of(inputs: Any) -> tuple[Any, ...]:
    """Returns a key of the inputs of a program; a new key means a new compilation."""
    return tuple(
        [(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else type(leaf) for leaf in jax.tree.leaves(inputs)]
    )
