"""Kinds of sources, by how each returns to an earlier position."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from hookline.data import batches, states
from hookline.data.states import accessors
from hookline.errors import FailedPreconditionError

START = {"count": 0}
"""The position of whoever has used nothing."""


class Read(NamedTuple):
    """A batch as it was read, and the position after it.

    Attributes:
        batch: The batch, with arrays of its own.
        position: Returns that position, as a pytree that a checkpoint can store.
    """

    batch: Any
    position: Callable[[], dict[str, Any]]


class BrokenOff(Exception):
    """The batches that a source is reading towards are no longer wanted."""


class Sequence(Protocol):
    """A source that can be read from its beginning, or from a position."""

    def read(self, position: dict[str, Any], is_wanted: Callable[[], bool]) -> Iterator[Read]:
        """Yields the batches after a position.

        Args:
            position: The position of a batch of this source, or of an equal source in an earlier process.
            is_wanted: Called on the way there; if it returns False, reading is broken off.

        Raises:
            BrokenOff: The batches were no longer wanted.
            FailedPreconditionError: The source cannot reach that position.
        """
        ...

    def saved(self, position: dict[str, Any]) -> None:
        """Called when a checkpoint holds a position, so that nobody will go back before it."""
        ...


class Repeatable:
    """A source that can be restarted: a function that makes an iterable, or an iterable.

    If the iterator has a state, it is set to a position. Otherwise it is read again up to the position, and must arrive
    at the same batch.

    Args:
        make: Returns the iterable.
        who: The iterator of the graph, for messages.
    """

    def __init__(self, make: Callable[[], Iterable[Any]], who: str) -> None:
        self._make, self._who = make, who

    def read(self, position: dict[str, Any], is_wanted: Callable[[], bool]) -> Iterator[Read]:  # noqa: D102
        source = self._make()
        if accessors(source) is not None:
            yield from Resumable(source, self._who).read(position, is_wanted)
            return
        iterator = iter(source)
        if accessors(iterator) is not None:
            yield from Resumable(iterator, self._who).read(position, is_wanted)
            return
        if position["count"] and "crc32c" not in position:
            raise foreign(self._who)
        yield from self._replayed(iterator, position, is_wanted)

    def _replayed(
        self, iterator: Iterator[Any], position: dict[str, Any], is_wanted: Callable[[], bool]
    ) -> Iterator[Read]:
        count, batch = position["count"], None
        for done in range(count):
            if not is_wanted():
                raise BrokenOff
            try:
                batch = next(iterator)
            except StopIteration:
                raise self._not_repeatable(f"it ended after {done} batches, and {count} were used") from None
        if count and batches.crc32c(batches.owned(batch)) != position["crc32c"]:
            raise self._not_repeatable(f"batch {count} is not the one that was used")
        for number, item in enumerate(iterator, start=count + 1):
            yield _checksummed(batches.owned(item), number)

    def _not_repeatable(self, why: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            None,
            None,
            f"{self._who} cannot go on where the checkpoint is: the data are not repeatable, for {why}. Give a source "
            f"that gives the same batches each time (a fixed seed for its shuffling) or has a state (get_state and "
            f"set_state); or give the iterator another name, or resume=False, and it begins anew.",
        )

    def saved(self, position: dict[str, Any]) -> None:  # noqa: D102
        pass


def _checksummed(batch: Any, count: int) -> Read:
    return Read(batch, lambda: {"count": count, "crc32c": batches.crc32c(batch)})


class Resumable:
    """A single iterable or iterator with a state; a new reader takes it over.

    Args:
        source: The iterable. Its state now is its beginning.
        who: The iterator of the graph, for messages.
    """

    def __init__(self, source: Any, who: str) -> None:
        state = accessors(source)
        assert state is not None, "Whoever makes one has asked."
        self._source, self._state, self._who = source, state, who
        self._beginning = copy.deepcopy(state.get())
        self._lock = threading.Lock()
        self._reader: object = None

    def read(self, position: dict[str, Any], is_wanted: Callable[[], bool]) -> Iterator[Read]:  # noqa: D102
        reader, count = object(), position["count"]
        if count and "state" not in position:
            raise foreign(self._who)
        with self._lock:
            if count:
                self._go_to(states.decoded(position["state"]))
            elif self._reader is not None:
                self._go_to(copy.deepcopy(self._beginning))
            self._reader = reader
            iterator = iter(self._source)
        while True:
            with self._lock:
                if self._reader is not reader:
                    raise taken_over(self._who)
                try:
                    batch = batches.owned(next(iterator))
                except StopIteration:
                    return
                state = copy.deepcopy(self._state.get())
            count += 1
            yield self._with_state(batch, count, state)

    def _go_to(self, state: Any) -> None:
        try:
            self._state.set(state)
        except Exception as error:
            error.add_note(f"hookline: while {self._who} set the state of its source, a {type(self._source).__name__}")
            raise

    def _with_state(self, batch: Any, count: int, state: Any) -> Read:
        return Read(batch, lambda: {"count": count, "state": states.encoded(state, self._who)})

    def saved(self, position: dict[str, Any]) -> None:  # noqa: D102
        pass


def foreign(who: str) -> FailedPreconditionError:
    """Returns the error for a position of another kind of source."""
    return FailedPreconditionError(
        None,
        None,
        f"{who} cannot go on where the checkpoint is: that was another kind of source (with a state of its own, or "
        f"without). Give the source that was used then; or give the iterator another name, or resume=False, and it "
        f"begins anew.",
    )


def taken_over(who: str) -> FailedPreconditionError:
    """Returns the error for a reader whose source another session reads now."""
    return FailedPreconditionError(
        None,
        None,
        f"{who}: another session reads from its source, which serves one at a time. Give a function that makes the "
        f"iterator, and each session has one of its own.",
    )
