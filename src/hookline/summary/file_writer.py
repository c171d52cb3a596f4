"""FileWriter: writes summaries and other events to files that TensorBoard opens."""

from __future__ import annotations

import dataclasses
import os
import weakref
from types import TracebackType
from typing import Any, Protocol, Self, SupportsInt

from hookline import arguments, clock, log
from hookline.coordination import process_group
from hookline.graph import Graph
from hookline.redirection import output_dir
from hookline.summary import encode, records
from hookline.summary.event_queue import EventQueue

_logger = log.get_logger(__name__)
_GRAPH_DEF = records.key(4, 2)
_SUMMARY = records.key(5, 2)
_SESSION_LOG = records.key(7, 2)
_TAGGED_RUN_METADATA = records.key(8, 2)
_WHOLE_EVENT = b""


class NullQueue:
    """Drops events, because in SPMD processes only the chief writes. It has the methods of `EventQueue`."""

    def __init__(self) -> None:
        self.closed = self.is_broken = False

    def add(self, wall_time: float, step: int | None, field: bytes, payload: bytes) -> None:
        """Drops an event."""

    def set_strict(self) -> None:
        """Does nothing: no write can fail."""

    def flush(self) -> None:
        """Does nothing: there are no events."""

    def sync(self) -> None:
        """Does nothing: there are no events."""

    def request_close(self) -> None:
        """Closes it."""
        self.closed = True

    def close(self) -> None:
        """Closes it."""
        self.closed = True


class SummaryTap(Protocol):
    """Receives a copy of each summary that a writer writes."""

    def receive(self, time: float, step: int | None, summary: bytes) -> None:
        """Receives a serialized summary and the time of its event; must not block."""

    def sync(self) -> None:
        """Blocks until all received summaries are written, as far as possible."""


