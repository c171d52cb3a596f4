"""RollCall: the watchdogs of SPMD processes tell each other how far their processes are."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Sequence

from hookline import clock
from hookline.coordination.process_group import ProcessGroup

_LEAVE_SECS, _SERVICE_SECS = 3.0, 0.3


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process is.

    Attributes:
        idle_secs: The time since its last progress.
        launches: The number of programs that it has launched.
        where: The line of code, in words.
        doing: What it does there, such as "reading a batch"; empty if that is not known.
        is_in_own_code: Whether code of the user runs there, such as a hook, and not a wait of hookline or JAX.
    """

    idle_secs: float
    launches: int
    where: str
    doing: str = ""
    is_in_own_code: bool = False

    def __str__(self) -> str:
        return f"{self.doing} {self.where}" if self.doing else self.where


class RollCall:
    """Collects the places of all processes, from a thread in each that attends the calls of the others at intervals.

    The calls are numbered. In call n, whoever suspects a stall sets `n/call`, each thread sets `n/place/<process>`, and
    the first one that has read all places, or has waited long enough, sets `n/all`, which is then the same for all.

    Args:
        group: The processes.
        name: The name of this series of calls.
        answer_secs: The time to wait for the place of a process: longer than the interval at which it attends.

    Example:
        >>> from hookline.coordination.key_value_store import MemoryKeyValueStore
        >>> roll = RollCall(ProcessGroup(MemoryKeyValueStore(), 0, 1), "example", answer_secs=1)
        >>> roll.call(Place(5.0, 41, "train.py:7 in main"))
        [Place(idle_secs=5.0, launches=41, where='train.py:7 in main', doing='', is_in_own_code=False)]
    """

    def __init__(self, group: ProcessGroup, name: str, answer_secs: float) -> None:
        self._group, self._name, self._answer_secs, self._number = group, name, answer_secs, 0

    def is_called(self) -> bool:
        """Returns whether another process has called since the last call."""
        return self._get("call", 0.0) is not None

    def call(self, place: Place) -> list[Place | None]:
        """Calls, or answers a call, and returns the places of all processes; None for one that did not answer."""
        self._set("call", "")
        self._set(f"place/{self._group.index}", json.dumps(dataclasses.astuple(place)))
        until = clock.monotonic() + self._answer_secs
        found = [self._get(f"place/{process}", until - clock.monotonic()) for process in range(self._group.count)]
        self._set("all", json.dumps([text and json.loads(text) for text in found]))
        agreed = json.loads(self._get("all", self._answer_secs) or "[]")
        self._number += 1
        if self._group.is_chief and self._number >= 3:
            self._group.store.delete(self._key("", self._number - 3))
        return [None if each is None else Place(*each) for each in agreed]

    def leave_together(self, places: Sequence[Place | None]) -> None:
        """Waits, before the process ends, until all that have answered do; the chief, which has the store, is last."""
        self._set(f"left/{self._group.index}", "")
        until = clock.monotonic() + _LEAVE_SECS
        for process, place in enumerate(places):
            if place is not None:
                self._get(f"left/{process}", until - clock.monotonic())
        if self._group.is_chief:
            clock.sleep(_SERVICE_SECS)

    def _key(self, part: str, number: int | None = None) -> str:
        return f"roll/{self._name}/{self._number if number is None else number}/{part}"

    def _set(self, part: str, text: str) -> None:
        self._group.store.set(self._key(part), text)

    def _get(self, part: str, timeout_secs: float) -> str | None:
        return self._group.store.get(self._key(part), max(timeout_secs, 0.0))


def elsewhere(places: Sequence[Place | None]) -> list[int]:
    """Returns the processes that are not where the others are; empty if that cannot be told.

    These are, in this order: those that did not answer, those that run code of the user while others wait, those that
    have launched fewer programs, and those at another line of code than most.

    Example:
        >>> there, behind = Place(5.0, 41, "train.py:7 in main"), Place(9.0, 40, "train.py:3 in on_trigger")
        >>> elsewhere([there, behind]), elsewhere([there, there, None]), elsewhere([there, there])
        ([1], [2], [])
    """
    most = max((place.launches for place in places if place is not None), default=0)
    lines = collections.Counter(place.where for place in places if place is not None)
    usual, count = lines.most_common(1)[0] if lines else ("", 0)
    is_elsewhere: list[Callable[[Place | None], bool]] = [
        lambda place: place is None,
        lambda place: place is not None and place.is_in_own_code,
        lambda place: place is not None and place.launches < most,
        lambda place: place is not None and place.where != usual and count > len(places) / 2,
    ]
    for test in is_elsewhere:
        found = [process for process, place in enumerate(places) if test(place)]
        if 0 < len(found) < len(places):
            return found
    return []


def describe_places(places: Sequence[Place | None]) -> list[str]:
    """Says where each process is, first those that are not where the others are.

    Example:
        >>> there = Place(5.0, 41, "at train.py:7 in main")
        >>> behind = Place(5.0, 40, "at train.py:3 in batches", "reading a batch")
        >>> for sentence in describe_places([there, behind, there]):
        ...     print(sentence)
        Process 1 hangs reading a batch at train.py:3 in batches; the others wait for it.
        Processes 0, 2 are at train.py:7 in main.
    """
    if not places:
        return []
    named = elsewhere(places)
    if named:
        hanging = [f"process {process} {_how_it_hangs(places[process])}" for process in named]
        first = f"P{'; '.join(hanging)[1:]}; the others wait for {'it' if len(named) == 1 else 'them'}."
    else:
        first = "No process is elsewhere than the others."
    others: dict[str, list[int]] = {}
    for process in set(range(len(places))).difference(named):
        others.setdefault(str(places[process] or "silent"), []).append(process)
    return [first, *(f"{_name(processes)} {where}." for where, processes in others.items())]


def _how_it_hangs(place: Place | None) -> str:
    return "does not answer: its threads do not run, or it has left the session" if place is None else f"hangs {place}"


def _name(processes: list[int]) -> str:
    several = len(processes) > 1
    return f"Process{'es' if several else ''} {', '.join(map(str, processes))} {'are' if several else 'is'}"
