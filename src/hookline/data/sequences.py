"""Reads a source from its beginning or from a position: one that is restartable, and one with a state."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hookline import clock, log
from hookline.coordination import progress
from hookline.data import batches
from hookline.data.from_arrays import ArrayIteration, ArraySource
from hookline.errors import DataLossError, FailedPreconditionError
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)
_END = object()
# As in the default `repr` of an object.
_ADDRESS = re.compile(r"[\w.]* object at 0x[0-9a-fA-F]+")

START = {"count": 0}
"""The position of a reader that has used nothing."""


def check_position(position: Any, who: str) -> dict[str, Any]:
    """Returns a position from a checkpoint; raises `DataLossError` unless its counts are numbers, at least 0."""
    found = position if isinstance(position, dict) else {}
    for name in ("count", *(found.keys() & {"skip", "crc32c", "passes"})):
        number = found.get(name)
        if not isinstance(number, int | np.integer) or number < 0:
            raise DataLossError.from_message(
                f"{who} cannot resume at the checkpoint's position, because its {name} is {number!r}, not a number of "
                f"at least 0."
            )
    return found


class ReadResult(NamedTuple):
    """Batches as they were read, and the positions after them.

    Attributes:
        batch: The batch, whose arrays the reader owns; or a block of batches, which has one more dimension in front.
        position: Returns the position after the batch at an index of the block, as a pytree that a checkpoint can
            store.
        size: The number of batches in the block; `None` for a single batch.
    """

    batch: Any
    position: Callable[[int], dict[str, Any]]
    size: int | None = None


class RestartAdvice(NamedTuple):
    """Advice in messages about a later start that cannot reach a position.

    Attributes:
        outcome: The outcome of such a start if the source is an iterator without a state.
        restart: What to do to read the data from the beginning.
        more: What to do to get more data after the end.
    """

    outcome: str = "reads its data from the beginning, with a warning"
    restart: str = "give the iterator another name, or resume=False"
    more: str = "give more data, or data without an end (hookline.data.from_arrays(..., epochs=None))"


@dataclasses.dataclass
class ReadRequest:
    """The reader's request to a sequence, which it sets before each read.

    Attributes:
        max_count: The largest number of batches, in one block if the source can make one.
        capacity: The length of a block.
        is_cancelled: Whether the source must stop reading, also while it reads towards a position.
    """

    max_count: int = 1
    capacity: int = 1
    is_cancelled: bool = False


class ReadCancelled(Exception):
    """Raised by a source that is reading towards a position when the read request is cancelled."""


def num_batches_of(source: Any) -> float | None:
    """Returns the number of batches of a source from its beginning, infinity without an end; None without a length."""
    try:
        count = source.num_batches if isinstance(source, ArraySource) else len(source)
        return math.inf if count == sys.maxsize else count  # Of a dataset of Grain that repeats without end.
    except (TypeError, NotImplementedError):
        return None


class BatchSequence(Protocol):
    """A source that can be read from its beginning or from a position.

    Attributes:
        num_batches: The number of batches; None if it is not known.
        arrays: The arrays that it iterates over, if known. Many of their batches are read in hardly more time than one.
        restart: Advice in its messages.
        passes: The number of passes over the source, from its beginning on.
    """

    num_batches: float | None = None
    arrays: ArraySource | None = None
    restart = RestartAdvice()
    passes: int = 1

    def read(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        """Yields the batches after a position.

        Args:
            position: The position after a batch of this source, or of an equal source in an earlier process.
            request: The request. If it is cancelled before the position is reached, `ReadCancelled` is raised.

        Raises:
            FailedPreconditionError: The source cannot reach that position.
        """
        ...

    def next_pass(self, position: dict[str, Any]) -> dict[str, Any] | None:
        """Allows one more pass than were made up to a position; returns the start of that pass, None if impossible."""
        return None

    def on_saved(self, position: dict[str, Any]) -> None:
        """Called after a checkpoint has saved a position; no reader will seek to an earlier one."""

    def before_save(self) -> None:
        """Called before a position is saved."""


class _MultiPassSequence(BatchSequence):
    """A source that can be read in several passes.

    A position has the number of batches in its pass, and the number of passes before. After two batches of the third
    pass it is `{"count": 2, "passes": 2, ...}`. Arrays count epochs instead, so that each pass has its own shuffle.
    """

    def read(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        done = position.get("passes", 0)
        while done < self.passes:
            for read in self._pass(position, request):
                yield _of_pass(read, done) if done else read
            if self.arrays is not None:
                return
            position, done = START, done + 1

    def _pass(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        """Yields the batches of a pass after a position in it; for arrays, the batches of all passes."""
        ...

    def next_pass(self, position: dict[str, Any]) -> dict[str, Any] | None:
        made = passes_made(position, self.arrays)
        self.passes = made + 1
        return position if self.arrays is not None else {"count": 0, "passes": made}


def _of_pass(read: ReadResult, done: int) -> ReadResult:
    return read._replace(position=lambda index: {**read.position(index), "passes": done})


def passes_made(position: dict[str, Any], arrays: ArraySource | None) -> int:
    """Returns the number of passes up to a position, including its own."""
    start = array_position(position, arrays)
    if arrays is None:
        return position.get("passes", 0) + (position["count"] > 0)
    if start is None or not arrays.epochs:
        return 0
    return -(-(start[0] + (start[1] > 0)) // arrays.epochs)


_LONG_READ_SECS = 5.0


class RestartableSource(_MultiPassSequence):
    """A source that can be restarted: `make` returns the iterable.

    If the iterator has a state, it is set to a position. Otherwise it is read again up to the position, and must arrive
    at the same batch.

    Attributes:
        num_batches: The number of batches; None if the source has no length, or was not read yet.
        arrays: As in `BatchSequence`; known after the first read, or if given.
    """

    def __init__(self, make: Callable[[], Iterable[Any]], who: str, arrays: ArraySource | None = None) -> None:
        self._make, self._who, self.arrays = make, who, arrays

    @calls_user_code
    def _pass(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        source = self._make()
        self.num_batches = num_batches_of(source)
        iterator: Any = source if state_accessors(source) is not None else iter(source)
        if state_accessors(iterator) is not None:
            resumable = StatefulSource(iterator, self._who, lambda: self.passes)
            self.arrays, resumable.restart = resumable.arrays, self.restart
            yield from resumable._pass(position, request)
            return
        count, batch = position["count"], None
        if count and "crc32c" not in position:
            raise _other_source_error(self._who, position, self.restart)
        begin_secs = clock.monotonic()
        for done in range(count):
            if request.is_cancelled:
                raise ReadCancelled
            try:
                batch = next(iterator)
            except StopIteration:
                raise self._not_repeatable(f"it ended after {done} batches, and {count} were used") from None
            progress.count += 1
        if count and batches.crc32c(batches.copy_owned(batch)) != position["crc32c"]:
            raise self._not_repeatable(f"batch {count} differs from the one that was used")
        if count:
            secs = clock.monotonic() - begin_secs
            _logger.log(
                logging.WARNING if secs >= _LONG_READ_SECS else logging.INFO,
                "%s: its source was read again up to batch %d, which the run has used: %.1f s. Arrays and sources with "
                "a state (hookline.data.from_arrays, Grain) continue at once.",
                self._who,
                count,
                secs,
            )
        for number, item in enumerate(iterator, start=count + 1):
            yield _checksummed(batches.copy_owned(item), number)

    def _not_repeatable(self, why: str) -> FailedPreconditionError:
        return FailedPreconditionError.from_message(
            f"{self._who} cannot resume at the checkpoint's position: the data are not repeatable, because {why}. Give "
            f"a source that gives the same batches each time (a fixed seed for its shuffling) or has a state "
            f"(get_state and set_state); or {self.restart.restart}, to start from the beginning."
        )


def _checksummed(batch: Any, count: int) -> ReadResult:
    return ReadResult(batch, lambda _: {"count": count, "crc32c": batches.crc32c(batch)})


class StatefulSource(_MultiPassSequence):
    """A single iterable or iterator with a state. Its first state is its beginning; only the newest reader may read it.

    `passes` returns the number of passes over arrays; by default this sequence's own.
    """

    def __init__(self, source: Any, who: str, passes: Callable[[], int] | None = None) -> None:
        state = state_accessors(source)
        assert state is not None, "Checked by the caller."
        self._source, self._who = source, who
        self.num_batches = num_batches_of(source)
        self.arrays = source.source if isinstance(source, ArrayIteration) else None
        if isinstance(source, ArrayIteration):
            source.passes = passes or (lambda: self.passes)
        self._get, self._set = state
        self._beginning = copy.deepcopy(self._get())
        self._warn_of_address(self._beginning)
        self._lock = threading.Lock()
        self._reader: object = None

    @calls_user_code
    def _pass(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        reader, count = object(), position["count"]
        if count and "state" not in position:
            raise _other_source_error(self._who, position, self.restart)
        with self._lock:
            if count:
                self._set_state(_deserialize_state(position["state"], self._who))
            elif self._reader is not None:
                self._set_state(copy.deepcopy(self._beginning))
            self._reader = reader
            iterator = iter(self._source)
        read_many, state_after = getattr(iterator, "read_many", None), getattr(iterator, "state_after", None)
        for done in range(position.get("skip", 0)):
            if request.is_cancelled:
                raise ReadCancelled
            with self._lock:
                if next(iterator, _END) is _END:
                    raise FailedPreconditionError.from_message(
                        f"{self._who}: its source ended {done} batches after a saved state, but more were used."
                    )
            progress.count += 1
        state = None
        while True:
            with self._lock:
                if self._reader is not reader:
                    raise taken_over_error(self._who)
                before, size = state, None
                try:
                    if read_many is None:
                        batch = batches.copy_owned(next(iterator))
                    elif request.max_count == 1:
                        batch = next(iterator)
                    else:
                        before = copy.deepcopy(self._get()) if before is None else before
                        wanted = request.max_count, max(request.max_count, request.capacity)
                        try:
                            found = read_many(*wanted)
                        except StopIteration:
                            raise
                        except Exception:  # Single reads follow, so that only the unreadable batch is an error.
                            self._set_state(copy.deepcopy(before))
                            read_many, batch = None, batches.copy_owned(next(iterator))
                        else:
                            batch, size = self._many(found, *wanted)
                except StopIteration:
                    return
                state = copy.deepcopy(self._get())
            if size is None:
                yield self._with_state(batch, count, state)
                count += 1
            else:
                yield self._block(batch, count, size, before, state, state_after)
                count += size

    def _many(self, found: tuple[Any, int], count: int, capacity: int) -> tuple[Any, int]:
        block, size = found
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(block)}
        if lengths != {(capacity,)} or not 1 <= size <= count:
            raise ValueError(
                f"{self._who}: read_many({count}, {capacity}) of its source, a {type(self._source).__name__}, must "
                f"return arrays of length {capacity} and the number of batches in them, from 1 to {count}, but it "
                f"returned arrays of the lengths {sorted(lengths)}, and {size}."
            )
        return block, size

    def _warn_of_address(self, state: Any) -> None:
        """Warns if a state has the address of an object: Grain's DataLoader compares the `repr` of its source."""
        text = state.decode("latin1") if isinstance(state, bytes) else state if isinstance(state, str) else ""
        if (found := _ADDRESS.search(text)) is not None:
            _logger.warning(
                "%s: the state of its source has the address of an object, %r, so another process cannot resume from "
                "it. Give the class a __repr__ without an address.",
                self._who,
                found[0],
            )

    def _set_state(self, state: Any) -> None:
        try:
            self._set(state)
        except Exception as error:
            error.add_note(
                f"hookline: {self._who} got this error when it set the state of its source, a "
                f"{type(self._source).__name__}. To start from the beginning instead, use "
                f"Loop(..., resume_data=False) or iterator(..., resume=False)."
            )
            raise

    def _with_state(self, batch: Any, count: int, state: Any) -> ReadResult:
        return ReadResult(batch, lambda _: {"count": count + 1, "state": _serialize_state(state, self._who)})

    def _block(
        self, block: Any, count: int, size: int, before: Any, after: Any, state_after: Callable[[Any, int], Any] | None
    ) -> ReadResult:
        def position(index: int) -> dict[str, Any]:
            done, state, skip = index + 1, after, {}
            if done < size and state_after is not None:
                state = state_after(before, done)
            elif done < size:  # A source that reads many at once is quick to read again.
                state, skip = before, {"skip": done}
            return {"count": count + done, "state": _serialize_state(state, self._who), **skip}

        return ReadResult(block, position, size)


