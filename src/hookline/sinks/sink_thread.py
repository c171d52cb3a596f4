"""Passes the summaries of a session to its sinks: each sink has its own queue and thread."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hookline import clock, errors, log
from hookline.signals import interrupts
from hookline.sinks.sink import Histogram, Point, RunInfo, Sink
from hookline.summary.event_queue import WriteOutage
from hookline.summary.writer_cache import close_all

_HPARAMS = "_hparams_/"

_BATCH_SECS = 1.0
_SYNC_SECS = 10.0
_MAX_QUEUED, _MAX_QUEUED_BYTES = 10_000, 64 << 20
_TRANSIENT_ERRORS = (errors.ResourceExhaustedError, errors.UnavailableError, errors.DeadlineExceededError)
_logger = log.get_logger(__name__)
_sinks_in_use: set[int] = set()  # Ids, because a user's sinks may compare equal.
_lock = threading.Lock()


class SerializedSummary:
    """A serialized summary for several sinks; the first sink that reads it parses it, on the sink's thread."""

    __slots__ = ("_points", "payload", "prefix", "step", "time")

    def __init__(self, prefix: str, time: float, step: int | None, payload: bytes) -> None:
        self.prefix, self.time, self.step, self.payload = prefix, time, step, payload
        self._points: list[Point] | None = None

    def points(self) -> list[Point]:
        """Returns the points; the kind of other values is the name of their TensorBoard plugin."""
        if self._points is None:
            from hookline.summary import protos

            try:
                values = protos.Summary.FromString(self.payload).value
            except protos.DecodeError:
                self._points = [Point("invalid summary", self.prefix, self.step, self.time, self.payload)]
                return self._points
            found = [(value.tag, _parse_value(value)) for value in values]
            self._points = [
                Point(kind, self.prefix + tag, self.step, self.time, value)
                for tag, (kind, value) in found
                if not tag.startswith(_HPARAMS)  # `open` gets them.
            ]
        return self._points


def _parse_value(value: Any) -> tuple[str, Any]:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return "scalar", _shortest_float(value.simple_value)
    if kind == "image":
        return "image", value.image.encoded_image_string
    if kind == "audio":
        return "audio", value.audio.encoded_audio_string
    if kind == "histo":
        histogram = value.histo
        return "histogram", Histogram(histogram.min, list(histogram.bucket_limit), list(histogram.bucket))
    plugin = value.metadata.plugin_data.plugin_name
    if plugin == "text":
        return "text", _tensor_text(value.tensor)
    if plugin == "scalars":
        from tensorboard.util import tensor_util

        return "scalar", _shortest_float(float(tensor_util.make_ndarray(value.tensor)))
    return plugin or str(kind), None


def _shortest_float(number: float) -> float:
    """Returns the number with the fewest digits that is the same 32-bit float."""
    return float(str(np.float32(number)))


def _tensor_text(tensor: Any) -> str:
    """Returns the text of a tensor of strings; in a table, bars separate the cells, and newlines the rows."""
    texts = [item.decode(errors="replace") for item in tensor.string_val]
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    width = max(sizes[-1], 1) if len(sizes) > 1 else 1
    return "\n".join(" | ".join(texts[start : start + width]) for start in range(0, len(texts), width))


