"""Readers: one session's way through a sequence; and streams, the sequences of a front end."""

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
from hookline.data.ahead import Ahead, Item
from hookline.data.batches import Form, owned
from hookline.data.places import Places
from hookline.data.sequences import START, Demand, Read, Sequence, checked, in_arrays, passes_made
from hookline.errors import FailedPreconditionError, OutOfRangeError
from hookline.graph import placement
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.nodes import Source
from hookline.session import Position
from hookline.signals import preemption

_logger = log.of(__name__)

# Batches to read at once, from a source that can give many, for runs that take one each; and the bytes of all.
_AT_ONCE, _AT_ONCE_BYTES = 64, 2**18
# The same for runs that take blocks, each of which then takes a part.
_IN_BLOCKS, _IN_BLOCKS_BYTES = 256, 2**20
_LARGE_BYTES = 2**30


class Reader:
    """One session's way through a sequence: `hookline.session.OpenSource`.

    It may continue a stream that was started already.
    """

    _kind = Ahead

    def __init__(
        self,
        node: Source,
        sequence: Sequence,
        form: batches.Form,
        prefetch: int,
        places: Places,
        begun: tuple[Iterator[Read], Demand] | None = None,
    ) -> None:
        self._node, self._sequence, self._form = node, sequence, form
        self._prefetch, self._places = prefetch, places
        self._position: tuple[Callable[[int], dict[str, Any]], int] = (lambda _: START, 0)
        self._coord: Coordinator | None = None
        # The source is read in the mesh in which the session was made, also by the thread that reads ahead.
        self._home = placement.current()
        # The largest number of batches of a run, the length of blocks as they are read, and whether a size was logged.
        self._capacity, self._length, self._has_warned = 1, 1, False
        self._at_once = _at_once(form, _AT_ONCE, _AT_ONCE_BYTES) if places.sharding is None else 1
        self._set_out(begun)

    def _set_out(self, begun: tuple[Iterator[Read], Demand] | None = None) -> None:
        """Starts a pass after the position."""
        position = self._value()
        self._used, self._before = 0, position["count"]
        ahead = self._ahead = self._kind(
            self._sequence.read, lambda: position, begun, self._form, self._places, self._prefetch, self._at_once
        )
        ahead.home, ahead.demand.capacity = self._home, self._length
        self._forgotten = weakref.finalize(self, ahead.stop)
        self._forgotten.atexit = False
        if self._coord is not None and self._coord.should_stop():
            self._stop()

    # A run's batches --------------------------------------------------------------------------------------------

    def ready(self, most: int = 1) -> int:
        """Returns how many batches a run may take now, or 1 for an error in place of the next one; 0 for none."""
        ahead = self._ahead
        if ahead.items:
            return 1 if most == 1 else ahead.in_row(most)
        return int(ahead.demand.is_over and not preemption.must_finish())

    def wait(self, most: int = 1, capacity: int = 1, to_come: float = 1) -> None:
        """Blocks until batches are ready, or reading has been stopped; without a thread it reads up to `most`.

        From a source in memory it reads batches for the following runs, too; this run and those take `to_come`.
        """
        if self._form.why_no_blocks is not None:
            most = 1
        if (capacity := max(most, capacity)) > self._capacity:
            self._has_room(capacity)
        ahead = self._ahead
        if ahead.demand.is_over:
            if not self.ready():
                ahead.read_on(most)
            return
        if ahead.pays:
            ahead.start(f"hookline-data-{self._node.name}", self._coord)
            ahead.wait()
        if not (ahead.items or ahead.demand.is_over):
            # No more than `to_come`: a later run takes the rest of a block, and would make fewer steps.
            at_once = self._at_once if self._capacity == 1 else int(min(to_come, self._length))
            ahead.read(most, at_once=at_once)

    def _has_room(self, capacity: int) -> None:
        # Room on the host costs nothing until it is used.
        may_be_longer = capacity > 1 and self._sequence.arrays is not None and self._places.stay_on_host
        parts = _at_once(self._form, _IN_BLOCKS, _IN_BLOCKS_BYTES) // capacity if may_be_longer else 1
        self._capacity = capacity
        self._length = self._ahead.demand.capacity = capacity * max(1, parts)
        size = capacity * _size(self._form)
        if size > _LARGE_BYTES and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s: a block of %d batches takes %.1f GB, and several may be in memory at a time. Lower steps_per_run "
                "if that is too much.",
                self._node.node_def,
                capacity,
                size / 1e9,
            )

    def check(self) -> None:
        """Raises the error in place of the next batch, if any.

        Raises:
            OutOfRangeError: The data have ended, or reading was stopped by the coordinator.
            BaseException: The source raised this error; it has the source's traceback.
        """
        front, node = self._ahead.front, self._node
        if front is None:
            raise OutOfRangeError(node.node_def, node, f"{node.node_def}: a stop was requested, so it reads no more.")
        error = front.error
        if error is None:
            return
        if isinstance(error, StopIteration):
            used = self._before + self._used
            raise OutOfRangeError(node.node_def, node, f"{node.node_def}: the data have ended after {used} batches.")
        if isinstance(error, KeyboardInterrupt):
            self._ahead.mend()  # The interrupt was meant for this run. The next run gets the batch.
        node.note(error)
        raise error.with_traceback(front.trace)

    @property
    def has_ended(self) -> bool:
        """Whether the runs have come to the end of the data."""
        front = self._ahead.front
        return front is not None and isinstance(front.error, StopIteration)

    def take(self) -> Item | None:
        """Returns the next batch; None if the run must wait for it. Raises the same errors as `check`."""
        ahead = self._ahead
        if not ahead.items and not self.ready():
            return None
        if not ahead.items or ahead.items[0].error is not None:
            self.check()
        return ahead.take()

    def take_block(self, count: int, capacity: int) -> Item:
        """Returns the next `count` batches, which are ready, in a block with room for `capacity` or more."""
        if capacity != self._capacity:
            self._has_room(capacity)
        return self._ahead.take_block(count, self._length)

    def give_back(self, item: Item) -> None:
        """Puts batches back in front."""
        item.way.give_back(item)

    def use(self, item: Item) -> None:
        """Moves the position past the last batch of an item."""
        # A host operation may have made another run, or a restore, inside the run that took this.
        if item.way is self._ahead and item.number > self._used:
            self._used, self._position = item.number, (item.position, item.start + item.count - 1)

    # Its position -----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the session's position, regardless of batches read ahead."""
        value = self._value()
        return Position(value, lambda: self._sequence.saved(value), self._sequence.before_save)

    def _value(self) -> dict[str, Any]:
        position, place = self._position
        return position(place)

    def go_to(self, position: dict[str, Any]) -> None:
        """Continues after a checkpoint's position; the next run that needs a batch reads up to it.

        Raises:
            FailedPreconditionError: It is a position in arrays whose sharding cannot split the last batch of the epoch
                that is continued there.
        """
        who, arrays, passes = self._node.node_def, self._sequence.arrays, self._sequence.passes
        position = checked(position, f"Iterator {self._node.name!r}")
        place = in_arrays(position, arrays)
        if arrays is not None and place is not None and (problem := self._places.problem_of(arrays, place, passes)):
            raise FailedPreconditionError.from_message(f"{who} cannot resume at the checkpoint's position: {problem}")
        self._position = (lambda _: position), 0
        self._set_out_again()

    def turn_to(self, sequence: Sequence) -> None:
        """Begins at the start of another sequence."""
        self._sequence = sequence
        self.go_to(START)

    @property
    def passes_made(self) -> int:
        """The number of passes over the source up to the position; the present one counts."""
        return passes_made(self._value(), self._sequence.arrays)

    def begin_pass(self) -> bool:
        """Begins one more pass, at the end of the last one; returns False if the source gives each batch once."""
        position = self._sequence.next_pass(self._value())
        if position is not None:
            self._position = (lambda _: position), 0
            self._set_out_again()
        return position is not None

    def _set_out_again(self) -> None:
        self._ahead.stop()
        self._forgotten.detach()  # It would keep the batches read ahead.
        self._set_out()

    # Its thread -------------------------------------------------------------------------------------------------

    def serve(self, coord: Coordinator) -> None:
        """Makes the thread stop with a coordinator."""
        self._coord = coord
        this = weakref.ref(self)

        def stop() -> None:
            reader = this()
            if reader is not None and reader._coord is coord:
                reader._stop()

        coord.on_stop(stop)

    def _stop(self) -> None:
        if self._prefetch:
            self._ahead.stop()

    def close(self) -> None:
        """Stops reading until it is reopened."""
        self._ahead.stop()

    def reopen(self) -> None:
        """Continues after `close` at the same place, with the batches read ahead."""
        self._coord = None
        self._ahead.go_on()