def array_position(position: dict[str, Any], arrays: ArraySource | None) -> tuple[int, int] | None:
    """Returns the epoch and the example of a position; `None` if it is not in these arrays."""
    if arrays is None or not position["count"]:
        return None if arrays is None else (0, 0)
    state = _deserialize_state(position["state"], "hookline.data.from_arrays") if "state" in position else None
    if not isinstance(state, dict) or state.get("of") != arrays.identity:
        return None
    return (state["epoch"], state["example"]) if arrays.is_position(state.get("epoch"), state.get("example")) else None


def _other_source_error(who: str, position: dict[str, Any], restart: RestartAdvice) -> FailedPreconditionError:
    if (of := position.get("of")) is not None:
        by = f"{len(of)} SPMD processes, each in its own part of the data" if len(of) > 1 else "a single process"
        return FailedPreconditionError.from_message(
            f"{who} cannot resume at the checkpoint's position: it was saved by {by}, and with another number of "
            f"processes the parts differ. Run the same number; or {restart.restart}, to start from the beginning. "
            f"hookline.data.from_arrays resumes with any number of processes."
        )
    return FailedPreconditionError.from_message(
        f"{who} cannot resume at the checkpoint's position, which is of another kind of source (with a state, or "
        f"without). Give the source of the earlier start; or {restart.restart}, to start from the beginning."
    )


