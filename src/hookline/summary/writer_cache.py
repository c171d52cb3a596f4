"""FileWriterCache: one writer a directory for the whole process."""

from __future__ import annotations

import logging
import os
import threading
from typing import ClassVar

from hookline.errors import OpError
from hookline.summary.file_writer import FileWriter

_logger = logging.getLogger(__name__)


class FileWriterCache:
    """Shares one `FileWriter` a directory, so that hooks which log to the same place write one file.

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
        new file.
    """

    _writers: ClassVar[dict[str, FileWriter]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def get(cls, logdir: str | os.PathLike[str]) -> FileWriter:
        """Returns the open writer of `logdir`, made on first use.

        Raises:
            ValueError: `logdir` is empty or a URL.
            OpError: The directory cannot be written.
        """
        path = os.fspath(logdir)
        name = os.path.realpath(path) if path and "://" not in path else path
        with cls._lock:
            writer = cls._writers.get(name)
            if writer is None:
                writer = cls._writers[name] = FileWriter(path)
            elif writer.lost:
                try:
                    writer.close()
                except OpError as error:
                    _logger.warning("Going on in a new file: %s", error)
            writer.reopen()
            return writer

    @classmethod
    def clear(cls) -> None:
        """Closes all cached writers and forgets them.

        Raises:
            OpError: A writer could not write its last events. The others are closed all the same.
        """
        with cls._lock:
            writers = list(cls._writers.values())
            cls._writers.clear()
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
