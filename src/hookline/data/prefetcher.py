"""Prefetches batches: a thread reads them and puts them on devices before runs need them."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import jax
import numpy as np

from hookline import clock
from hookline.coordination import Coordinator, progress
from hookline.data import batches
from hookline.data.batch_sharding import BatchSharding, outline
from hookline.data.sequences import START, ReadCancelled, ReadRequest, ReadResult
from hookline.errors import InvalidArgumentError
from hookline.graph import placement
from hookline.signals.interrupts import calls_user_code

READER_NAME = "hookline-data-"
"""How the names of threads that read batches begin."""

_EXIT_SECS = 1.0
# Roughly the time to pass a batch from one thread to another on one processor.
_HANDOVER_SECS = 1e-4


@dataclasses.dataclass(slots=True)
class PrefetchedBatch:
    """An item of a prefetcher's queue: a single batch, batches of a block, or an error in place of the next batch.

    A block is several batches stacked along a new first axis.

    Attributes:
        prefetcher: The prefetcher that read the item.
        number: The ordinal of the item's last batch, counted from 1 over all batches of the prefetcher.
        value: The batch, or the whole block.
        start: The index in the block of the item's first batch.
        count: How many batches the item has.
        capacity: The length of the block, whose last rows may be unused; 0 for a single batch.
        position: Returns the position after the batch at an index of the block.
        error: The error that a run gets instead of a batch: the source's error, or `StopIteration` at the end.
        traceback: The original traceback of the error, because `error.__traceback__` grows each time it is raised.
    """

    # A prefetcher's batches 5 to 8 in a block. A run takes two of them:
    #
    #     the block         number 8, start 0, count 4, capacity 4
    #     the run's item    number 6, start 0, count 2: the same arrays, and position(1) is the position after batch 6
    #     the rest          number 8, start 2, count 2
    #
    # If the run fails before its updates are applied, `give_back` merges both items again.

    prefetcher: Prefetcher
    number: int
    value: Any = None
    start: int = 0
    count: int = 1
    capacity: int = 0
    position: Callable[[int], dict[str, Any]] = lambda _: START
    error: BaseException | None = None
    traceback: TracebackType | None = None

    @property
    def position_after(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the position after this item; it does not keep the item's value in memory."""
        return functools.partial(self.position, self.start + self.count - 1)

    def batch(self, index: int) -> Any:
        """Returns the batch at an index of the item, as a single batch."""
        return batches.get_row(self.value, self.start + index) if self.capacity else self.value

    def take_first(self) -> PrefetchedBatch:
        """Removes the first batch from the item, and returns it as a single batch."""
        value, position, index = self.batch(0), self.position, self.start
        self.start, self.count = index + 1, self.count - 1
        return PrefetchedBatch(self.prefetcher, self.number - self.count, value, position=lambda _: position(index))

    def take_part(self, count: int) -> PrefetchedBatch:
        """Removes the first `count` batches, and returns them as an item of the same block."""
        start, left = self.start, self.count - count
        self.start, self.count = start + count, left
        return PrefetchedBatch(
            self.prefetcher, self.number - left, self.value, start, count, self.capacity, self.position
        )


