"""The programs that this process has launched, for processes in step to compare."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hookline.coordination import peers
from hookline.coordination.peers import Peers
from hookline.errors import FailedPreconditionError

_MASK, _FACTOR = 2**61 - 1, 1_000_003


class Launched(NamedTuple):
    """What a process has launched so far.

    Args:
        total: How many programs.
        fingerprint: A number that all of them have made, in their order.
        recent: The fingerprints of those since the last comparison.
    """

    total: int
    fingerprint: int
    recent: tuple[int, ...]


class Launches:
    """Counts the programs that this process launches, and tells them apart.

    Processes that launch different programs compute wrong sums, and no error says so. So before a program runs for the
    first time, the processes show each other what it is, and wait for one that has not come. Whatever they launch later
    moves a fingerprint, which they compare from time to time: at the latest before a checkpoint is committed.

    Args:
        of: The processes.

    Attributes:
        count: How many programs were launched.
        asked_by: Who asked for the run under way, in words.
        meets: Returns whether the run under way is one that a hook makes: then the processes meet before each launch.
        strict: Whether they meet before each launch in any case.
    """

    def __init__(self, of: Peers) -> None:
        self._peers = of
        self._lock = threading.Lock()
        self.count, self._fingerprint = 0, 0
        self._recent: list[int] = []
        self._texts: dict[int, str] = {}
        self.asked_by, self.strict = "", False
        self.meets: Callable[[], bool] = lambda: False

    def note(self, known: dict[Any, int], about: str, kind: Any, text: Callable[[], str]) -> None:
        """Takes note of a launch that follows.

        Args:
            known: The fingerprints of a program so far, by `kind`.
            about: What it is, in words.
            kind: What tells its arguments from others, such as their shapes.
            text: Returns the program itself.

        Raises:
            FailedPreconditionError: Another process launches another program.
            DeadlineExceededError: Another process launches none.
        """
        number = known.get(kind)
        if number is None:
            digest = hashlib.blake2b(text().encode(), digest_size=7).digest()
            number = known[kind] = int.from_bytes(digest, "big")
            self._texts[number] = about
            self._meet(number)
        elif self.strict or self.meets():
            self._meet(number)
        with self._lock:
            self.count += 1
            self._fingerprint = (self._fingerprint * _FACTOR + number) & _MASK
            self._recent.append(number)

    def _meet(self, number: int) -> None:
        about = self._texts[number] + (f", for {self.asked_by}" if self.asked_by else "")
        found = self._peers.gather("program", [self.count + 1, number, about])
        if any(each[:2] != found[0][:2] for each in found):
            raise _different(found)

    def _so_far(self) -> Launched:
        """Returns what was launched so far; the next answer has nothing of this in `recent`."""
        with self._lock:
            recent, self._recent = tuple(self._recent), []
            return Launched(self.count, self._fingerprint, recent)

    def check(self, about: str) -> Callable[[], None]:
        """Returns a function that compares what the processes have launched up to this place of the script.

        Each process calls both at the same places, the function in any thread: only there it waits for the others.

        Raises:
            FailedPreconditionError: They have launched different programs. It names the first.
        """
        return functools.partial(self._compare, self._so_far(), about)

    def _compare(self, mine: Launched, about: str) -> None:
        found = self._peers.gather(about, [mine.total, mine.fingerprint])
        if all(each == found[0] for each in found):
            return
        every = self._peers.gather(
            f"{about}, in full", [mine.total, mine.recent, [self._texts[n] for n in mine.recent]]
        )
        raise _first_different(every)


def _different(found: list[Any]) -> FailedPreconditionError:
    lines = [f"process {index}: launch {count}, {about}" for index, (count, _, about) in enumerate(found)]
    return FailedPreconditionError(
        None,
        None,
        "The processes are about to launch different programs, which would give wrong sums: "
        f"{'; '.join(_grouped(lines))}. All processes must run the same script, and their hooks ask for the same "
        "values on the same runs: what one process knows alone (a clock, its index, random numbers) must not decide "
        "that.",
    )


def _first_different(every: list[Any]) -> FailedPreconditionError:
    starts = [count - len(recent) for count, recent, _ in every]
    first, last = max(starts), max(count for count, _, _ in every)
    for launch in range(first, last):
        texts = [
            texts[launch - start] if launch - start < len(recent) else "none"
            for start, (_, recent, texts) in zip(starts, every, strict=True)
        ]
        numbers = {
            recent[launch - start] if launch - start < len(recent) else None
            for start, (_, recent, _) in zip(starts, every, strict=True)
        }
        if len(numbers) > 1:
            return _different([(launch + 1, None, text) for text in texts])
    return _different([(count, None, "not told apart any more") for count, _, _ in every])


def _grouped(lines: list[str]) -> list[str]:
    return lines if len(lines) <= 8 else [*lines[:8], f"and {len(lines) - 8} more"]


@functools.cache
def _of(found: Peers) -> Launches:
    return Launches(found)


def current() -> Launches | None:
    """Returns the launches of this process, where it runs in step with others; else None."""
    found = peers.current()
    return None if found is None else _of(found)


def kind_of(inputs: Any) -> tuple[Any, ...]:
    """Returns what tells the inputs of a program from others that are compiled anew."""
    return tuple(
        [(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else type(leaf) for leaf in jax.tree.leaves(inputs)]
    )