class SinkThread:
    """Passes the summaries of a session to a sink, on the sink's own thread, about once a second.

    Args:
        sink: The sink.
        strict: Whether a failure of the sink is raised in the session's next write.
    """

    def __init__(self, sink: Sink, strict: bool) -> None:
        self._sink, self._strict = sink, strict
        self._who = type(sink).__name__
        self._takes = frozenset(sink.takes)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queue: deque[SerializedSummary | RunInfo] = deque()
        # `_in_flight` is the number of entries in a running `write`.
        self._queued_bytes = self._dropped = self._in_flight = 0
        self._sync_waiters: list[threading.Event] = []
        self._synced = threading.Event()
        self._synced.set()
        self._wake, self._flush_now = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._start: RunInfo | None = None  # The next argument of `open`; None after it.
        self._is_open = self._is_closing = self._training_failed = False
        self._ignored_kinds: set[str] = set()
        self._failure: BaseException | None = None
        self._is_ending = False
        self._outage = WriteOutage("Summaries", f"Further ones wait, up to {_MAX_QUEUED:,}.")

    def begin(self, start: RunInfo) -> None:
        """Opens the sink; after a recovery, only when the summaries in the queue are written.

        Raises:
            Exception: It cannot be opened, for a reason other than a full disk or an unreachable server.
        """
        if start.hparams:
            self._log_ignored_kinds({"hparams"})
        if self._thread is not None:
            with self._lock:
                self._queue.append(start)
            self._wake.set()
            return
        self._start = start
        try:
            self._open()
        except OSError as error:
            if self._strict or not _is_transient(error):
                where = f" '{error.filename}'" if error.filename else ""
                raise errors.from_os_error(error, f"{self._who} cannot open{where}") from error
            self._outage.begin(self._as_op_error(error), lost=0)
        self._thread = threading.Thread(target=self._run, name=f"hookline-sink:{self._who}", daemon=True)
        self._thread.start()
        atexit.register(self.close, failed=True)

    def put(self, written: SerializedSummary) -> None:
        """Queues a summary; never waits.

        Raises:
            UnknownError: The session is strict, and the sink has failed.
        """
        if self._failure is not None and self._strict:
            raise self._as_op_error(self._failure) from self._failure
        if self._is_closing or os.getpid() != self._process:
            return  # After a fork only the parent writes.
        with self._lock:
            if len(self._queue) < _MAX_QUEUED and self._queued_bytes + len(written.payload) <= _MAX_QUEUED_BYTES:
                self._queue.append(written)
                self._queued_bytes += len(written.payload)
                is_first = False
            else:
                self._dropped += 1
                is_first = self._dropped == 1 and not self._outage.is_active
        if is_first:
            _logger.warning(
                "%s is too slow: %d summaries wait for it. Further ones are lost while so many wait; their number is "
                "logged at the end of the session.",
                self._who,
                len(self._queue),
            )
        self._wake.set()

    def sync(self) -> None:
        """Waits until the sink has written and flushed all summaries so far, or fails, or 10 seconds have passed."""
        if self._thread is None or os.getpid() != self._process:
            return
        with self._lock:
            if self._is_closing or not self._synced.is_set():  # After a timeout, no second wait.
                return
            self._synced = done = threading.Event()
            self._sync_waiters.append(done)
        self._flush_now.set()
        self._wake.set()
        if not clock.Clock().wait(done, _SYNC_SECS):
            _logger.warning(
                "%s has not written all summaries before a checkpoint within %g s. The program continues.",
                self._who,
                _SYNC_SECS,
            )

    def close(self, failed: bool) -> None:
        """Passes the remaining summaries to the sink and closes it; may be repeated.

        Raises:
            UnknownError: The session is strict, and the sink has failed.
        """
        thread, self._thread = self._thread, None
        with self._lock:
            self._training_failed, self._is_closing = failed, True
        if thread is None or os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        self._flush_now.set()
        self._wake.set()
        thread.join(self._sink.close_secs)
        if thread.is_alive():
            _logger.warning(
                "%s has not closed within %g s. Unwritten summaries, which are lost if the process ends now: %d.",
                self._who,
                self._sink.close_secs,
                self._in_flight + len(self._queue),
            )
        if self._strict and self._failure is not None:
            raise self._as_op_error(self._failure) from self._failure

    def _run(self) -> None:
        # Real time, even under a fake clock: a sink must not advance the time of a test.
        real_time = clock.Clock()
        while not self._is_closing:
            self._wake.wait()
            real_time.wait(self._flush_now, _BATCH_SECS)
            self._wake.clear()
            self._flush_now.clear()
            if self._is_closing:
                break
            with self._lock:
                syncing, self._sync_waiters = self._sync_waiters, []
            if not self._outage.is_active or self._outage.is_retry_due:
                self._drain()
                if syncing and not self._outage.is_active:
                    self._attempt(self._sink.flush)
            for done in syncing:
                done.set()
        self._is_ending = True
        self._drain()
        self._close_sink()

    def _close_sink(self) -> None:
        if self._is_open:
            self._attempt(lambda: self._sink.close(self._training_failed))
        with self._lock:
            lost = self._outage.total_lost + self._outage.num_lost + self._dropped + len(self._queue)
            for done in self._sync_waiters:
                done.set()
        if lost:
            _logger.warning("%s: summaries lost in this session: %d.", self._who, lost)

    def _drain(self) -> None:
        """Passes the queue to the sink, until it is empty or the sink fails."""
        while True:
            if self._start is not None and not self._attempt(self._open):
                return
            entries = self._pop_entries()
            if not entries and self._start is None:
                return
            points = self._parse_points(entries)
            if points and not self._attempt(lambda points=points: self._sink.write(points), len(entries)):
                return
            self._in_flight = 0

    def _open(self) -> None:
        assert self._start is not None, "The caller has checked it."
        interrupts.call_user_function(self._sink.open, self._start)
        self._start, self._is_open = None, True

    def _pop_entries(self) -> list[SerializedSummary]:
        """Removes the entries before the next start from the queue and returns them; keeps that start for `_open`."""
        taken: list[SerializedSummary] = []
        with self._lock:
            while self._queue and self._start is None:
                entry = self._queue.popleft()
                if isinstance(entry, RunInfo):
                    self._start = entry
                else:
                    taken.append(entry)
                    self._queued_bytes -= len(entry.payload)
            self._in_flight = len(taken)
        return taken

    def _parse_points(self, entries: Iterable[SerializedSummary]) -> list[Point]:
        points = [point for entry in entries for point in entry.points()]
        self._log_ignored_kinds({point.kind for point in points})
        return [point for point in points if point.kind in self._takes]

    def _log_ignored_kinds(self, kinds: set[str]) -> None:
        if new := kinds - self._takes - self._ignored_kinds:
            self._ignored_kinds |= new
            _logger.info("%s does not take these kinds, and leaves them out: %s.", self._who, ", ".join(sorted(new)))

    def _attempt(self, call: Callable[[], None], count: int = 0) -> bool:
        """Calls a function of the sink; returns whether it succeeded, and counts the lost entries if not."""
        try:
            call()
        except BaseException as error:  # Also SystemExit: the thread continues, and these entries count as lost.
            self._failure, self._in_flight = error, 0
            if self._is_ending:
                self._dropped += count
                if not self._outage.is_active:
                    _logger.warning("%s There is no retry, because the session ends.", self._as_op_error(error))
            else:
                self._outage.begin(self._as_op_error(error), count)
            _logger.debug("%s raised this error:", self._who, exc_info=error)
            return False
        if self._outage.is_active:
            self._outage.end(f"{self._who} can write again.")
        return True

    def _as_op_error(self, error: BaseException) -> errors.OpError:
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        return errors.UnknownError.from_message(f"{self._who} has failed with {reason}.")


