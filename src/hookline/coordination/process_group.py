"""Peers: messages between processes that run in step, all at the same place of the same script."""

from __future__ import annotations

import collections
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import jax

from hookline import clock, log
from hookline.coordination import service
from hookline.coordination.key_value_store import TOKEN_PATH, KeyValueStore, SignedKeyValueStore, find_token, handshake
from hookline.errors import AbortedError, DeadlineExceededError
from hookline.graph import placement

_logger = log.get_logger(__name__)

_LOG_EVERY_SECS, _POLL_SECS, _AT_ONCE_SECS = 10.0, 1.0, 0.25
START_TIMEOUT_SECS = 300.0
"""The time that processes wait for one that has not come to the same place; it may still compile."""


class ProcessGroup:
    """The processes that run in step. Each of them calls the same methods in the same order, for each `about`.

    The chief is process 0. It reads the values of all, and answers all: three messages a process.

    Args:
        store: The board on which they write.
        index: The number of this process.
        count: The number of processes.

    Attributes:
        on_wait: Called each second of a wait with its `about`, and with None when it is over; it may raise errors.
        failure_suspected: Whether this process knows of a reason for `on_wait` to raise: it is then called soon.

    Example:
        >>> from hookline.coordination.key_value_store import MemoryKeyValueStore
        >>> ProcessGroup(MemoryKeyValueStore(), 0, 1).all_gather("length", 100)
        [100]
    """

    def __init__(self, store: KeyValueStore, index: int, count: int) -> None:
        self.store, self.index, self.count = store, index, count
        self.on_wait: Callable[[str | None], None] = lambda about: None
        self.failure_suspected = False
        self._rounds: collections.Counter[str] = collections.Counter()
        self._generation = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process decides, saves and writes."""
        return self.index == 0

    def all_gather(self, tag: str, value: Any, timeout_secs: float = START_TIMEOUT_SECS) -> list[Any]:
        """Returns the values that all processes have given here, in their order. The values are JSON.

        Raises:
            DeadlineExceededError: A process has not come; the error names it.
        """

        def answer(values: list[Any]) -> list[Any]:
            # If all values are equal, one is enough: with a thousand processes it is a thousandth.
            return values if len(set(map(json.dumps, values))) > 1 else values[:1]

        values = self.all_reduce(tag, value, answer, timeout_secs)
        return values * self.count if len(values) == 1 else values

    def all_reduce(
        self, tag: str, value: Any, reduce: Callable[[list[Any]], Any], timeout_secs: float = START_TIMEOUT_SECS
    ) -> Any:
        """Returns the chief's answer to the values of all processes, the same in all of them. All values are JSON.

        Raises:
            DeadlineExceededError: As in `all_gather`.
        """
        place = self._next_key(tag)
        try:
            if not self.is_chief:
                self.store.set(f"{place}/{self.index}", json.dumps(value))
                return json.loads(self._get(f"{place}/answer", tag, 0, timeout_secs))
            texts = [json.dumps(value)]
            texts += [self._get(f"{place}/{other}", tag, other, timeout_secs) for other in range(1, self.count)]
            text = json.dumps(reduce([json.loads(text) for text in texts]))
            if self.count > 1:
                self.store.set(f"{place}/answer", text)
            return json.loads(text)
        finally:
            self.on_wait(None)

    def barrier(self, tag: str, timeout_secs: float = START_TIMEOUT_SECS) -> None:
        """Waits until all processes have come here."""
        self.all_gather(tag, None, timeout_secs)

    def reset(self) -> None:
        """Forgets exchanges that were interrupted. All processes call this at the same place of the script."""
        self._generation += 1
        self._rounds.clear()

    def _next_key(self, tag: str) -> str:
        number, place = self._rounds[tag], f"peers/{self._generation}/{tag}"
        self._rounds[tag] += 1
        # A process that comes here has read the previous round, so the one before it is not needed.
        if self.is_chief and number >= 2:
            self.store.delete(f"{place}/{number - 2}/")
        return f"{place}/{number}"

    def _get(self, key: str, tag: str, of: int, timeout_secs: float) -> str:
        begun = said = looked = clock.monotonic()
        while True:
            left = begun + timeout_secs - clock.monotonic()
            found = self.store.get(key, max(0.0, min(left, _AT_ONCE_SECS)))
            if found is not None:
                return found
            now = clock.monotonic()
            if now >= begun + timeout_secs:
                raise DeadlineExceededError.from_message(
                    f"Process {self.index} of {self.count} has waited {timeout_secs:g} s for process {of} ({tag}), "
                    f"which has not come to the same place. All processes must run the same script with the same "
                    f"arguments; look at what process {of} printed last.",
                )
            if now >= said + _LOG_EVERY_SECS:
                _logger.info("Process %d waits for process %d (%s).", self.index, of, tag)
                said = now
            if self.failure_suspected or now >= looked + _POLL_SECS:
                looked = now
                try:
                    self.on_wait(tag)
                except AbortedError:  # A process that has answered may be gone.
                    if (found := self.store.get(key, 0)) is not None:
                        return found
                    raise


_store: KeyValueStore | None = None


def is_signed() -> bool | None:
    """Returns whether the processes seal what they write; None if they have not greeted each other yet."""
    return None if _store is None else isinstance(_store, SignedKeyValueStore)


def open_store(secret: bytes | None, index: int, count: int, timeout_secs: float = START_TIMEOUT_SECS) -> KeyValueStore:
    """Greets the other processes of the job, once, and returns the board on which they write.

    Args:
        secret: The token of the job; None for none.
        index: The number of this process.
        count: The number of processes.
        timeout_secs: The time to wait for the others.

    Raises:
        UnauthenticatedError: They have not all the same token.
        DeadlineExceededError: A process has not come.
    """
    global _store
    if _store is None:
        open_board = service.JaxKeyValueStore()
        ask = functools.partial(ProcessGroup(open_board, index, count).all_reduce, timeout_secs=timeout_secs)
        seal = handshake(ask, secret, index)
        _store = open_board if seal is None else SignedKeyValueStore(open_board, seal)
        if seal is None and index == 0 and not service.listens_on_loopback():
            _logger.warning(
                "The processes of this job have no token: whoever reaches process 0 at %s can steer them. Give all of "
                "them the same secret file, with %s or token_path of hookline.distributed.initialize.",
                service.process_info().address,
                TOKEN_PATH,
            )
    return _store


@functools.cache
def _of(index: int, count: int) -> ProcessGroup:
    _logger.info("%s", service.describe())
    return ProcessGroup(_store or open_store(find_token(None, os.environ), index, count), index, count)


def is_primary() -> bool:
    """Returns whether this process writes and logs for all that run in step with it: the chief, or a single process."""
    return not placement.is_spmd() or jax.process_index() == 0


def current() -> ProcessGroup | None:
    """Returns the processes that this one runs in step with; None if it is alone."""
    return _of(jax.process_index(), jax.process_count()) if placement.is_spmd() else None
