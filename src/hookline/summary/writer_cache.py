"""FileWriterCache: one writer for each directory, shared by the whole process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, Protocol

from hookline import arguments, log
from hookline.errors import OpError
from hookline.redirection import output_dir
from hookline.summary.file_writer import FileWriter, SummaryTap

_logger = log.get_logger(__name__)


class TapProvider(Protocol):
    """Gives each writer of a session a tap that receives its summaries."""

    def tap_for(self, directory: str) -> SummaryTap:
        """Returns the tap for the writer of a directory."""
        ...

    def writer_without_files(self, name: str) -> Any:
        """Returns a writer that writes no files; its tags begin with `name`."""
        ...


class WriterScope:
    """An owner that takes writers from the cache and releases all of them at once, such as a monitored session.

    It owns the writers that a thread takes while `WRITER_SCOPE` is set to it. Once released, it takes no more.

    Args:
        strict: Whether failed writes raise in its writers.

    Attributes:
        is_released: Whether it takes no more writers.
        tap_provider: Provides taps for its writers; None without sinks.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.is_released = False
        self.tap_provider: TapProvider | None = None


WRITER_SCOPE: ContextVar[WriterScope | None] = ContextVar("SCOPE", default=None)


_NEVER_RELEASED = WriterScope()


class _CachedWriter(NamedTuple):
    """A cached writer and its owners."""

    writer: FileWriter
    scopes: weakref.WeakSet[WriterScope]


class FileWriterCache:
    """Shares one `FileWriter` for each directory, so that hooks with the same directory write one file.

    By default its writers are not strict: a full disk loses events, but does not end the training; see `FileWriter`. A
    monitored session closes the writers that it and its hooks have taken from `begin` on. A writer that another session
    has taken, too, stays open. A writer taken outside of any session stays open until `clear`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     same = FileWriterCache.get(logdir) is FileWriterCache.get(logdir + "/.")
        ...     FileWriterCache.clear()
        >>> same
        True

    References:
        `tf.compat.v1.summary.FileWriterCache`. Differences: different spellings of a directory, including links, give
        the same writer; a writer that was closed, that failed or whose file was deleted continues in a new file;
        sessions close the writers that they took; `strict` and `sync`.
    """

    _shared: ClassVar[dict[str, _CachedWriter]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls, logdir: str | os.PathLike[str], *, strict: bool | None = None) -> FileWriter:
        """Returns the open writer for `logdir`, which is made on first use.

        Args:
            logdir: Directory on a local or mounted file system.
            strict: Whether failed writes raise. By default the calling session decides; outside of a session they do
                not. If a writer is strict for one owner, it is strict for all.

        Raises:
            ValueError: `logdir` is empty or a URL.
            OpError: The directory cannot be written.
        """
        path = output_dir(arguments.check_path("FileWriterCache.get", "logdir", logdir))
        name = os.path.realpath(path) if path and "://" not in path else path
        scope = WRITER_SCOPE.get()
        cls._close_dropped()
        with cls._lock:
            if scope is None or scope.is_released:
                scope = _NEVER_RELEASED
            if strict is None:
                strict = scope.strict
            shared = cls._shared.get(name)
            if shared is None:
                shared = cls._shared[name] = _CachedWriter(FileWriter(path, strict=strict), weakref.WeakSet())
            writer = shared.writer
            if scope.tap_provider is not None and scope not in shared.scopes:
                writer.add_tap(scope, scope.tap_provider.tap_for(name))
            shared.scopes.add(scope)
            if strict:
                writer.set_strict()
            if writer.is_broken:
                try:
                    writer.close()
                except OpError as error:
                    _logger.warning("FileWriter continues in a new file: %s", error)
            writer.reopen()
            return writer

    @classmethod
    def add_taps(cls, scope: WriterScope, tap_provider: TapProvider) -> None:
        """Adds taps to the writers that a scope has taken, and will take."""
        with cls._lock:
            scope.tap_provider = tap_provider
            for name, shared in cls._shared.items():
                if scope in shared.scopes:
                    shared.writer.add_tap(scope, tap_provider.tap_for(name))

    @classmethod
    def _close_dropped(cls) -> None:
        """Closes the writers of sessions that were collected as garbage without being closed."""
        with cls._lock:
            left = [cls._shared.pop(name).writer for name, shared in list(cls._shared.items()) if not shared.scopes]
        try:
            close_all("writer", [writer.close for writer in left])
        except OpError as error:
            _logger.warning("%s", error)

    @classmethod
    def sync(cls) -> None:
        """Blocks until all events written so far to the cached writers are on the disk, as far as possible.

        A failed write is logged as a warning; a strict writer raises it at its next call.
        """
        with cls._lock:
            writers = [shared.writer for shared in cls._shared.values()]
        for writer in writers:
            try:
                writer.sync()
            except OpError as error:
                _logger.warning("%s", error)

    @classmethod
    def release(cls, scope: WriterScope) -> None:
        """Closes the writers that only this scope has taken, and removes them from the cache.

        Raises:
            OpError: A strict writer could not write its last events. The others are still closed.
        """
        with cls._lock:
            scope.is_released = True
            left = []
            for name, shared in list(cls._shared.items()):
                if scope in shared.scopes:
                    shared.scopes.discard(scope)
                    shared.writer.remove_tap(scope)
                    if not shared.scopes:
                        left.append(cls._shared.pop(name).writer)
        close_all("writer", [writer.close for writer in left])

    @classmethod
    def clear(cls) -> None:
        """Closes all cached writers, and empties the cache.

        Raises:
            OpError: A strict writer could not write its last events. The others are still closed.
        """
        with cls._lock:
            writers = [shared.writer for shared in cls._shared.values()]
            cls._shared.clear()
        close_all("writer", [writer.close for writer in writers])


def find_writer(directory: str) -> FileWriter | None:
    """Returns the writer of a directory if the cache has one."""
    shared = FileWriterCache._shared.get(os.path.realpath(directory))
    return None if shared is None else shared.writer


def get_writer(directory: str | None, name: str = "") -> Any:
    """Returns the writer of a directory; without one, a writer to the session's sinks only, or None without sinks.

    Args:
        directory: The directory.
        name: The beginning of the tags if there is no directory.
    """
    if directory:
        return FileWriterCache.get(directory)
    scope = WRITER_SCOPE.get()
    return None if scope is None or scope.tap_provider is None else scope.tap_provider.writer_without_files(name)


def close_all(thing: str, closes: Iterable[Callable[[], None]]) -> None:
    """Makes all calls that close something; then raises the first error, with the others as its notes."""
    failures: list[Exception] = []
    for close in closes:
        try:
            close()
        except Exception as error:
            failures.append(error)
    for other in failures[1:]:
        failures[0].add_note(f"Another {thing} failed too: {other}")
    if failures:
        raise failures[0]