class FileWriter:
    """Writes events to a file in a directory. Calls return at once, and a background thread writes.

    Events are passed to the operating system in the order of the calls: when `max_queue` of them are pending, when
    `flush_secs` have passed, in `flush`, in `close`, and when the interpreter exits. From then on they survive the end
    of the process. After `sync` or `close` they also survive a crash of the machine. If a write fails in the background
    (a full disk, a deleted file), the next call raises the error, and so do all later ones until `close`. Any thread
    may call any method.

    A writer that is not strict continues in a new file instead. If no file can be made, pending events are lost. Later
    ones wait for the next attempt: after 10 seconds, or in `flush` or `sync`. They are lost if it fails, when there are
    1,000 of them, and in `close`, which makes no attempt. A WARNING is logged at the beginning, and an INFO line when
    it can write again. Events written before stay readable.

    Args:
        logdir: Directory on a local or mounted file system; made if missing. Each writer makes a new file in it.
        graph: A graph to write at once, for TensorBoard's graph page, as in `add_graph`.
        max_queue: The number of pending events at which the background thread writes them.
        flush_secs: The longest time, in seconds, for which an event is pending.
        graph_def: A `GraphDef` message to write instead of a graph.
        filename_suffix: Appended to the file's name.
        session: Accepted, without effect.
        strict: Whether failed writes raise. If not, a full disk is not an error in the constructor either.

    Raises:
        TypeError: `graph` is not a graph.
        ValueError: `logdir` is empty or a URL, or `max_queue` or `flush_secs` is not positive.
        AlreadyExistsError: `logdir` is a file.
        FailedPreconditionError: One of its parent directories is a file.
        PermissionDeniedError: The directory is not writable.
        OpError: The file cannot be made for another reason.

    Example:
        >>> import tempfile
        >>> from hookline.summary import Summary
        >>> from hookline.testing import read_events
        >>> loss = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     with FileWriter(logdir) as writer:
        ...         writer.add_summary(loss, global_step=7)
        ...     [event.step for event in read_events(logdir) if event.HasField("summary")]
        [7]

    References:
        `tf.compat.v1.summary.FileWriter`. Differences: a bad directory is an error in the constructor, not in the
        background; background failures are raised; writing after `close` is an error instead of a warning; `strict` and
        `sync`.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
        *,
        strict: bool = True,
    ) -> None:
        self._logdir = arguments.check_path("FileWriter", "logdir", logdir)
        arguments.check_str("FileWriter", "filename_suffix", filename_suffix, optional=True)
        if not self._logdir or "://" in self._logdir:
            raise ValueError(
                f"FileWriter requires a directory of a local or mounted file system, got {self._logdir!r}."
            )
        arguments.check_int("FileWriter", "max_queue", max_queue)
        arguments.check_number("FileWriter", "flush_secs", flush_secs)
        if max_queue <= 0 or flush_secs <= 0:
            raise ValueError(
                f"FileWriter requires a positive max_queue and flush_secs, got {max_queue!r} and {flush_secs!r}."
            )
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"FileWriter requires a hookline.Graph as its graph, got {graph!r}.")
        if session is not None:
            _logger.info("FileWriter: the session has no effect; a hookline session writes with any writer.")
        # An absolute path, so that a new file goes there even if the working directory has changed.
        self._settings = (os.path.abspath(output_dir(self._logdir)), max_queue, flush_secs, filename_suffix or "")
        self._strict = strict
        self._run_metadata_tags: set[str] = set()
        self._taps: dict[Any, SummaryTap] = {}
        self._open()
        if graph is not None:
            self.add_graph(graph)
        elif graph_def is not None:
            self._add(_GRAPH_DEF, _serialize(graph_def, "GraphDef"), None)

    def _open(self) -> None:
        self._queue = EventQueue(*self._settings, self._strict) if process_group.is_primary() else NullQueue()
        # The queue's thread must not keep a forgotten writer alive. At exit the queue closes itself.
        weakref.finalize(self, self._queue.request_close).atexit = False

    def get_logdir(self) -> str:
        """Returns the directory as it was given."""
        return self._logdir

    @property
    def is_broken(self) -> bool:
        """Whether it cannot write to its file any more: a strict write has failed, or the file was deleted."""
        return self._queue.is_broken

    @property
    def strict(self) -> bool:
        """Whether a failed write is raised."""
        return self._strict

    def set_strict(self) -> None:
        """Makes failed writes raise, from the next one on."""
        self._strict = True
        self._queue.set_strict()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, and `reopen` was not called since."""
        return self._queue.closed

    def add_summary(self, summary: bytes | Any, global_step: SupportsInt | None = None) -> None:
        """Writes a summary.

        Args:
            summary: A `Summary`, or its serialized bytes: the value of a summary tensor.
            global_step: Its step.

        Raises:
            TypeError: `summary` is neither.
            RuntimeError: The writer is closed.
            OpError: An earlier write failed.
        """
        self._add(_SUMMARY, summary if type(summary) is bytes else _serialize(summary, "Summary"), global_step)

    def add_session_log(self, session_log: Any, global_step: SupportsInt | None = None) -> None:
        """Writes a `SessionLog`: at `START` TensorBoard drops earlier points from `global_step` on.

        Raises:
            RuntimeError: The writer is closed.
            OpError: An earlier write failed.
        """
        self._add(_SESSION_LOG, _serialize(session_log, "SessionLog"), global_step)

    def add_graph(self, graph: Graph, global_step: SupportsInt | None = None) -> None:
        """Writes the operations of a graph, for TensorBoard's graph page.

        Args:
            graph: The graph; later additions to it are not written.
            global_step: The step at which the graph was used.

        Raises:
            RuntimeError: The writer is closed.
            OpError: An earlier write failed.
        """
        if not isinstance(graph, Graph):
            raise TypeError(f"FileWriter.add_graph requires a hookline.Graph, got {graph!r}.")
        self._add(_GRAPH_DEF, encode.graph(graph), global_step)

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: SupportsInt | None = None) -> None:
        """Writes the metadata of a run.

        Args:
            run_metadata: A `hookline.RunMetadata` (or any dataclass), written as text with one line for each field; or
                a TensorFlow `RunMetadata` message, written unchanged.
            tag: Its name in TensorBoard; each may be used once.
            global_step: The step that it describes.

        Raises:
            ValueError: The tag was used before.
            RuntimeError: The writer is closed.
            OpError: An earlier write failed.
        """
        arguments.check_str("FileWriter.add_run_metadata", "tag", tag)
        if tag in self._run_metadata_tags:
            raise ValueError(f"FileWriter.add_run_metadata requires a new tag each time, got {tag!r} again.")
        if dataclasses.is_dataclass(run_metadata):
            names = [field.name for field in dataclasses.fields(run_metadata)]
            lines = "  \n".join(f"{name}: {getattr(run_metadata, name)}" for name in names)
            self._add(_SUMMARY, encode.text(tag, lines), global_step)
        else:
            message = records.length_delimited(1, tag.encode())
            message += records.length_delimited(2, _serialize(run_metadata, "RunMetadata"))
            self._add(_TAGGED_RUN_METADATA, message, global_step)
        self._run_metadata_tags.add(tag)

    def add_event(self, event: Any) -> None:
        """Writes an `Event` unchanged, including its time and step.

        Raises:
            RuntimeError: The writer is closed.
            OpError: An earlier write failed.
        """
        self._queue.add(0.0, None, _WHOLE_EVENT, _serialize(event, "Event"))
        if self._taps and event.HasField("summary"):
            self._notify_taps(event.wall_time, event.step, event.summary.SerializeToString())

    def _add(self, field: bytes, payload: bytes, global_step: SupportsInt | None) -> None:
        # The step may be an array on the device; it is read here, never on the background thread.
        step = None if global_step is None else _as_int(global_step)
        if step is not None and not -(2**63) <= step < 2**63:
            raise ValueError(f"FileWriter requires a step of at most 64 bits, got {step}.")
        now = clock.time()
        self._queue.add(now, step, field, payload)
        if self._taps and field == _SUMMARY:
            self._notify_taps(now, step, payload)

    def _notify_taps(self, time: float, step: int | None, summary: bytes) -> None:
        for tap in self._taps.values():
            tap.receive(time, step, summary)

    def add_tap(self, owner: Any, tap: SummaryTap) -> None:
        """Makes a tap the owner's only one, from now on."""
        # A new dict, because another thread may be iterating over the old one.
        self._taps = {**self._taps, owner: tap}

    def remove_tap(self, owner: Any) -> None:
        """Removes the owner's tap, if it has one."""
        self._taps = {other: tap for other, tap in self._taps.items() if other is not owner}

    def flush(self) -> None:
        """Passes all pending events to the operating system before it returns; does nothing once closed.

        Raises:
            OpError: This or an earlier write failed.
        """
        self._queue.flush()

    def sync(self) -> None:
        """Blocks until all events written so far are on the disk, as far as the operating system reports it.

        Other threads may write in the meantime, without waiting. Does nothing once closed, or without new events.

        Raises:
            OpError: This or an earlier write failed, and the writer is strict.
        """
        self._queue.sync()
        for tap in self._taps.values():
            tap.sync()

    def close(self) -> None:
        """Flushes, syncs and closes the file; may be repeated.

        Raises:
            OpError: A write failed, and no earlier call raised the error.
        """
        self._queue.close()

    def reopen(self) -> None:
        """Lets a closed writer write again, to a new file; does nothing to an open one.

        Raises:
            OpError: The file cannot be made.
        """
        if self.closed:
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _serialize(message: Any, required: str) -> bytes:
    if not hasattr(message, "SerializeToString"):
        raise TypeError(
            f"FileWriter requires a {required} message (or, for a summary, the bytes that are the value of a summary "
            f"tensor), got {message!r} of type {type(message).__name__}."
        )
    return message.SerializeToString()


def _as_int(global_step: Any) -> int:
    try:
        return int(global_step)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"FileWriter requires a whole number as global_step, got {global_step!r}.") from None
