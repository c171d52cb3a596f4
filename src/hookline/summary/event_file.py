"""Writes one event file: its name sorts by time, it holds only whole records, and it can be synced."""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import threading
from contextlib import suppress

from hookline import clock
from hookline.summary import records

_FILE_VERSION = records.key(3, 2)
_SUMMARY = records.key(5, 2)
# The key of a value's metadata: a byte that every summary with metadata contains, and few others.
_METADATA = records.key(9, 2)
_STAMP = re.compile(r"events\.out\.tfevents\.(\d{10,12})(?:_(\d{6}))?\.")
_NOTHING_TO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.ENOENT)


PendingEvent = tuple[float, int | None, bytes, bytes]
"""An event to be written: its time, step, field of `Event` and the serialized value of that field.

With an empty field the value is a whole serialized `Event`.
"""


class EventFile:
    """A new event file, open for appending. It holds only whole records, even after failures.

    The metadata of a tag is written with its first value only, because readers need it once in each file.

    One thread at a time may append; any may sync and close. There is no buffer: appended records are passed to the
    operating system and survive a killed process; synced records survive a crash of the machine.

    Attributes:
        failure: The error of a failed append; None until then. Afterwards the file takes no more records.
        num_events: The number of its records, not counting the first one, the file's version.

    Raises:
        OSError: The directory or the file cannot be created or started. No file is left behind.
    """

    def __init__(self, logdir: str, suffix: str) -> None:
        from hookline.summary import protos  # Imported now: later this process may be unable to open more files.

        self._protos = protos
        self.failure: OSError | None = None
        self.num_events = 0
        self._num_synced = 0
        self._tags_with_metadata: set[str] = set()
        self._size = 0
        self._closed = False
        self._lock = threading.Lock()
        self._unsynced_directories = _make_directory(logdir)
        self.path, self._descriptor = _create_file(logdir, suffix)
        self.append([(clock.time(), None, _FILE_VERSION, b"brain.Event:2")])
        self.num_events = 0
        if self.failure is not None:
            self.close()
            raise self.failure

    @property
    def num_unsynced(self) -> int:
        """The number of its events that may not survive a crash of the machine."""
        return self.num_events - self._num_synced

    @property
    def is_deleted(self) -> bool:
        """Whether its path no longer exists."""
        return not os.path.exists(self.path)

    def append(self, events: list[PendingEvent]) -> int:
        """Appends the records of events, and returns the number written; if not all, `failure` has the error."""
        # Nearly all summaries are scalars, which have no metadata and need not be parsed.
        framed = [
            records.event_record(
                secs, step, key, self._drop_known_metadata(value) if key == _SUMMARY and _METADATA in value else value
            )
            for secs, step, key, value in events
        ]
        data = memoryview(b"".join(framed))
        written, whole = 0, len(framed)
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            if not os.fstat(self._descriptor).st_nlink:
                written = 0
                raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was being written")
        except OSError as error:
            self.failure = error
            ends = [end for end in itertools.accumulate(map(len, framed)) if end <= written]
            written, whole = max(ends, default=0), len(ends)
            # A torn record is removed, so that strict readers can read the file, too.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size + written)
        self._size += written
        self.num_events += whole
        return whole

    def _drop_known_metadata(self, summary: bytes) -> bytes:
        """Returns a serialized summary without the metadata of tags that were written before."""
        try:
            message = self._protos.Summary.FromString(summary)
        except self._protos.DecodeError:
            return summary
        is_slimmer = False
        for value in message.value:
            if value.HasField("metadata") and value.tag in self._tags_with_metadata:
                value.ClearField("metadata")
                is_slimmer = True
            elif value.HasField("metadata"):
                self._tags_with_metadata.add(value.tag)
        return message.SerializeToString() if is_slimmer else summary

    def sync(self) -> None:
        """Blocks until all records so far, and the file's name, are on the disk; raises `OSError`."""
        with self._lock:
            self._sync()

    def _sync(self) -> None:
        events = self.num_events  # Counted before the sync, which may not cover records that are appended meanwhile.
        if self._closed or events == self._num_synced:
            return
        os.fsync(self._descriptor)
        while self._unsynced_directories:
            _sync_directory(self._unsynced_directories[-1])
            self._unsynced_directories.pop()
        self._num_synced = events

    def close(self) -> None:
        """Syncs and closes the file; may be repeated. A file that failed before its first event is removed.

        Raises:
            OSError: The file is closed, but its latest events may not be on the disk.
        """
        with self._lock:
            if self._closed:
                return
            try:
                self._sync()
            finally:
                self._closed = True
                with suppress(OSError):
                    os.close(self._descriptor)
                if self.failure is not None and not self.num_events:
                    with suppress(OSError):
                        os.unlink(self.path)


def _make_directory(logdir: str) -> list[str]:
    """Makes a directory, and returns the directories to sync after the file was made: it and its changed parents."""
    entered = [logdir]
    while not os.path.lexists(entered[-1]):
        entered.append(os.path.dirname(entered[-1]))
    os.makedirs(logdir, exist_ok=True)
    return entered


def _create_file(logdir: str, suffix: str) -> tuple[str, int]:
    """Makes a file whose name sorts after all event files in the directory; returns its path and descriptor.

    Readers read the files of a directory in the order of their names, and do not return to an earlier one. In the name,
    the seconds are followed by a character that sorts after the point of other writers, and by the microseconds. If the
    clock was set back, or has not advanced, the stamp follows the newest file's.
    """
    while True:
        stamp = max(int(clock.time() * 1e6), 1 + max(map(_timestamp_of, os.listdir(logdir)), default=-1))
        secs, micros = divmod(stamp, 1_000_000)
        name = f"events.out.tfevents.{secs:010d}_{micros:06d}.{socket.gethostname()}.{os.getpid()}{suffix}"
        path = os.path.join(logdir, name)
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            continue  # Another thread or process has just made it.


def _timestamp_of(name: str) -> int:
    found = _STAMP.match(name)
    return int(found[1]) * 1_000_000 + int(found[2] or 0) if found else -1


def _sync_directory(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some file systems cannot sync directories, some do not permit it, and some directories have been deleted.
        if error.errno not in _NOTHING_TO_SYNC:
            raise