def _at_once(form: batches.Form, most: int, most_bytes: int) -> int:
    """Returns the number of batches of a form to read at once: at most `most`, and `most_bytes` together."""
    size = _size(form)
    return max(1, min(most, most_bytes // size)) if size else 1


def _size(form: batches.Form) -> int:
    """Returns the bytes of a batch; 0 if they are not known."""
    leaves = [] if form.why_no_blocks is not None else jax.tree.leaves(form.example)
    if not all(isinstance(dim, int) for leaf in leaves for dim in leaf.shape):
        return 0
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


class Stream(Sequence):
    """The elements of a Python iterator, for the sources of a front end.

    There is no way back in it, so checkpoints do not hold a position. Several readers share the elements: each gets the
    next one. `Reader.turn_to` has a reader go on with another stream.

    Args:
        elements: Pytrees of arrays and numbers, or text and objects.

    Example:
        >>> import hookline as hl, numpy as np
        >>> from hookline.extend import Source, Stream, specs
        >>> first = Stream(iter(np.arange(3.0)))
        >>> numbers = Source(
        ...     "numbers", lambda node, shared: first.reader(node), specs.declared("float32", ()),
        ...     host_only=False, resumes=False,
        ... )
        >>> with hl.Session() as sess:
        ...     before = sess.run(numbers.output)
        ...     sess.lowlevel.source(numbers).turn_to(Stream(iter([7.0])))
        ...     print(before, sess.run(numbers.output))
        0.0 7.0
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements, self._lock = elements, threading.Lock()

    def reader(self, node: Source, prefetch: int = 2) -> Reader:
        """Opens the stream for a session, as `open_for` of a `Source` does.

        Args:
            node: The source.
            prefetch: The number of elements that a thread keeps ready; with 0 the run reads.
        """
        example = None if node.output.spec is specs.UNKNOWN else node.output.spec
        return Reader(node, self, Form(node.node_def, example, "keep"), prefetch, Places(node.node_def))

    def read(self, position: dict[str, Any], demand: Demand) -> Iterator[Read]:
        """Yields the elements that nobody has read so far, whatever the position."""
        for number in itertools.count(1):
            with self._lock:
                try:
                    element = next(self._elements)
                except StopIteration:
                    return
            yield Read(owned(element), lambda _, number=number: {"count": number})
