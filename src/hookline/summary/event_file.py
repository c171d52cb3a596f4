"""One event file being written: a queue, a background thread that empties it, and what happens when writing fails."""

from __future__ import annotations

import atexit
import errno
import itertools
import logging
import os
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

from hookline import clock, errors
from hookline.summary import wire
from hookline.summary.records import frame

_FILE_VERSION = wire.key(3, 2)
# Field 1 of Event, a double, and its key. Fields 1 and 2 (the step) are spelled out: they are in every event.
_WALL_TIME = struct.Struct("<Bd")
_MOST_PENDING = 1000
_numbers = itertools.count()

_logger = logging.getLogger(__name__)


class EventFile:
    """An open event file. `FileWriter` owns one at a time; it outlives its owner by as long as it takes to close.

    The caller of `add` only appends to a queue. The queue is emptied by whoever comes first: the background thread,
    once `max_queue` events are pending or `flush_secs` have passed, or a caller of `flush` and `close`. One batch is
    one write to the operating system; there is no other buffer, so what was written survives a killed process.

    Args:
        logdir: Directory of the file; made if absent.
        max_queue: How many pending events wake the thread.
        flush_secs: For how long, at most, an event is pending.
        suffix: Last part of the file's name.

    Raises:
        OpError: The directory or the file cannot be made; the class says why.
    """

    def __init__(self, logdir: str, max_queue: int, flush_secs: float, suffix: str) -> None:
        # Padded numbers keep files of one second in order when a reader sorts them by name.
        name = f"{int(clock.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):04d}"
        self.path = os.path.join(logdir, f"events.out.tfevents.{name}{suffix}")
        try:
            os.makedirs(logdir, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            message = f"FileWriter requires a directory in which it can make files, got {logdir!r}"
            raise errors.from_os_error(error, message) from error
        self._max_queue = max_queue
        self._flush_secs = flush_secs
        self._process = os.getpid()
        self._size = 0
        self._pending: deque[tuple[float, int | None, bytes, bytes]] = deque()
        self._failure: OSError | None = None
        self._failure_known = False
        self._closing = False
        self._closed = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self.add(clock.time(), None, _FILE_VERSION, b"brain.Event:2")
        try:
            self.flush()
        except errors.OpError:
            self._release()
            raise
        atexit.register(self._close_at_exit)
        self._thread = threading.Thread(target=self._work, name=f"hookline-summary:{self.path}", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether events are refused."""
        return self._closing

    @property
    def lost(self) -> bool:
        """Whether nothing more can get into it: a write has failed, or it was deleted."""
        return self._failure is not None or not os.path.exists(self.path)

    def add(self, wall_time: float, step: int | None, field: bytes, payload: bytes) -> None:
        """Queues an event.

        Args:
            wall_time: When it happened, in seconds since the epoch.
            step: Global step, or None.
            field: Key of the field of `Event` that holds `payload`; empty if `payload` is a whole serialized `Event`.
            payload: Serialized value of that field.

        Raises:
            RuntimeError: The file is closed.
            OpError: An earlier write failed.
        """
        if self._closing or self._failure is not None:
            raise self._refusal()
        self._pending.append((wall_time, step, field, payload))
        if self._closing:  # Closed by another thread in between, perhaps after its last write.
            raise self._refusal()
        count = len(self._pending)
        if count >= _MOST_PENDING:
            self._write_pending()
        elif count >= self._max_queue and not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Writes all events queued so far; does nothing once the file is closed.

        Raises:
            OpError: This or an earlier write failed.
        """
        self._write_pending()
        if self._failure is not None and not self._closing:
            raise self._refusal()

    def request_close(self) -> None:
        """Lets the background thread close the file when it next wakes.

        For the garbage collector, which may call this inside any other code of this class: hence no locks.
        """
        self._closing = True

    def close(self) -> None:
        """Writes what is pending and closes the file; harmless when repeated.

        Raises:
            OpError: A write failed and no earlier call has said so.
        """
        if os.getpid() != self._process:
            return  # A fork: file and queue are the parent's, which writes them itself.
        atexit.unregister(self._close_at_exit)
        self._closing = True
        self._wake.set()
        self._release()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._failure is not None and not self._failure_known:
            raise self._failed(self._failure)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except errors.OpError as error:
            _logger.error("%s", error)

    def _work(self) -> None:
        # Real time, also under a fake clock: an idle writer must not push the time of somebody's test ahead.
        real_time = clock.Clock()
        while not self._closing:
            real_time.wait(self._wake, self._flush_secs)
            self._wake.clear()
            self._write_pending()
        self._release()

    def _release(self) -> None:
        self._write_pending()
        with self._lock:
            if not self._closed:
                self._closed = True
                with suppress(OSError):
                    os.close(self._descriptor)

    def _write_pending(self) -> None:
        with self._lock:
            # Counted first: a caller who adds without pause must not keep this loop running for ever.
            batch = [frame(_event(*self._pending.popleft())) for _ in range(len(self._pending))]
            if batch and self._failure is None and not self._closed:
                self._write(batch)

    def _write(self, batch: list[bytes]) -> None:
        data = memoryview(b"".join(batch))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            if not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was being written")
        except OSError as error:
            # Cut a torn record off, so that even strict readers can read what was written before.
            whole = max((end for end in itertools.accumulate(map(len, batch)) if end <= written), default=0)
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size + whole)
            self._failure = error
        else:
            self._size += len(data)

    def _refusal(self) -> Exception:
        if self._failure is None or self._closing:
            return RuntimeError(f"The FileWriter of {self.path} is closed; reopen() it to write to a new file.")
        return self._failed(self._failure)

    def _failed(self, failure: OSError) -> errors.OpError:
        self._failure_known = True
        error = errors.from_os_error(
            failure,
            f"FileWriter could not write {self.path} and has lost its latest events (remove the cause, then close() "
            f"and reopen() to go on in a new file)",
        )
        error.__cause__ = failure
        return error


def _event(wall_time: float, step: int | None, field: bytes, payload: bytes) -> bytes:
    if not field:
        return payload
    head = _WALL_TIME.pack(9, wall_time)
    if step is not None:
        head += b"\x10" + wire.varint(step)
    return head + field + wire.varint(len(payload)) + payload