class Prefetcher:
    """A queue of batches: a thread fills it, and runs take batches from it.

    It holds no reference to a session, so the session can be garbage-collected.

    Args:
        begin: Returns the stream of batches after a position.
        position: Returns the position to begin at.
        started: A stream that already began at that position, and its request; None to begin one.
        batch_spec: The required shapes and dtypes of the batches.
        batch_sharding: The shardings of the batches.
        limit: The number of items that the thread keeps ready.
        read_size: The number of batches to request in one read if runs take one batch each. If a source can
            return many batches at once, that takes hardly more time than one batch.
    """

    def __init__(
        self,
        begin: Callable[[dict[str, Any], ReadRequest], Iterator[ReadResult]],
        position: Callable[[], dict[str, Any]],
        started: tuple[Iterator[ReadResult], ReadRequest] | None,
        batch_spec: batches.BatchSpec,
        batch_sharding: BatchSharding,
        limit: int,
        read_size: int = 1,
    ) -> None:
        # `_end_position` returns the position after the last batch that was read: at first, where to begin.
        self._begin, self._end_position = begin, position
        self._stream, self.request = started or (None, ReadRequest())
        self._batch_spec, self._batch_sharding, self._limit, self._read_size = (
            batch_spec,
            batch_sharding,
            limit,
            read_size,
        )
        self._reading = threading.Lock()  # Held during a read: the thread and a run never read at once.
        self._starting = threading.Lock()
        self._count = 0
        self._group_size = 0  # The number of single batches that the last read returned.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # The same lock; `with self._lock` is faster.
        self.items: deque[PrefetchedBatch] = deque()
        self.thread: threading.Thread | None = None
        self.mesh_context: Any = None
        self._on_one_cpu = batch_sharding.on_one_cpu
        # The part of a read's time that is spent waiting for a disk or a network: a moving average over the last reads.
        self._idle_secs = 2 * _HANDOVER_SECS

    @property
    def is_worthwhile(self) -> bool:
        """Whether runs wait less if a thread prefetches.

        On the CPU backend, programs and the source compute on the same processor. There a thread saves only the time in
        which the source waits for a disk or a network. For a source that only computes, a thread adds the time of the
        handover.
        """
        return self._limit > 0 and (self._idle_secs > _HANDOVER_SECS or not self._on_one_cpu)

    # Called by the thread ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Reads until the sequence ends or reading is stopped."""
        with placement.enter_mesh(self.mesh_context):
            while self._wait_for_room():
                most = self.request.capacity
                if not self.read(most, ahead=True, read_size=self._read_size if most == 1 else most):
                    return

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not (self.request.is_cancelled or self._has_room()):
                clock.wait_for(self._changed, lambda: self.request.is_cancelled or self._has_room())
            return not self.request.is_cancelled

    def _has_room(self) -> bool:
        # If a read returns many single batches, the next read begins when half of them are left.
        limit = max(self._limit, self._group_size // 2) if self.request.capacity == 1 else self._limit
        return len(self.items) < limit and self.is_worthwhile

    def read(self, max_count: int, *, ahead: bool = False, read_size: int = 1) -> bool:
        """Reads batches, unless some are ready; returns whether more may follow.

        Args:
            max_count: The largest number of batches to read.
            ahead: Whether to read even if batches are ready.
            read_size: The number of batches to request if the source can return more than `max_count` at once.
        """
        with self._reading:
            if self.items and (not ahead or self.items[-1].error is not None):
                return self.items[-1].error is None
            row: list[ReadResult] = []  # Batches with equal shapes that are not in the queue yet.
            try:
                while len(row) < max_count and not (row and self.request.is_cancelled):
                    self.request.max_count = max_count - len(row) if row else max(max_count, read_size)
                    read = self._next()
                    is_block = read.size is not None
                    if row and (is_block or _shapes(read.batch) != _shapes(row[0].batch)):
                        begun, row = row, []  # Emptied first: if `_enqueue` fails, the handler must not repeat it.
                        self._enqueue(begun, max_count)
                        row = [read]
                        break
                    row.append(read)
                    if is_block:
                        break
                done, row = row, []
                self._enqueue(done, max_count)
                return True
            except ReadCancelled:
                self._stream = None  # A read after the stop begins another stream at `_end_position`.
            except BaseException as error:  # Runs first get the batches that were read, and then the error.
                if row:
                    self._enqueue(row, max_count)
                # A Ctrl-C comes first in the queue: it is for the run that waits now.
                is_interrupt = isinstance(error, KeyboardInterrupt)
                if isinstance(error, StopIteration):  # The frames in its traceback would keep the session alive.
                    error = StopIteration()
                self._add(
                    PrefetchedBatch(self, self._count, error=error, traceback=error.__traceback__),
                    in_front=is_interrupt,
                )
            return False

    def _next(self) -> ReadResult:
        """Returns the next batch or block, converted to the shapes and dtypes of `BatchSpec`."""
        if self._stream is None:
            self._stream = self._begin(self._end_position(), self.request)
        while True:
            read = self._timed_next() if self._limit and self._on_one_cpu else next(self._stream)
            try:
                value = self._batch_spec.fit(read.batch, read.size)
            except InvalidArgumentError:
                if read.size is None:
                    raise
                # Reads the batches of the block one by one, so that only the batch that does not fit is an error.
                self._stream = itertools.chain(_split_block(read, read.size), self._stream)
                continue
            progress.count += 1
            if value is read.batch:
                return read
            if value is not None:  # Else `BatchSpec` drops this batch.
                return read._replace(batch=value)

    def _timed_next(self) -> ReadResult:
        """Returns the next batch or block, and measures how long its source waited."""
        assert self._stream is not None, "It was started before."
        start, computed = clock.monotonic(), clock.thread_cpu_time()
        read = next(self._stream)
        took, computed = clock.monotonic() - start, clock.thread_cpu_time() - computed
        # The wall time minus the CPU time of a read is waiting: for a disk or a network, or for a processor that other
        # threads used. Prefetching shortens only the first, so a quarter of the CPU time is subtracted as an estimate
        # of the second. The `min` and the moving average keep one long wait from changing the decision.
        idle = max(took - 1.25 * computed, 0)
        was_worthwhile = self.is_worthwhile
        self._idle_secs += (min(idle, 2 * _HANDOVER_SECS) - self._idle_secs) / 8
        if was_worthwhile and not self.is_worthwhile:
            with self._changed:
                self._changed.notify_all()  # The thread stops reading: runs that wait for it now read themselves.
        return read

    def _enqueue(self, row: list[ReadResult], max_count: int) -> None:
        """Adds batches with equal shapes, or a block, to the queue.

        A batch that was read for a run of one step stays a single batch. But if batches are put on a device and runs
        may also take blocks, it becomes a block of length `request.capacity` on the host: to stack it later, on the
        device, would copy it again.
        """
        value, position, size = row[0]
        # `one`: the shapes and dtypes of one batch, if `value` is a block to put on devices.
        one, count, capacity = None, len(row), 0
        # On a CPU without a sharding, batches are passed to the program as they are, unless they cannot be stacked.
        is_placed = not (self._batch_sharding.stay_on_host and self._batch_spec.block_error is None)
        if size is not None and self.request.capacity == 1 and self._batch_sharding.sharding is None:
            # Runs take them one by one. To put all on the device at once takes hardly longer than one batch.
            value = self._batch_sharding.device_put(value, jax.tree.map(_batch_outline, value)) if is_placed else value
            rows = batches.unstack(value, size)
            before, self._count, self._group_size = self._count, self._count + size, size
            items = [PrefetchedBatch(self, before + i + 1, batch, i, position=position) for i, batch in enumerate(rows)]
            self._end_position = items[-1].position_after
            self._add(*items)
            return
        if size is not None:
            count, capacity = size, len(jax.tree.leaves(value)[0])
            one = jax.tree.map(_batch_outline, value) if is_placed else None
        elif max_count > 1 or (is_placed and self.request.capacity > 1 and self._batch_spec.block_error is None):
            # The request may have another capacity by now than when the batches were read.
            capacity, positions = max(self.request.capacity, count), [read.position for read in row]
            value, one = batches.stack([read.batch for read in row], capacity), jax.tree.map(outline, value)
            position = lambda index: positions[index](0)  # noqa: E731
        if is_placed:
            value = self._batch_sharding.device_put(value, one)
        self._count += count
        item = PrefetchedBatch(self, self._count, value, 0, count, capacity, position)
        self._end_position = item.position_after
        self._add(item)

    def _add(self, *items: PrefetchedBatch, in_front: bool = False) -> None:
        with self._lock:
            (self.items.extendleft if in_front else self.items.extend)(items)
            self._notify()

    # Called by the runs of a session ----------------------------------------------------------------------------

    @property
    def front(self) -> PrefetchedBatch | None:
        """The first item, which the next run gets; None if no item is ready."""
        return self.items[0] if self.items else None

    def num_in_row(self, max_count: int) -> int:
        """Counts the batches at the front that have equal shapes, up to `max_count`. The queue must have an item."""
        front = self.items[0]
        if front.error is not None or front.capacity or max_count == 1 or self._batch_spec.block_error is not None:
            return min(front.count, max_count)
        count, shapes = 1, _shapes(front.value)
        while count < min(max_count, len(self.items)):
            item = self.items[count]
            if item.error is not None or item.capacity or _shapes(item.value) != shapes:
                break
            count += 1
        return count

    @calls_user_code
    def wait(self) -> None:
        """Blocks until there is an item, or the thread reads no more."""
        with self._changed:
            while self.is_worthwhile and not (self.items or self.request.is_cancelled):
                clock.wait_for(
                    self._changed, lambda: bool(self.items) or self.request.is_cancelled or not self.is_worthwhile
                )

    def _notify(self) -> None:
        """Wakes the thread, which may have work, and the runs that wait for it."""
        if self.thread is not None and self.is_worthwhile:
            self._changed.notify_all()

    def take(self) -> PrefetchedBatch:
        """Removes the first batch from the queue and returns it."""
        with self._lock:
            item = self.items[0]
            found = item.take_first() if item.capacity else item
            if found is item or not item.count:
                self.items.popleft()
            if self.thread is not None and self._has_room():
                self._notify()
        if found is not item and not self._batch_sharding.stay_on_host:
            found.value = self._batch_sharding.device_put(found.value)
        return found

    def take_block(self, count: int, capacity: int) -> PrefetchedBatch:
        """Removes the first `count` batches and returns them as a block of length `capacity`.

        `num_in_row` must have returned at least `count`.
        """
        with self._lock:
            parts = [self._pop(count)]
            left = count - parts[0].count
            for _ in range(left):  # If any are left, the first item and these are single batches.
                parts.append(self._pop(1))
            self._notify()
        if parts[0].capacity == capacity:
            return parts[0]
        # They were read before runs took blocks of this capacity.
        try:
            rows = [(part, index) for part in parts for index in range(part.count)]
            value = batches.stack([part.batch(index) for part, index in rows], capacity)
            if not self._batch_sharding.stay_on_host:
                value = self._batch_sharding.device_put(value, jax.tree.map(outline, parts[0].batch(0)))
        except BaseException:  # The next run must get these batches.
            for part in reversed(parts):
                self.give_back(part)
            raise
        positions = [functools.partial(part.position, part.start + index) for part, index in rows]
        return PrefetchedBatch(self, parts[-1].number, value, 0, count, capacity, lambda index: positions[index]())

    def _pop(self, count: int) -> PrefetchedBatch:
        front = self.items[0]
        return front.take_part(count) if front.count > count else self.items.popleft()

    def give_back(self, item: PrefetchedBatch) -> None:
        """Returns an item to the front of the queue, merged with the rest of its block."""
        with self._lock:
            front = self.items[0] if self.items else None
            if front is not None and front.value is item.value and item.start + item.count == front.start:
                item = dataclasses.replace(front, start=item.start, count=item.count + front.count)
                self.items.popleft()
            self.items.appendleft(item)

    def start(self, name: str, coord: Coordinator | None) -> None:
        """Starts the thread for the iterator `name`, unless it was started before."""
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name=f"{READER_NAME}{name}", daemon=True)
                if coord is not None:
                    coord.register_thread(self.thread)
                _stop_at_exit(self)
                self.thread.start()

    def stop(self) -> None:
        """Stops the thread; a source that is still skipping to its position stops too."""
        with self._changed:
            self.request.is_cancelled = True
            self._changed.notify_all()

    def read_after_stop(self, max_count: int, *, ahead: bool = False) -> None:
        """Reads once after a stop, for a run that needs a batch."""
        self.resume()
        try:
            self.read(max_count, ahead=ahead)
        finally:
            self.stop()

    def resume(self) -> None:
        """Allows reads again after a stop."""
        with self._starting:
            self.request.is_cancelled = False
            self.thread = None

    def recover_from_interrupt(self) -> None:
        """Removes an interrupt from the queue; the next read begins another stream, after the batches read so far."""
        with self._starting:
            self.items.popleft()
            self._stream = self.thread = None


def _split_block(read: ReadResult, size: int) -> Iterator[ReadResult]:
    """Yields the batches of a block as single batches."""
    for index in range(size):
        yield ReadResult(batches.get_row(read.batch, index), lambda _, index=index: read.position(index))


def _shapes(batch: Any) -> list[Any]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(batch)]


def _batch_outline(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an array in one batch, given that array in a block."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


# The prefetchers whose threads were started, to stop at exit.
_reading: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


def _stop_at_exit(prefetcher: Prefetcher) -> None:
    """Stops the thread at exit, before Python destroys the objects that the thread uses."""
    if not _reading:
        with contextlib.suppress(Exception):
            atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _reading.add(prefetcher)


def _stop_all() -> None:
    for prefetcher in list(_reading):
        prefetcher.stop()
    for prefetcher in list(_reading):
        if prefetcher.thread is not None:
            prefetcher.thread.join(_EXIT_SECS)
