"""Queues the events of a writer, writes them in a background thread, and handles failed writes."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from contextlib import suppress

from hookline import clock, errors, log
from hookline.summary.event_file import EventFile, PendingEvent

_RETRY_SECS = 10.0

_logger = log.get_logger(__name__)

_MAX_PENDING = 1000


class WriteOutage:
    """Counts lost items while writes fail; logs a WARNING at the beginning, and INFO at the end.

    Args:
        things: The name of the items, for the messages.
        meanwhile: A sentence of the WARNING about later items.

    Attributes:
        is_active: Whether the last attempt has failed.
        num_lost: The number of items lost in this write outage so far.
        total_lost: The number of items lost in the write outages before it.
    """

    def __init__(
        self, things: str = "Events", meanwhile: str = "More may be lost until a new file can be made."
    ) -> None:
        self._things, self._meanwhile = things, meanwhile
        self.is_active = False
        self.num_lost = self.total_lost = 0
        self._began_at = 0.0
        self._tried_at = 0.0

    @property
    def is_retry_due(self) -> bool:
        """Whether the last attempt was long enough ago."""
        return clock.monotonic() >= self._tried_at + _RETRY_SECS

    def begin(self, failure: BaseException, lost: int) -> None:
        """Records a failed attempt to write, the first or a later one, and the number of items lost by it."""
        self._tried_at = clock.monotonic()
        self.num_lost += lost
        if self.is_active:
            return
        self.is_active = True
        self._began_at = self._tried_at
        _logger.warning(
            "%s The program continues. %s lost so far: %d. %s A retry follows about every %g s.",
            failure,
            self._things,
            lost,
            self._meanwhile,
            _RETRY_SECS,
        )

    def end(self, how: str) -> None:
        """Logs the number of lost items, and resets it."""
        secs = clock.monotonic() - self._began_at
        _logger.info("%s %s lost: %d, in %.0f s.", how, self._things, self.num_lost, secs)
        self.is_active = False
        self.total_lost += self.num_lost
        self.num_lost = 0


class EventQueue:
    """The queue of pending events for a file. A `FileWriter` owns one at a time; the queue outlives it until closed.

    `add` only appends to the queue. The background thread empties it when `max_queue` events are pending or
    `flush_secs` have passed; a caller of `flush`, `sync` or `close` may empty it earlier. Each time is one write to the
    operating system.

    If a write fails, a strict queue refuses all later events. Any other queue continues in a new file. If no new file
    can be made, it loses the pending events. Later ones wait for the next attempt; at 1,000 of them it loses these too.

    The arguments are as in `FileWriter`; the directory is absolute.

    Raises:
        OpError: The directory or the file cannot be made; the class gives the reason. A full disk is an error only if
            strict.
    """

    def __init__(self, logdir: str, max_queue: int, flush_secs: float, suffix: str, strict: bool) -> None:
        self._logdir = logdir
        self._max_queue = max_queue
        self._flush_secs = flush_secs
        self._suffix = suffix
        self._strict = strict
        self._process = os.getpid()
        self._pending: deque[PendingEvent] = deque()
        self._failure: OSError | None = None
        self._failure_raised = False
        self._outage = WriteOutage()
        self._closing = False
        self._closed = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        # None if no file could be made, or after a failed write.
        self._file: EventFile | None = None
        self._location = logdir
        try:
            self._file = EventFile(logdir, suffix)
            self._location = self._file.path
        except OSError as failure:
            message = f"FileWriter requires a directory in which it can make files, got {logdir!r}"
            error = errors.from_os_error(failure, message)
            if strict or not isinstance(error, errors.ResourceExhaustedError):
                raise error from failure
            self._outage.begin(error, lost=0)
        atexit.register(self._close_at_exit)
        self._thread = threading.Thread(target=self._run, name=f"hookline-summary:{logdir}", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether events are refused."""
        return self._closing

    @property
    def is_broken(self) -> bool:
        """Whether it cannot write to its file any more: a strict write has failed, or the file was deleted."""
        file = self._file
        return self._failure is not None or (file is not None and file.is_deleted)

    def set_strict(self) -> None:
        """Makes the queue strict: it refuses events after the next failure."""
        self._strict = True

    def add(self, wall_time: float, step: int | None, field: bytes, payload: bytes) -> None:
        """Queues an event, as in `PendingEvent`. Raises if it is closed, or an earlier write failed."""
        if self._closing or self._failure is not None:
            raise self._add_error()
        self._pending.append((wall_time, step, field, payload))
        if self._closing:  # Another thread closed it in between, perhaps after its last write.
            raise self._add_error()
        count = len(self._pending)
        if count >= _MAX_PENDING:
            self._write_pending()
        elif count >= self._max_queue and not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Writes all events queued so far; does nothing once closed. Raises if this or an earlier write failed."""
        self._write_pending(force=True)
        if self._failure is not None and not self._closing:
            raise self._add_error()

    def sync(self) -> None:
        """Flushes, and blocks until these events are on the disk."""
        if os.getpid() != self._process:
            return  # In a forked process; the parent syncs.
        self._write_pending(force=True)
        file = self._file
        if file is not None:
            try:
                # Without the lock, so that adding and writing continue even if the disk is slow.
                file.sync()
            except OSError as failure:
                with self._lock:
                    if self._file is file:
                        self._replace_file(file, failure, [], lost=file.num_unsynced)
        if self._failure is not None and not self._closing:
            raise self._add_error()

    def request_close(self) -> None:
        """Makes the background thread close the file when it next wakes.

        Takes no lock, because the garbage collector may call this inside any other method of this class.
        """
        self._closing = True

    def close(self) -> None:
        """Writes pending events, syncs and closes the file; may be repeated. Raises a failure not raised before."""
        if os.getpid() != self._process:
            return  # In a forked process, file and queue belong to the parent, which writes them itself.
        self._closing = True
        self._wake.set()
        self._close_file()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._failure is not None and not self._failure_raised:
            raise self._write_error(self._failure)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except errors.OpError as error:
            _logger.error("%s", error)

    def _run(self) -> None:
        # Real time, even under a fake clock: an idle writer must not advance the time of a test.
        real_time = clock.Clock()
        while not self._closing:
            real_time.wait(self._wake, self._flush_secs)
            self._wake.clear()
            self._write_pending()
        self._close_file()

    def _close_file(self) -> None:
        self._write_pending()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            file = self._file
            if file is not None:
                try:
                    file.close()
                except OSError as failure:
                    self._replace_file(file, failure, [], lost=file.num_unsynced)
            if self._outage.is_active:
                self._outage.end(f"The FileWriter of {self._logdir} was closed before it could write again.")
        atexit.unregister(self._close_at_exit)

    def _write_pending(self, force: bool = False) -> None:
        with self._lock:
            file = self._file
            may_begin = not self._closing and (force or self._outage.is_retry_due)
            # Counted first, so that a caller who adds without pause cannot keep this loop running for ever.
            count = len(self._pending)
            can_wait = file is None and not (may_begin or self._closing) and count < _MAX_PENDING
            if not count or self._closed or can_wait:
                return
            events = [self._pending.popleft() for _ in range(count)]
            if file is not None:
                left = events[file.append(events) :]
                if file.failure is not None:
                    self._replace_file(file, file.failure, left)
            elif self._failure is None and may_begin:
                left, failure = self._start_file(events)
                if failure is None:
                    self._outage.end(f"FileWriter continues in {self._location}.")
                elif self._strict:
                    self._failure = failure
                else:
                    self._outage.begin(self._as_op_error(failure), len(left))
            else:
                self._outage.num_lost += len(events)

    def _replace_file(self, file: EventFile, failure: OSError, left: list[PendingEvent], lost: int = 0) -> None:
        """Abandons a failed file, and writes the events missing from it to a new one, if possible."""
        self._file = None
        try:
            file.close()
        except OSError:
            lost = file.num_unsynced
        if self._strict:
            self._failure = failure
            return
        explained = self._as_op_error(failure)
        if not self._closing:
            left, _ = self._start_file(left)
        self._outage.begin(explained, lost + len(left))
        if self._file is not None:
            self._outage.end(f"FileWriter continues in {self._location}.")

    def _start_file(self, events: list[PendingEvent]) -> tuple[list[PendingEvent], OSError | None]:
        """Starts a new file with events; returns those that are not in it, and the reason."""
        try:
            file = EventFile(self._logdir, self._suffix)
        except OSError as failure:
            return events, failure
        left = events[file.append(events) :]
        if file.failure is None:
            self._file, self._location = file, file.path
        else:
            with suppress(OSError):
                file.close()
        return left, file.failure

    def _add_error(self) -> Exception:
        if self._failure is None or self._closing:
            return RuntimeError(
                f"The FileWriter of {self._logdir} is closed; reopen() it to write to a new file. (A session closes "
                "the writers that its hooks got from FileWriterCache: get them in each begin.)"
            )
        return self._write_error(self._failure)

    def _write_error(self, failure: OSError) -> errors.OpError:
        self._failure_raised = True
        advice = "and has lost its latest events (remove the cause, then close() and reopen() to write to a new file)"
        return self._as_op_error(failure, f" {advice}")

    def _as_op_error(self, failure: OSError, advice: str = "") -> errors.OpError:
        error = errors.from_os_error(failure, f"FileWriter could not write {self._location}{advice}")
        error.__cause__ = failure
        return error
