"""Feeding: the sinks of one session, and the followers that pass them the summaries of its writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from hookline import clock
from hookline.sinks.feeder import Feeder
from hookline.sinks.points import Written
from hookline.sinks.sink import Sink, Start

_serving: set[int] = set()  # Ids, because a user's sinks may compare equal.
_lock = threading.Lock()


class Feeding:
    """Passes summaries to the sinks of one session.

    Args:
        sinks: The sinks; each serves one session at a time.
        folder: The directory for summaries; None without one.
        strict: Whether failures of the sinks are raised where the session writes.

    Raises:
        RuntimeError: A sink serves another session.
    """

    def __init__(self, sinks: Sequence[Sink], folder: str | None, strict: bool) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)
        self._sinks = tuple(sinks)
        with _lock:
            ids = [id(sink) for sink in self._sinks]
            for place, sink in enumerate(self._sinks):
                if id(sink) in _serving or id(sink) in ids[:place]:
                    raise RuntimeError(
                        f"The {type(sink).__name__} serves another session, or is given twice. Give each its own."
                    )
            _serving.update(ids)
        self._feeders = [Feeder(sink, strict) for sink in self._sinks]

    def begin(self, step: int, hparams: dict[str, Any], is_new: bool) -> None:
        """Opens the sinks, at the start and after a recovery."""
        for feeder in self._feeders:
            feeder.begin(Start(self._folder, step, hparams, is_new))

    def follower(self, directory: str) -> _Follower:
        """Returns the follower for the writer of a directory; its tags begin with the path below the folder."""
        name = os.path.relpath(directory, self._folder or directory)
        if name.startswith(os.pardir):
            name = os.path.basename(directory)
        return self.named("" if name == os.curdir else name)

    def named(self, name: str) -> _Follower:
        """Returns a follower whose tags begin with a name."""
        return _Follower(self._feeders, f"{name}/".replace(os.sep, "/") if name else "")

    def close(self, failed: bool) -> None:
        """Closes the sinks; may be repeated.

        Raises:
            UnknownError: A strict sink has failed. The others are still closed.
        """
        failures: list[Exception] = []
        for feeder in self._feeders:
            try:
                feeder.close(failed)
            except Exception as failure:
                failures.append(failure)
        with _lock:
            _serving.difference_update(map(id, self._sinks))
        self._sinks = ()
        for other in failures[1:]:
            failures[0].add_note(f"Another sink failed too: {other}")
        if failures:
            raise failures[0]


class _Follower:
    """Follows a writer, or replaces it if there is no directory. Its methods are those of `FileWriter`."""

    def __init__(self, feeders: Sequence[Feeder], prefix: str) -> None:
        self._feeders, self._prefix = feeders, prefix

    def take(self, time: float, step: int | None, summary: bytes) -> None:
        written = Written(self._prefix, time, step, summary)
        for feeder in self._feeders:
            feeder.put(written)

    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        serialized = summary if isinstance(summary, bytes) else summary.SerializeToString()
        self.take(clock.time(), None if global_step is None else int(global_step), serialized)

    def add_session_log(self, session_log: Any, global_step: Any = None) -> None:
        """Has nothing to do: sinks get a `Start`."""

    def flush(self) -> None:
        """Has nothing to do: sinks are flushed before a checkpoint."""

    def sync(self) -> None:
        for feeder in self._feeders:
            feeder.sync()
