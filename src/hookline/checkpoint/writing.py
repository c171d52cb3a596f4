"""Writing: one checkpoint while it is written to the disk, with retries after temporary failures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hookline.checkpoint import failures, moves
from hookline.checkpoint.host import HostCopy
from hookline.checkpoint.lease import Lease
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.retry import RetryPolicy
from hookline.checkpoint.together import Together

T = TypeVar("T")


class Writing:
    """Makes the directory of a checkpoint; `complete` writes it.

    Args:
        path: The checkpoint.
        stored: The arrays that this process writes. They must not change before `complete` returns.
        retry: The policy for failed attempts. The constructor raises an error after which there is no further attempt.
        take: Called first in each attempt; returns the lease of the directory. The chief calls it.
        was_saved: Returns whether a checkpoint was saved at `path` before; asked if the path holds something else.
        others: The processes that write it together. Each attempt succeeds in all of them, or fails in all.
        parts: The processes that have arrays to write.
    """

    def __init__(
        self,
        path: str,
        stored: Mapping[str, HostCopy],
        retry: RetryPolicy,
        take: Callable[[], Lease],
        was_saved: Callable[[], bool],
        others: Together,
        parts: Sequence[int] = (0,),
    ) -> None:
        self._path, self._stored, self._retry = path, stored, retry
        self._take, self._was_saved = take, was_saved
        self._others, self._parts = others, parts
        self._lease: Lease | None = None
        self._place = os.path.abspath(path)
        self._failures = 0
        self._unclear = False  # Whether a failure may hide another one inside Orbax.
        self._failed: BaseException | None = None
        self._directory = ""  # To which all write in this attempt.
        self._begin()

    def complete(
        self, seal: Callable[[], dict[str, Any]], manifest: Callable[[list[dict[str, Any]]], Manifest]
    ) -> float:
        """Blocks until the checkpoint is in its place, and returns the time in its manifest.

        Args:
            seal: Returns the pieces that this process stores, by leaf name. Each process calls it, once.
            manifest: Makes the manifest from the pieces of all processes. The chief calls it, once.

        Raises:
            OpError: It could not be written in any attempt.
        """
        sealed: list[dict[str, Any]] = []
        made: list[Manifest] = []

        def end() -> dict[str, Any]:
            wait = self._start_writing()
            try:
                if not sealed:
                    sealed.append(seal())
            finally:  # What is still being written is hard to remove.
                wait()
            return sealed[0]

        def commit() -> float:
            from hookline.checkpoint import orbax_io

            if not self._others.is_chief:
                return 0.0
            if not made:
                made.append(manifest(written or []))
            with self._in_orbax():
                orbax_io.join_parts(self._directory, self._parts)
            assert self._lease is not None
            moves.commit(self._directory, made[0], self._lease.changing)
            return made[0].timestamp

        written: list[dict[str, Any]] | None = None
        while not self._directory or (written := self._try(end)) is None or (done := self._try(commit)) is None:
            assert self._failed is not None
            self._retry.wait(self._failed, self._failures)
            self._begin()
        return done[0]

    def require(self, condition: Callable[[], None]) -> None:
        """Calls a function that raises in all processes if the checkpoint must not be written."""
        try:
            condition()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Removes the files written so far."""
        if self._directory and self._others.is_chief:
            moves.abandon(self._directory)

    def _begin(self) -> None:
        if (found := self._try(self._prepared)) is not None:
            self._directory = found[0]

    def _prepared(self) -> str:
        """Returns the directory to write to; the chief makes it."""
        from hookline.checkpoint import orbax_io  # Importing Orbax takes 0.4 s.

        if self._others.is_chief:
            self._lease = self._take()
            with self._lease.changing():
                self._directory = moves.prepare(self._place, self._was_saved)
            with self._in_orbax():
                orbax_io.begin(self._directory, self._parts)
        return self._directory

    def _start_writing(self) -> Callable[[], None]:
        """Starts to write this process's part, if it has one; returns a function that waits until that is written.

        The chief syncs the whole later. Of several processes each syncs its part.
        """
        from hookline.checkpoint import orbax_io

        if self._others.index not in self._parts:
            return lambda: None
        with self._in_orbax():
            wait = orbax_io.start_writing(self._directory, self._stored)

        def finish() -> None:
            with self._in_orbax():
                wait()
            if not self._others.is_alone:
                orbax_io.sync_part(self._directory, self._others.index)

        return finish

    @contextlib.contextmanager
    def _in_orbax(self) -> Iterator[None]:
        self._unclear = True
        yield
        self._unclear = False

    def _try(self, part: Callable[[], T]) -> list[T] | None:
        """Does a part in all processes; returns the result of `for_chief`, or None if another attempt must follow."""
        try:
            return self._others.for_chief(lambda: self._mapped(part))
        except Exception as error:
            self.abandon()
            self._directory = ""
            self._failures += 1
            if self._failures >= self._retry.max_attempts or not failures.may_pass(error):
                raise
            self._failed = error.with_traceback(None)
            return None

    def _mapped(self, part: Callable[[], T]) -> T:
        try:
            return part()
        except Exception as error:
            mapped = failures.not_written(error, self._path)
            is_unclear, self._unclear = self._unclear and failures.is_unclear(error), False
            failures.decide(mapped, failures.may_pass(error) or is_unclear)
            if mapped is error:
                raise
            raise mapped from failures.without_tracebacks(error)
