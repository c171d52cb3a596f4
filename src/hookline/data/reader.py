"""Reads the batches of a sequence for one session; and streams, the sequences of a front end."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from hookline import log
from hookline.coordination import Coordinator
from hookline.data import batches
from hookline.data.batch_sharding import BatchSharding
from hookline.data.batches import BatchSpec, copy_owned
from hookline.data.prefetcher import PrefetchedBatch, Prefetcher
from hookline.data.sequences import (
    START,
    BatchSequence,
    ReadRequest,
    ReadResult,
    array_position,
    check_position,
    passes_made,
)
from hookline.errors import FailedPreconditionError, OutOfRangeError
from hookline.graph import placement
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Source
from hookline.session import Position
from hookline.signals import preemption

_logger = log.get_logger(__name__)

# The largest number of batches, and of their bytes, to read at once from a source that can give many, for runs that
# take one each.
_AT_ONCE, _AT_ONCE_BYTES = 64, 2**18
# The same for runs that take blocks: each takes a part of these batches.
_IN_BLOCKS, _IN_BLOCKS_BYTES = 256, 2**20
_LARGE_BYTES = 2**30


class BatchReader:
    """Reads a sequence for one session: implements `hookline.session.OpenSource`.

    It may continue a stream that was started already.
    """

    _prefetcher_class = Prefetcher

    def __init__(
        self,
        node: Source,
        sequence: BatchSequence,
        batch_spec: batches.BatchSpec,
        prefetch: int,
        batch_sharding: BatchSharding,
        started: tuple[Iterator[ReadResult], ReadRequest] | None = None,
    ) -> None:
        self._node, self._sequence, self._batch_spec = node, sequence, batch_spec
        self._prefetch, self._batch_sharding = prefetch, batch_sharding
        self._position: tuple[Callable[[int], dict[str, Any]], int] = (lambda _: START, 0)
        self._coord: Coordinator | None = None
        # The source is read in the mesh context in which the session was made, by the prefetching thread, too.
        self._mesh_context = placement.current_mesh_context()
        # The largest number of batches of a run, the length of blocks as they are read, and whether a size was logged.
        self._capacity, self._length, self._has_warned = 1, 1, False
        self._read_size = _read_size(batch_spec, _AT_ONCE, _AT_ONCE_BYTES) if batch_sharding.sharding is None else 1
        self._start_prefetcher(started)

    def _start_prefetcher(self, begun: tuple[Iterator[ReadResult], ReadRequest] | None = None) -> None:
        """Makes a prefetcher that begins after the position."""
        position = self.own_position
        self._used, self._before = 0, position["count"]
        prefetcher = self._prefetcher = self._prefetcher_class(
            self._sequence.read,
            lambda: position,
            begun,
            self._batch_spec,
            self._batch_sharding,
            self._prefetch,
            self._read_size,
        )
        prefetcher.mesh_context, prefetcher.request.capacity = self._mesh_context, self._length
        self._finalizer = weakref.finalize(self, prefetcher.stop)
        self._finalizer.atexit = False
        if self._coord is not None and self._coord.should_stop():
            self._stop()

    # A run's batches --------------------------------------------------------------------------------------------

    def num_ready(self, max_count: int = 1) -> int:
        """Returns the number of batches that a run may take now; 1 for an error instead of a batch, 0 for neither."""
        prefetcher = self._prefetcher
        if prefetcher.items:
            return 1 if max_count == 1 else prefetcher.num_in_row(max_count)
        return int(prefetcher.request.is_cancelled and not preemption.must_finish())

    def wait(self, max_count: int = 1, capacity: int = 1, upcoming_steps: float = 1) -> None:
        """Blocks until batches are ready or reading was stopped; without a thread it reads up to `max_count`.

        From a source in memory it reads batches for the following runs, too. This run and those take `upcoming_steps`.
        """
        if self._batch_spec.block_error is not None:
            max_count = 1
        if (capacity := max(max_count, capacity)) > self._capacity:
            self._set_capacity(capacity)
        prefetcher = self._prefetcher
        if prefetcher.request.is_cancelled:
            if not self.num_ready():
                prefetcher.read_after_stop(max_count)
            return
        if prefetcher.is_worthwhile:
            prefetcher.start(self._node.name, self._coord)
            prefetcher.wait()
        if not (prefetcher.items or prefetcher.request.is_cancelled):
            # No more than `upcoming_steps`: a later run would take the rest of the block, and so make fewer steps.
            at_once = self._read_size if self._capacity == 1 else int(min(upcoming_steps, self._length))
            prefetcher.read(max_count, read_size=at_once)

    def _set_capacity(self, capacity: int) -> None:
        # Memory on the host costs nothing until it is used.
        may_be_longer = capacity > 1 and self._sequence.arrays is not None and self._batch_sharding.stay_on_host
        parts = _read_size(self._batch_spec, _IN_BLOCKS, _IN_BLOCKS_BYTES) // capacity if may_be_longer else 1
        self._capacity = capacity
        self._length = self._prefetcher.request.capacity = capacity * max(1, parts)
        size = capacity * _batch_bytes(self._batch_spec)
        if size > _LARGE_BYTES and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s: a block of %d batches takes %.1f GB, and several may be in memory at a time. Lower steps_per_run "
                "if that is too much.",
                self._node.node_def,
                capacity,
                size / 1e9,
            )

    def raise_error(self) -> None:
        """Raises the error that takes the place of the next batch, if any.

        Raises:
            OutOfRangeError: The data have ended, or reading was stopped by the coordinator.
            BaseException: The source raised this error; it has the source's traceback.
        """
        front, node = self._prefetcher.front, self._node
        if front is None:
            raise OutOfRangeError(
                node.node_def, node, f"{node.node_def}: a stop was requested, so no more batches are read."
            )
        error = front.error
        if error is None:
            return
        if isinstance(error, StopIteration):
            used = self._before + self._used
            raise OutOfRangeError(node.node_def, node, f"{node.node_def}: the data have ended after {used} batches.")
        if isinstance(error, KeyboardInterrupt):
            self._prefetcher.recover_from_interrupt()  # The interrupt was for this run; the next one gets the batch.
        node.annotate_error(error)
        raise error.with_traceback(front.traceback)

    @property
    def has_ended(self) -> bool:
        """Whether the runs have come to the end of the data."""
        front = self._prefetcher.front
        return front is not None and isinstance(front.error, StopIteration)

    def take(self) -> PrefetchedBatch | None:
        """Returns the next batch; None if the run must wait for it. Raises the same errors as `raise_error`."""
        prefetcher = self._prefetcher
        if not prefetcher.items and not self.num_ready():
            return None
        if not prefetcher.items or prefetcher.items[0].error is not None:
            self.raise_error()
        return prefetcher.take()

    def take_block(self, count: int, capacity: int) -> PrefetchedBatch:
        """Returns the next `count` batches, which are ready, in a block of capacity `capacity` or more."""
        if capacity != self._capacity:
            self._set_capacity(capacity)
        return self._prefetcher.take_block(count, self._length)

    def give_back(self, item: PrefetchedBatch) -> None:
        """Returns batches to the front of the queue."""
        item.prefetcher.give_back(item)

    def mark_used(self, item: PrefetchedBatch) -> None:
        """Moves the position past the last batch of an item."""
        # Inside the run that took this item, a host operation may have made another run, or a restore.
        if item.prefetcher is self._prefetcher and item.number > self._used:
            self._used, self._position = item.number, (item.position, item.start + item.count - 1)

    # The position -----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the session's position, which does not count prefetched batches."""
        value = self.own_position
        return Position(value, lambda: self._sequence.on_saved(value), self._sequence.before_save)

    @property
    def own_position(self) -> dict[str, Any]:
        """The position of this process."""
        position, index = self._position
        return position(index)

    def seek(self, position: dict[str, Any]) -> None:
        """Continues after a checkpoint's position; the next run that needs a batch reads up to it.

        Raises:
            FailedPreconditionError: It is a position in arrays, and the sharding cannot split the last batch of the
                epoch that continues there.
        """
        who, arrays, passes = self._node.node_def, self._sequence.arrays, self._sequence.passes
        position = check_position(position, f"Iterator {self._node.name!r}")
        start = array_position(position, arrays)
        if (
            arrays is not None
            and start is not None
            and (problem := self._batch_sharding.resume_problem(arrays, start, passes))
        ):
            raise FailedPreconditionError.from_message(f"{who} cannot resume at the checkpoint's position: {problem}")
        self._position = (lambda _: position), 0
        self._restart_prefetcher()

    def switch_to(self, sequence: BatchSequence) -> None:
        """Begins at the start of another sequence."""
        self._sequence = sequence
        self.seek(START)

    @property
    def passes_made(self) -> int:
        """The number of passes over the source up to the position, including the present one."""
        return passes_made(self.own_position, self._sequence.arrays)

    def begin_pass(self) -> bool:
        """Begins one more pass at the end of the last one; returns False if the source gives each batch only once."""
        position = self._sequence.next_pass(self.own_position)
        if position is not None:
            self._position = (lambda _: position), 0
            self._restart_prefetcher()
        return position is not None

    def _restart_prefetcher(self) -> None:
        self._prefetcher.stop()
        self._finalizer.detach()  # It would keep the prefetched batches.
        self._start_prefetcher()

    # The thread -------------------------------------------------------------------------------------------------

    def attach_coordinator(self, coord: Coordinator) -> None:
        """Stops the thread when the coordinator stops."""
        self._coord = coord
        this = weakref.ref(self)

        def stop() -> None:
            reader = this()
            if reader is not None and reader._coord is coord:
                reader._stop()

        coord.on_stop(stop)

    def _stop(self) -> None:
        if self._prefetch:
            self._prefetcher.stop()

    def close(self) -> None:
        """Stops reading until it is reopened."""
        self._prefetcher.stop()

    def reopen(self) -> None:
        """Continues after `close` at the same position, with the prefetched batches."""
        self._coord = None
        self._prefetcher.resume()


