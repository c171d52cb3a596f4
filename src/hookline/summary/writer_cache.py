"""FileWriterCache: one writer a directory for the whole process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterable
from contextvars import ContextVar
from typing import ClassVar

from hookline.errors import OpError
from hookline.summary.file_writer import FileWriter

_logger = logging.getLogger(__name__)


class WriterScope:
    """Somebody who takes writers from the cache and lets go of all of them at once, such as a monitored session.

    What a thread takes while `SCOPE` is set to it is taken for it. Once released, it takes nothing any more.

    Args:
        strict: Whether the writers it takes are to raise failed writes.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.released = False


SCOPE: ContextVar[WriterScope | None] = ContextVar("SCOPE", default=None)


class _Shared:
    """A cached writer and who has taken it: scopes, or somebody who will not let go of it."""

    def __init__(self, writer: FileWriter) -> None:
        self.writer = writer
        self.scopes: weakref.WeakSet[WriterScope] = weakref.WeakSet()
        self.kept = False


class FileWriterCache:
    """Shares one `FileWriter` a directory, so that hooks which log to the same place write one file.

    Its writers are not strict: a full disk costs events, never the training; see `FileWriter`. What a monitored session
    and its hooks take, from `begin` on, is closed with that session, unless another session has taken it too, or
    somebody outside of any: that one stays open until `clear`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as logdir:
        ...     same = FileWriterCache.get(logdir) is FileWriterCache.get(logdir + "/.")
        ...     FileWriterCache.clear()
        >>> same
        True

    References:
        `tf.compat.v1.summary.FileWriterCache`. Differences: different spellings of a directory, links included, give
        the same writer; a writer that somebody closed, whose writing has failed or whose file was deleted, goes on in a
        new file; sessions close what they took; `strict` and `sync`.
    """

    _shared: ClassVar[dict[str, _Shared]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls, logdir: str | os.PathLike[str], *, strict: bool | None = None) -> FileWriter:
        """Returns the open writer of `logdir`, made on first use.

        Args:
            logdir: Directory on a local or mounted file system.
            strict: Whether a failed write is raised. By default as the session wants it that this is called in, and not
                outside of a session. A writer that is strict for one who shares it is so for all.

        Raises:
            ValueError: `logdir` is empty or a URL.
            OpError: The directory cannot be written.
        """
        path = os.fspath(logdir)
        name = os.path.realpath(path) if path and "://" not in path else path
        scope = SCOPE.get()
        with cls._lock:
            if scope is not None and scope.released:
                scope = None
            if strict is None:
                strict = scope is not None and scope.strict
            shared = cls._shared.get(name)
            if shared is None:
                shared = cls._shared[name] = _Shared(FileWriter(path, strict=strict))
            if scope is None:
                shared.kept = True
            else:
                shared.scopes.add(scope)
            writer = shared.writer
            if strict:
                writer.be_strict()
            if writer.lost:
                try:
                    writer.close()
                except OpError as error:
                    _logger.warning("Going on in a new file: %s", error)
            writer.reopen()
            return writer

    @classmethod
    def sync(cls) -> None:
        """Returns when everything written so far to the cached writers is on the disk, as far as it can be.

        Never raises for a writer that cannot write: a warning says so, and a strict one raises it at its next call.
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
        """Closes and forgets the writers that only this scope has taken.

        Raises:
            OpError: A strict writer could not write its last events. The others are closed all the same.
        """
        with cls._lock:
            scope.released = True
            left = []
            for name, shared in list(cls._shared.items()):
                if scope in shared.scopes:
                    shared.scopes.discard(scope)
                    if not shared.scopes and not shared.kept:
                        left.append(cls._shared.pop(name).writer)
        _close(left)

    @classmethod
    def clear(cls) -> None:
        """Closes all cached writers and forgets them.

        Raises:
            OpError: A strict writer could not write its last events. The others are closed all the same.
        """
        with cls._lock:
            writers = [shared.writer for shared in cls._shared.values()]
            cls._shared.clear()
        _close(writers)


def _close(writers: Iterable[FileWriter]) -> None:
    failures = []
    for writer in writers:
        try:
            writer.close()
        except Exception as error:
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"Another writer failed too: {other}")
        raise failures[0]
