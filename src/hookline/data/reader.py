"""Reading ahead: a thread reads and places the batches of one session before runs ask for them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from hookline import clock, preemption
from hookline.coordination import Coordinator
from hookline.data import batches
from hookline.data.places import Places
from hookline.data.sequences import START, BrokenOff, Read, Sequence
from hookline.errors import OutOfRangeError
from hookline.graph import placement
from hookline.graph.nodes import Source
from hookline.session import Position

_EXIT_SECS = 1.0


class Item(NamedTuple):
    """The item at one place of the sequence.

    Attributes:
        way: The pass on which it was read.
        number: Its number on that pass.
        value: What a run gets.
        position: Returns the position after it.
        error: The error that a run gets instead: why it could not be read, or `StopIteration` at the end.
        trace: The traceback of that error, which lengthens each time it is raised.
    """

    way: _Ahead
    number: int
    value: Any = None
    position: Callable[[], dict[str, Any]] = dict
    error: BaseException | None = None
    trace: TracebackType | None = None


class _Ahead:
    """State shared by the thread and the runs. It refers to no session, so a dropped session can be collected."""

    def __init__(
        self,
        begin: Callable[[Callable[[], bool]], Iterator[Read]],
        begun: Iterator[Read] | None,
        form: batches.Form,
        places: Places,
        limit: int,
    ) -> None:
        self._begin, self._stream = begin, begun
        self._form, self._places, self._limit = form, places, limit
        self._reading = threading.Lock()
        self._starting = threading.Lock()
        self._count = 0
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self.has_stopped = False
        self.thread: threading.Thread | None = None
        self.home: Any = None

    # By the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        with placement.inside(self.home):
            while self._wait_for_room() and self.read_one():
                pass

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not self.has_stopped and len(self._items) >= self._limit:
                clock.wait_for(self._changed, lambda: self.has_stopped or len(self._items) < self._limit)
            return not self.has_stopped

    def read_one(self) -> bool:
        """Reads a batch, and returns whether there may be more."""
        with self._reading:
            if self._items and self._items[-1].error is not None:
                return False
            item = self._read()
            if item is None:
                return False
            with self._changed:
                self._items.append(item)
                self._changed.notify_all()
            return item.error is None

    def _read(self) -> Item | None:
        if self._stream is None:
            self._stream = self._begin(lambda: not self.has_stopped)
        self._count += 1
        try:
            for read in self._stream:
                value = self._form.fit(read.batch)
                if value is not None:
                    return Item(self, self._count, self._places.put(value), read.position)
            return Item(self, self._count, error=StopIteration())
        except BrokenOff:
            # None of it was used. A reader that continues after the stop starts a new pass.
            self._stream, self._count = None, self._count - 1
            return None
        except BaseException as error:
            return Item(self, self._count, error=error, trace=error.__traceback__)

    # By the runs ------------------------------------------------------------------------------------------------

    @property
    def front(self) -> Item | None:
        return self._items[0] if self._items else None

    def wait(self) -> None:
        with self._changed:
            while not (self._items or self.has_stopped):
                clock.wait_for(self._changed, lambda: bool(self._items) or self.has_stopped)

    def take(self) -> Item:
        with self._changed:
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def give_back(self, item: Item) -> None:
        with self._changed:
            self._items.appendleft(item)

    def start(self, name: str, coord: Coordinator | None) -> None:
        """Starts the thread, once."""
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name=name, daemon=True)
                if coord is not None:
                    coord.register_thread(self.thread)
                _stop_at_exit(self)
                self.thread.start()

    def stop(self) -> None:
        with self._changed:
            self.has_stopped = True
            self._changed.notify_all()

    def read_on(self) -> None:
        """Reads one more batch after the stop, for a run that needs it."""
        self.go_on()
        try:
            self.read_one()
        finally:
            self.stop()

    def go_on(self) -> None:
        with self._starting:
            self.has_stopped = False
            self.thread = None


class Reader:
    """One session's way through a sequence: `hookline.session.OpenSource`.

    It may begin with a stream of batches that were read already, and of those that follow.
    """

    def __init__(
        self,
        node: Source,
        sequence: Sequence,
        form: batches.Form,
        prefetch: int,
        places: Places,
        begun: Iterator[Read] | None = None,
    ) -> None:
        self._node, self._sequence, self._form = node, sequence, form
        self._prefetch, self._places = prefetch, places
        self._position: Callable[[], dict[str, Any]] = lambda: START
        self._coord: Coordinator | None = None
        # The source is read in the mesh in which the session was made, also by a thread of ours.
        self._home = placement.current()
        self._set_out(begun)

    def _set_out(self, stream: Iterator[Read] | None = None) -> None:
        """Starts a pass after the position."""
        position = self._position()
        self._used, self._before = 0, position["count"]
        begin = functools.partial(self._sequence.read, position)
        ahead = self._ahead = _Ahead(begin, stream, self._form, self._places, self._prefetch)
        ahead.home = self._home
        self._forgotten = weakref.finalize(self, ahead.stop)
        self._forgotten.atexit = False
        if self._coord is not None and self._coord.should_stop():
            self._stop()

    # A run's batch ----------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether the next batch, or an error in its place, is ready."""
        ahead = self._ahead
        return ahead.front is not None or (ahead.has_stopped and not preemption.must_finish())

    def wait(self) -> None:
        """Blocks until it is ready, or until reading has been stopped."""
        if self.is_ready():
            return
        ahead = self._ahead
        if ahead.has_stopped:
            ahead.read_on()
        elif not self._prefetch:
            ahead.read_one()
        else:
            ahead.start(f"hookline-data-{self._node.name}", self._coord)
            ahead.wait()

    def check(self) -> None:
        """Raises the error in place of the next batch, if any.

        Raises:
            OutOfRangeError: The data have ended, or reading was stopped by the coordinator.
            BaseException: The source raised this error; it has the source's traceback.
        """
        front, node = self._ahead.front, self._node
        if front is None:
            raise OutOfRangeError(node.node_def, node, f"{node.node_def}: a stop was requested; it reads no further.")
        error = front.error
        if isinstance(error, StopIteration):
            used = self._before + self._used
            raise OutOfRangeError(node.node_def, node, f"{node.node_def}: the data have ended after {used} batches.")
        if isinstance(error, KeyboardInterrupt):
            self._set_out_again()  # The interrupt was meant for this run. The next run gets the batch.
        if error is not None:
            node.note(error)
            raise error.with_traceback(front.trace)

    @property
    def has_ended(self) -> bool:
        """Whether the runs have come to the end of the data."""
        front = self._ahead.front
        return front is not None and isinstance(front.error, StopIteration)

    def take(self) -> Item:
        """Returns the next batch."""
        return self._ahead.take()

    def give_back(self, item: Item) -> None:
        """Puts a batch back in front."""
        item.way.give_back(item)

    def use(self, item: Item) -> None:
        """Moves the position past a batch."""
        # A host operation may have made another run, or a restore, inside the run that took this.
        if item.way is self._ahead and item.number > self._used:
            self._used, self._position = item.number, item.position

    # Where it is ------------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the session's position, regardless of batches read ahead."""
        value = self._position()
        return Position(value, lambda: self._sequence.saved(value))

    def go_to(self, position: dict[str, Any]) -> None:
        """Continues after a checkpoint's position; the next run that needs a batch reads up to there."""
        self._position = lambda: position
        self._set_out_again()

    def _set_out_again(self) -> None:
        self._ahead.stop()
        self._forgotten.detach()  # It would keep the batches read ahead.
        self._set_out()

    # Its thread -------------------------------------------------------------------------------------------------

    def serve(self, coord: Coordinator) -> None:
        """Registers the thread with a coordinator, with which it stops."""
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


_reading: weakref.WeakSet[_Ahead] = weakref.WeakSet()


def _stop_at_exit(ahead: _Ahead) -> None:
    """Stops a reading thread before Python removes the objects it uses."""
    if not _reading:
        with contextlib.suppress(Exception):
            atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _reading.add(ahead)


def _stop_all() -> None:
    for ahead in list(_reading):
        ahead.stop()
    for ahead in list(_reading):
        if ahead.thread is not None:
            ahead.thread.join(_EXIT_SECS)