def _read_size(form: batches.BatchSpec, most: int, most_bytes: int) -> int:
    """Returns the number of batches of a form to read at once: at most `most`, and `most_bytes` together."""
    size = _batch_bytes(form)
    return max(1, min(most, most_bytes // size)) if size else 1


def _batch_bytes(form: batches.BatchSpec) -> int:
    """Returns the bytes of a batch; 0 if they are not known."""
    leaves = [] if form.block_error is not None else jax.tree.leaves(form.example)
    if not all(isinstance(dim, int) for leaf in leaves for dim in leaf.shape):
        return 0
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


class Stream(BatchSequence):
    """The elements of a Python iterator, for the sources of a front end.

    It cannot seek back, so checkpoints do not hold a position. Several readers share the elements: each gets the next
    one. `BatchReader.switch_to` moves a reader to another stream.

    Args:
        elements: Pytrees of arrays and numbers, or text and objects.

    Example:
        >>> import hookline as hl, numpy as np
        >>> from hookline.extend import Source, Stream, specs
        >>> first = Stream(iter(np.arange(3.0)))
        >>> numbers = Source(
        ...     "numbers", lambda node, shared: first.reader(node), specs.array_spec("float32", ()),
        ...     host_only=False, resumes=False,
        ... )
        >>> with hl.Session() as sess:
        ...     before = sess.run(numbers.output)
        ...     sess.backend.source(numbers).switch_to(Stream(iter([7.0])))
        ...     print(before, sess.run(numbers.output))
        0.0 7.0
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements, self._lock = elements, threading.Lock()

    def reader(self, node: Source, prefetch: int = 2) -> BatchReader:
        """Opens the stream for a session, as `open_for` of a `Source` does.

        Args:
            node: The source.
            prefetch: The number of elements that a thread keeps ready; with 0 the run reads.
        """
        example = None if node.output.spec is specs.UNKNOWN else node.output.spec
        return BatchReader(
            node, self, BatchSpec(node.node_def, example, "keep"), prefetch, BatchSharding(node.node_def)
        )

    def read(self, position: dict[str, Any], request: ReadRequest) -> Iterator[ReadResult]:
        """Yields the elements that no reader has read yet, whatever the position."""
        for number in itertools.count(1):
            with self._lock:
                try:
                    element = next(self._elements)
                except StopIteration:
                    return
            yield ReadResult(copy_owned(element), lambda _, number=number: {"count": number})
