"""Messages between SPMD processes, all at the same point of the same script."""

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
"""The time that processes wait for another one at the same point of the script; it may still compile."""


class ProcessGroup:
    """The processes of an SPMD job. All call the same methods in the same order, for each `tag`.

    The chief is process 0. It reads the values of all, and answers all: three messages a process.

    Args:
        store: Their key-value store.
        index: The number of this process.
        count: The number of processes.

    Attributes:
        on_wait: Called each second of a wait with its `tag`, and with None when it is over; it may raise errors.
        failure_suspected: Whether this process knows of a reason for `on_wait` to raise; it is then called sooner.

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
        """Returns the values of all processes, in the order of their numbers. The values are JSON.

        Raises:
            DeadlineExceededError: A process did not arrive in time; the error names it.
        """

        def answer(values: list[Any]) -> list[Any]:
            # If all values are equal, send only one: with a thousand processes, a thousandth of the bytes.
            return values if len(set(map(json.dumps, values))) > 1 else values[:1]

        values = self.all_reduce(tag, value, answer, timeout_secs)
        return values * self.count if len(values) == 1 else values

    def all_reduce(
        self, tag: str, value: Any, reduce: Callable[[list[Any]], Any], timeout_secs: float = START_TIMEOUT_SECS
    ) -> Any:
        """Returns the chief's reduction of the values of all processes, the same in all of them. All values are JSON.

        Raises:
            DeadlineExceededError: As in `all_gather`.
        """
        key = self._next_key(tag)
        try:
            if not self.is_chief:
                self.store.set(f"{key}/{self.index}", json.dumps(value))
                return json.loads(self._get(f"{key}/answer", tag, 0, timeout_secs))
            texts = [json.dumps(value)]
            texts += [self._get(f"{key}/{other}", tag, other, timeout_secs) for other in range(1, self.count)]
            text = json.dumps(reduce([json.loads(text) for text in texts]))
            if self.count > 1:
                self.store.set(f"{key}/answer", text)
            return json.loads(text)
        finally:
            self.on_wait(None)

    def barrier(self, tag: str, timeout_secs: float = START_TIMEOUT_SECS) -> None:
        """Waits until all processes have called this."""
        self.all_gather(tag, None, timeout_secs)

    def reset(self) -> None:
        """Drops interrupted exchanges. All processes call this at the same point of the script."""
        self._generation += 1
        self._rounds.clear()

    def _next_key(self, tag: str) -> str:
        number, prefix = self._rounds[tag], f"peers/{self._generation}/{tag}"
        self._rounds[tag] += 1
        # All processes have taken part in the previous round, so they have read the one before it.
        if self.is_chief and number >= 2:
            self.store.delete(f"{prefix}/{number - 2}/")
        return f"{prefix}/{number}"

    def _get(self, key: str, tag: str, of: int, timeout_secs: float) -> str:
        started = logged = polled = clock.monotonic()
        while True:
            left = started + timeout_secs - clock.monotonic()
            found = self.store.get(key, max(0.0, min(left, _AT_ONCE_SECS)))
            if found is not None:
                return found
            now = clock.monotonic()
            if now >= started + timeout_secs:
                raise DeadlineExceededError.from_message(
                    f"Process {self.index} of {self.count} has waited {timeout_secs:g} s for process {of} ({tag}), "
                    f"which has not reached the same point of the script. All processes must run the same script with "
                    f"the same arguments; check the last output of process {of}.",
                )
            if now >= logged + _LOG_EVERY_SECS:
                _logger.info("Process %d waits for process %d (%s).", self.index, of, tag)
                logged = now
            if self.failure_suspected or now >= polled + _POLL_SECS:
                polled = now
                try:
                    self.on_wait(tag)
                except AbortedError:  # The process may have answered before it ended.
                    if (found := self.store.get(key, 0)) is not None:
                        return found
                    raise


_OF_THE_JOB = "_hookline_of_the_job"


def job_failure(text: str) -> AbortedError:
    """Returns the error of a process that ends because another one has failed or is lost; its message says all."""
    error = AbortedError.from_message(text)
    vars(error)[_OF_THE_JOB] = True
    return error


def is_job_failure(error: BaseException) -> bool:
    """Returns whether `job_failure` has made an error.

    Example:
        >>> is_job_failure(job_failure("Process 1 is lost.")), is_job_failure(AbortedError.from_message("lost"))
        (True, False)
    """
    return _OF_THE_JOB in vars(error)


_store: KeyValueStore | None = None


def is_signed() -> bool | None:
    """Returns whether the processes sign their entries; None before the handshake."""
    return None if _store is None else isinstance(_store, SignedKeyValueStore)


def open_store(secret: bytes | None, index: int, count: int, timeout_secs: float = START_TIMEOUT_SECS) -> KeyValueStore:
    """Returns the key-value store of the job; the first call performs the handshake with the other processes.

    Args:
        secret: The token of the job; None for none.
        index: The number of this process.
        count: The number of processes.
        timeout_secs: The time to wait for the others.

    Raises:
        UnauthenticatedError: The processes have different tokens.
        DeadlineExceededError: A process did not arrive in time.
    """
    global _store
    if _store is None:
        unsigned = service.JaxKeyValueStore()
        exchange = functools.partial(ProcessGroup(unsigned, index, count).all_reduce, timeout_secs=timeout_secs)
        signer = handshake(exchange, secret, index)
        _store = unsigned if signer is None else SignedKeyValueStore(unsigned, signer)
        if signer is None and index == 0 and not service.listens_on_loopback():
            _logger.warning(
                "The processes of this job have no token: whoever reaches process 0 at %s can control them. Give all "
                "of them the same secret file, with %s or token_path of hookline.distributed.initialize.",
                service.process_info().address,
                TOKEN_PATH,
            )
    return _store


@functools.cache
def _of(index: int, count: int) -> ProcessGroup:
    _logger.info("%s", service.describe())
    return ProcessGroup(_store or open_store(find_token(None, os.environ), index, count), index, count)


def is_primary() -> bool:
    """Returns whether this process writes and logs for the whole job: the chief of an SPMD job, or a single process."""
    return not placement.is_spmd() or jax.process_index() == 0


def current() -> ProcessGroup | None:
    """Returns the processes of this SPMD job; None for a single process."""
    return _of(jax.process_index(), jax.process_count()) if placement.is_spmd() else None
