"""Writing: one checkpoint on its way to the disk, tried again after temporary failures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hookline.checkpoint import failures, layout
from hookline.checkpoint.host import HostCopy
from hookline.checkpoint.lease import Lease
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.retry import RetryPolicy


class Writing:
    """Starts to write named arrays; `complete` finishes the checkpoint.

    Args:
        path: The checkpoint.
        stored: The arrays to write. They must not change before `complete` returns.
        retry: How often to try. The constructor raises what no further attempt follows.
        take: Called first in each attempt; returns the lease of the directory.
        was_saved: Says whether there was a checkpoint at `path`, if something else is there.
    """

    def __init__(
        self,
        path: str,
        stored: Mapping[str, HostCopy],
        retry: RetryPolicy,
        take: Callable[[], Lease],
        was_saved: Callable[[], bool],
    ) -> None:
        self._path, self._stored, self._retry = path, stored, retry
        self._take, self._was_saved = take, was_saved
        self._lease: Lease | None = None
        self._place = os.path.abspath(path)
        self._failures = 0
        self._unclear = False  # Whether a failure may be one that Orbax has made of another.
        self._failed: BaseException | None = None
        self._directory = ""
        self._wait_for_orbax: Callable[[], None] | None = None
        self._try(self._begin)

    def complete(self, manifest: Callable[[], Manifest]) -> tuple[Manifest, Lease]:
        """Blocks until the checkpoint is in its place, and returns its manifest and the lease of its directory.

        The function makes the manifest, once.

        Raises:
            OpError: It could not be written in any attempt.
        """
        made: list[Manifest] = []

        def end() -> tuple[Manifest, Lease]:
            if not made:
                made.append(manifest())
            assert self._wait_for_orbax is not None
            assert self._lease is not None
            with self._in_orbax():
                self._wait_for_orbax()
            layout.commit(self._directory, made[0], self._lease.changing)
            return made[0], self._lease

        while self._wait_for_orbax is None or (written := self._try(end)) is None:
            assert self._failed is not None
            self._retry.wait(self._failed, self._failures)
            self._try(self._begin)
        return written

    def abandon(self) -> None:
        """Removes what has been written so far."""
        if self._directory:
            layout.abandon(self._directory)

    def _begin(self) -> None:
        from hookline.checkpoint import orbax_io

        self._lease = self._take()
        with self._lease.changing():
            self._directory = layout.prepare(self._place, self._was_saved)
        with self._in_orbax():
            self._wait_for_orbax = orbax_io.start_writing(self._directory, self._stored)

    @contextlib.contextmanager
    def _in_orbax(self) -> Iterator[None]:
        self._unclear = True
        yield
        self._unclear = False

    def _try(self, part: Callable[[], Any]) -> Any:
        """Does a part; returns None if it failed and another attempt follows."""
        try:
            return part()
        except Exception as error:
            self.abandon()
            self._directory, self._wait_for_orbax = "", None
            self._failures += 1
            mapped = failures.not_written(error, self._path)
            may_pass = failures.may_pass(error) or (self._unclear and failures.is_unclear(error))
            self._unclear = False
            if self._failures >= self._retry.max_attempts or not may_pass:
                if mapped is error:
                    raise
                raise mapped from failures.without_tracebacks(error)
            self._failed = mapped
            return None