def _is_transient(error: OSError) -> bool:
    """Returns whether an error is transient: a full disk, an unreachable server."""
    return isinstance(error, ConnectionError | TimeoutError) or isinstance(
        errors.from_os_error(error, ""), _TRANSIENT_ERRORS
    )


class SinkSet:
    """Passes summaries to the sinks of one session.

    Args:
        sinks: The sinks; each serves one session at a time.
        folder: The directory for summaries; None without one.
        strict: Whether failures of the sinks are raised in the session's next write.

    Raises:
        RuntimeError: A sink serves another session.
    """

    def __init__(self, sinks: Sequence[Sink], folder: str | None, strict: bool) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)
        self._sinks = tuple(sinks)
        with _lock:
            ids = [id(sink) for sink in self._sinks]
            for index, sink in enumerate(self._sinks):
                if id(sink) in _sinks_in_use or id(sink) in ids[:index]:
                    raise RuntimeError(
                        f"The sink {type(sink).__name__} serves another session, or is given twice. Give each its own."
                    )
            _sinks_in_use.update(ids)
        self._threads = [SinkThread(sink, strict) for sink in self._sinks]

    def begin(self, step: int, hparams: dict[str, Any], is_new: bool) -> None:
        """Opens the sinks, at the start and after a recovery."""
        for thread in self._threads:
            thread.begin(RunInfo(self._folder, step, hparams, is_new))

    def tap_for(self, directory: str) -> _SinkTap:
        """Returns the tap for the writer of a directory; its tags begin with the path below the folder."""
        name = os.path.relpath(directory, self._folder or directory)
        if name.startswith(os.pardir):
            name = os.path.basename(directory)
        return self.writer_without_files("" if name == os.curdir else name)

    def writer_without_files(self, name: str) -> _SinkTap:
        """Returns a tap whose tags begin with a name."""
        return _SinkTap(self._threads, f"{name}/".replace(os.sep, "/") if name else "")

    def close(self, failed: bool) -> None:
        """Closes the sinks; may be repeated.

        Raises:
            UnknownError: A strict sink has failed. The others are still closed.
        """
        try:
            close_all("sink", [partial(thread.close, failed) for thread in self._threads])
        finally:
            with _lock:
                _sinks_in_use.difference_update(map(id, self._sinks))
            self._sinks = ()


class _SinkTap:
    """Passes the summaries of a writer to the sinks, or replaces the writer if there is no directory."""

    def __init__(self, feeders: Sequence[SinkThread], prefix: str) -> None:
        self._threads, self._prefix = feeders, prefix

    def receive(self, time: float, step: int | None, summary: bytes) -> None:
        written = SerializedSummary(self._prefix, time, step, summary)
        for thread in self._threads:
            thread.put(written)

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        serialized = summary if isinstance(summary, bytes) else summary.SerializeToString()
        self.receive(clock.time(), None if global_step is None else int(global_step), serialized)

    def add_session_log(self, session_log: Any, global_step: Any = None) -> None:
        """Does nothing: sinks get a `RunInfo`."""

    def flush(self) -> None:
        """Does nothing: sinks are flushed before a checkpoint."""

    def sync(self) -> None:
        for thread in self._threads:
            thread.sync()
