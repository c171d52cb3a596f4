"""The bound on staleness: who may begin a step, so that nobody's values get too old before its update comes."""

from __future__ import annotations

import threading
from typing import NamedTuple

from hookline import clock, errors

LEASE_SECS = 60.0
"""For how long a worker that was let in, and then gave no sign of life, holds the others back."""


class _Within(NamedTuple):
    since: int
    until: float


class Gate:
    """Lets a worker begin only if every worker that is within may then miss at most `bound` updates of others.

    A worker within has read its values, or will now, and commits once. So what its update will miss is what was
    committed since those values, and at most one update of each other that is within: where that could pass the bound
    of anybody, whoever wants to begin waits. Nobody waits at the commit.

    Args:
        bound: How many updates of others an update may miss.

    Example:
        >>> gate = Gate(bound=1)
        >>> gate.admit("a", since=0, count=0), gate.admit("b", since=0, count=0), gate.admit("c", since=0, count=0)
        (0, 0, None)
        >>> gate.leave("a")
        >>> gate.admit("a", since=1, count=1) is None  # "b" has missed one update: not another one before its own
        True

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013. There a
        worker may be so many clocks ahead of the slowest; here what counts is the updates that an update misses.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._within: dict[str, _Within] = {}
        self._late: dict[str, int] = {}
        # Those that wait try in threads of their own.
        self._lock = threading.Lock()

    def admit(self, sender: str, since: int, count: int) -> int | None:
        """Lets a worker begin, if that is possible now.

        Args:
            sender: The worker. If it is within already, that step of its is over.
            since: After how many transactions the values were read that it has.
            count: How many there have been by now.

        Returns:
            After how many transactions the values must have been read: `since`, or `count` if those are too old. `None`
            if it has to wait.
        """
        with self._lock:
            now = clock.monotonic()
            self._within.pop(sender, None)
            for other, held in list(self._within.items()):
                if now > held.until:
                    self._late[other] = self._within.pop(other).since
            others = len(self._within)
            if any(count - held.since + others > self._bound for held in self._within.values()):
                return None
            self._late.pop(sender, None)
            since = since if count - since + others <= self._bound else count
            self._within[sender] = _Within(since, now + LEASE_SECS)
            return since

    def renew(self, sender: str) -> None:
        """Takes note that a worker lives."""
        with self._lock:
            if sender in self._within:
                self._within[sender] = self._within[sender]._replace(until=clock.monotonic() + LEASE_SECS)

    def check(self, sender: str, count: int) -> None:
        """Checks that a worker may commit now: it may, unless the others have begun without waiting for it.

        Raises:
            AbortedError: They have, and its update would miss too many of theirs, or they it.
        """
        since = self._late.get(sender)
        if since is not None and self.admit(sender, since, count) != since:
            raise errors.AbortedError(
                None,
                None,
                f"Worker {sender} gave no sign of life for {LEASE_SECS:g} s, and the others went on without it: its "
                f"update does not fit max_staleness={self._bound} any more. Nothing of it was applied.",
            )

    def leave(self, sender: str) -> None:
        """Takes note that a worker's step is over."""
        with self._lock:
            self._within.pop(sender, None)
            self._late.pop(sender, None)
