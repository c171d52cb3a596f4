"""Makes a sequence of a source: restartable, with a state, or a plain iterator."""

from __future__ import annotations

import inspect
import reprlib
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from hookline import log
from hookline.coordination import process_group
from hookline.data import batches
from hookline.data.from_arrays import ArraySource
from hookline.data.sequences import (
    BatchSequence,
    ReadRequest,
    ReadResult,
    RestartableSource,
    StatefulSource,
    num_batches_of,
    state_accessors,
    taken_over_error,
)
from hookline.errors import FailedPreconditionError
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)

# Iterable, but not batch by batch.
_NOT_SOURCES = (str, bytes, Mapping, np.ndarray, jax.Array)


class IteratorSource(BatchSequence):
    """An iterator that cannot be restarted. It keeps the batches since the last checkpoint, to replay them.

    Args:
        iterator: The iterator.
        who: The iterator of the graph, for messages.
        replay_bytes: The largest number of bytes of batches to keep, not counting the latest; `None` if no reader seeks
            back: each continues after the previous one.
    """

    def __init__(self, iterator: Iterator[Any], who: str, replay_bytes: int | None) -> None:
        self._iterator, self._who, self._replay_bytes = iterator, who, replay_bytes or 0
        self.num_batches = num_batches_of(iterator)
        self._can_rewind = replay_bytes is not None
        # Positions from another process do not belong to this iterator.
        self._token = secrets.token_hex(8)
        # `next` of the iterator may block for long, so the kept batches have a lock of their own.
        self._reading, self._lock = threading.Lock(), threading.Lock()
        self._kept: deque[Any] = deque()
        self._first = self._bytes = 0
        self._error: BaseException | None = None
        self._reader: object = None
        self._has_warned = self._has_announced = False

    def read(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:  # noqa: D102
        reader, count = object(), self._start_count(position)
        with self._reading:
            self._reader = reader
        while True:
            with self._reading:
                if self._reader is not reader:
                    raise taken_over_error(self._who)
                try:
                    batch = self._batch_at(count)
                except StopIteration:
                    return
            count += 1
            yield self._numbered(batch, count)

    def _numbered(self, batch: Any, count: int) -> ReadResult:
        # The next process may give a function that makes the iterator; that needs the checksum.
        return ReadResult(batch, lambda _: {"count": count, "token": self._token, "crc32c": batches.crc32c(batch)})

    def _batch_at(self, count: int) -> Any:
        """Returns a kept batch, or else the next one."""
        with self._lock:
            if count < self._first:
                raise FailedPreconditionError.from_message(
                    f"{self._who} cannot go back to batch {count}: its source is an iterator that cannot be restarted, "
                    f"and only its last {self._replay_bytes} bytes are kept (replay_bytes), from batch {self._first} "
                    f"on. Give a function that makes the iterator, save more often, or keep more."
                )
            if count < self._first + len(self._kept):
                return self._kept[count - self._first]
        batch = batches.copy_owned(self._next())
        with self._lock:
            self._kept.append(batch)
            self._bytes += batches.nbytes(batch)
            while self._bytes > self._replay_bytes and len(self._kept) > 1:
                self._drop_oldest()
        return batch

    @calls_user_code
    def _next(self) -> Any:
        if self._error is not None:
            raise self._error
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except KeyboardInterrupt as error:
            self._error = FailedPreconditionError.from_message(
                f"{self._who}: a KeyboardInterrupt was raised inside its source, an iterator, which may not be able to "
                f"continue. Give a function that makes the iterator, so that it can be restarted."
            )
            self._error.__cause__ = error
            raise
        except BaseException as error:  # The generator has ended: each later read raises this again.
            self._error = error
            raise

    def _start_count(self, position: dict[str, Any]) -> int:
        if not self._can_rewind:
            return self._first + len(self._kept)
        if not position["count"] or position.get("token") == self._token:
            return position["count"]
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s starts from the beginning, though the checkpoint had used %d batches: its source, %s, cannot be "
                "set to a position. Give a function that makes the iterator to resume there. To read the data from "
                "the beginning at each start, %s.",
                self._who,
                position["count"],
                _describe_iterator(self._iterator),
                self.restart.restart,
            )
        return 0

    def _drop_oldest(self) -> None:
        self._bytes -= batches.nbytes(self._kept.popleft())
        self._first += 1

    def before_save(self) -> None:  # noqa: D102
        if not (self._has_warned or self._has_announced) and process_group.is_primary():
            _logger.warning(
                "%s: its source, %s, gives each batch only once, so a later start of the training %s. To resume, give "
                "a function that makes it%s, hookline.data.from_arrays, or a source with get_state and set_state. To "
                "read the data from the beginning at each start, %s.",
                self._who,
                _describe_iterator(self._iterator),
                self.restart.outcome,
                _generator_advice(self._iterator),
                self.restart.restart,
            )
        self._has_announced = True

    def on_saved(self, position: dict[str, Any]) -> None:  # noqa: D102
        with self._lock:
            if position.get("token") == self._token:
                while self._first < position["count"] and self._kept:
                    self._drop_oldest()


def _describe_iterator(iterator: Any) -> str:
    name = getattr(iterator, "__name__", None)  # A generator's is the name of its function.
    return f"a {type(iterator).__name__}" if name is None else f"the {type(iterator).__name__} {name!r}"


def _generator_advice(iterator: Any) -> str:
    """Returns the function of a generator, as advice."""
    is_named = inspect.isgenerator(iterator) and iterator.__name__.isidentifier()
    return f" ({iterator.__name__} instead of {iterator.__name__}())" if is_named else ""


def make_sequence(
    source: Any, who: str, replay_bytes: int | None, *, is_lazy: bool = False
) -> RestartableSource | StatefulSource | IteratorSource:
    """Makes a sequence of a source; raises the errors of `check_source`.

    Args:
        source: The source.
        who: The iterator, for messages.
        replay_bytes: As in `IteratorSource`.
        is_lazy: Whether the batches of `from_arrays` are gathered only when their rows are read.
    """
    check_source(source, who)
    if isinstance(source, ArraySource):
        return RestartableSource(source.iter_lazily if is_lazy else lambda: source, who, source)
    if not isinstance(source, type):  # A class is a function that makes iterables, though it has their methods.
        if state_accessors(source) is not None and hasattr(source, "__iter__"):
            return StatefulSource(source, who)
        if is_plain_iterator(source):
            return IteratorSource(source, who, replay_bytes)
        if _is_iterable(source):
            return RestartableSource(lambda: source, who)
    return RestartableSource(source, who)


def check_source(source: Any, who: str) -> None:
    """Raises `TypeError` unless it is a function that makes an iterable, or an iterable of batches."""
    if not callable(source) and not is_plain_iterator(source) and not _is_iterable(source):
        raise TypeError(
            f"{who} requires a function that makes an iterable, an iterable of batches, or an iterator, got "
            f"{describe_value(source)}. For arrays in memory, use hookline.data.from_arrays(tree, batch_size)."
        )


def describe_value(value: Any) -> str:
    """Describes a value briefly, for messages: arrays by dtype and shape, as in "float64[9,2]"."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {describe_value(part)}' for key, part in value.items())}}}"
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return reprlib.repr(value)


def _is_iterable(source: Any) -> bool:
    return hasattr(source, "__iter__") and not isinstance(source, _NOT_SOURCES)


def is_plain_iterator(source: Any) -> bool:
    """Returns whether it is an iterator that gives each batch once and cannot be set to a position."""
    return hasattr(source, "__next__") and not isinstance(source, type) and state_accessors(source) is None
