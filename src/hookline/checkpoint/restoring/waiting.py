"""Waiting for new checkpoints of a directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from hookline import arguments, clock
from hookline.checkpoint.directory import layout
from hookline.checkpoint.directory.state_file import latest_checkpoint
from hookline.errors import NotFoundError
from hookline.signals import preemption

T = TypeVar("T")


def checkpoints_iterator(
    checkpoint_dir: str,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    poll_secs: float = 1.0,
) -> Iterator[str]:
    """Yields each new checkpoint of a directory when it is complete; of several new ones, only the newest.

    Args:
        checkpoint_dir: The directory; it need not exist yet.
        min_interval_secs: The least number of seconds between two checkpoints.
        timeout: The longest wait for a new one, in seconds, before it stops or calls `timeout_fn`; None for no limit.
        timeout_fn: Called without arguments after a timeout; True stops, False waits again.
        poll_secs: The polling interval, in seconds.

    Yields:
        Paths; the same path again if its checkpoint was rewritten.

    Example:
        >>> list(checkpoints_iterator("/nowhere", timeout=0))
        []

    References:
        `tf.train.checkpoints_iterator`. `poll_secs` is new.
    """
    who = "checkpoints_iterator"
    arguments.check_path(who, "checkpoint_dir", checkpoint_dir)
    arguments.check_number(who, "min_interval_secs", min_interval_secs)
    arguments.check_callable(who, "timeout_fn", timeout_fn, optional=True)
    _check_waits(who, timeout, poll_secs=poll_secs)
    return _each_new(checkpoint_dir, min_interval_secs, timeout, timeout_fn, poll_secs)


def _each_new(
    checkpoint_dir: str,
    min_interval_secs: float,
    timeout: float | None,
    timeout_fn: Callable[[], bool] | None,
    poll_secs: float,
) -> Iterator[str]:
    seen: tuple[str, float] | None = None

    def another() -> tuple[str, float] | None:
        while (path := latest_checkpoint(checkpoint_dir)) is not None:
            with contextlib.suppress(NotFoundError):  # It was removed meanwhile.
                found = (path, layout.read_manifest(path)[1].timestamp)
                return None if found == seen else found
        return None

    while True:
        found = _wait(another, timeout, poll_secs)
        if found is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        yielded_at, seen = clock.monotonic(), found
        yield found[0]
        preemption.sleep(yielded_at + min_interval_secs - clock.monotonic())


def wait_for_new_checkpoint(
    checkpoint_dir: str, last_checkpoint: str | None = None, seconds_to_sleep: float = 1, timeout: float | None = None
) -> str | None:
    """Blocks until the newest checkpoint of a directory differs from the last one, and returns its path.

    Args:
        checkpoint_dir: The directory; it need not exist yet.
        last_checkpoint: The path of the last one; None for any.
        seconds_to_sleep: The polling interval, in seconds.
        timeout: The longest wait, in seconds; None for no limit.

    Returns:
        The path; None after a timeout.

    Example:
        >>> wait_for_new_checkpoint("/nowhere", timeout=0) is None
        True

    References:
        `tf.contrib.training.wait_for_new_checkpoint`.
    """
    _check_waits("wait_for_new_checkpoint", timeout, seconds_to_sleep=seconds_to_sleep)

    def another() -> str | None:
        path = latest_checkpoint(checkpoint_dir)
        return None if path == last_checkpoint else path

    return _wait(another, timeout, seconds_to_sleep)


def _check_waits(who: str, timeout: float | None, **poll: float) -> None:
    for name, secs in {"timeout": 0 if timeout is None else timeout, **poll}.items():
        arguments.check_number(who, name, secs)


def _wait(poll: Callable[[], T | None], timeout: float | None, poll_secs: float) -> T | None:
    """Polls `poll`, and returns its first result that is not None; None after the timeout."""
    started = clock.monotonic()
    while (found := poll()) is None:
        left = float("inf") if timeout is None else started + timeout - clock.monotonic()
        if left <= 0:
            break
        preemption.sleep(min(poll_secs, left))
    return found