def taken_over_error(who: str) -> FailedPreconditionError:
    """Returns the error for a reader after another session has begun to read its source."""
    return FailedPreconditionError.from_message(
        f"{who}: another session has begun to read from its source, which serves one session at a time. Give a "
        f"function that makes the iterator, so that each session has its own."
    )


def state_accessors(item: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Returns the functions that read and set the state of an iterator or loader, if it has one."""
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if callable(getattr(item, get, None)) and callable(getattr(item, put, None)):
            return getattr(item, get), getattr(item, put)
    return None


def _serialize_state(state: Any, who: str) -> Any:
    """Encodes a state for a checkpoint: as bytes, as JSON if possible, or else as the pytree itself."""
    if isinstance(state, bytes):
        return {"bytes": state}
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return {"json": text}
    except (TypeError, ValueError):
        pass
    try:
        jax.tree.structure(state).serialize_using_proto()
    except ValueError as error:
        raise TypeError(
            f"{who}: a checkpoint cannot hold the state of its source, a {type(state).__name__}: {error} "
            f"Give bytes, or dicts with text as keys, lists and tuples of numbers, text, bytes and arrays."
        ) from None
    return {"tree": state}


def _deserialize_state(state: Any, who: str) -> Any:
    """Decodes a state from the result of `_serialize_state`."""
    try:
        ((kind, value),) = state.items()
        return json.loads(value) if kind == "json" else value
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise DataLossError.from_message(
            f"{who} cannot resume at the checkpoint's position: the state in it is damaged."
        ) from error
