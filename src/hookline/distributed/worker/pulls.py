"""A worker's reads from the servers: pulled and prefetched values, and consistent snapshots."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookline import clock, errors
from hookline.distributed.protocol import Committed, Leaves, Pulled, Reply, Transport, decode_leaves
from hookline.distributed.worker.membership import Membership

FRESH_SECS = 1.0
"""The time for which prefetched values may be used. Later, other workers have changed them, and a pull costs little."""

_POLL_SECS = 1.0


class _Prefetched:
    """Values for one run that arrived, or were requested, before the run began."""

    def __init__(self) -> None:
        self.ready: dict[str, tuple[int, Leaves]] = {}
        self.pending: dict[int, list[Callable[[], Pulled]]] = {}
        self._since = clock.monotonic()

    @property
    def fresh(self) -> bool:
        """Whether the values may be used: at most `FRESH_SECS` have passed."""
        return clock.monotonic() - self._since <= FRESH_SECS

    def store(self, pulled: Pulled) -> None:
        """Keeps values that have arrived."""
        self._since = clock.monotonic()
        self.ready.update((name, (pulled.transactions, leaves)) for name, leaves in pulled.values.items())


class Pulls:
    """Pulls and prefetches values for one worker.

    Values that come with the reply to an update, or are pulled while a run computes, are only for the next run, and
    only if it begins within `FRESH_SECS`, because other workers change them in the meantime. With `overlap`, the values
    of the next run are pulled as soon as this run has its own.

    Attributes:
        since: The least number of transactions that the values for the next run include.
    """

    def __init__(self, transport: Transport, members: Membership, *, overlap: bool, deliver_secs: float) -> None:
        self._transport, self._members = transport, members
        self._overlap, self._deliver_secs = overlap, deliver_secs
        # The number of updates by their staleness.
        self._staleness_counts: Counter[int] = Counter()
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Discards all state of the previous epoch."""
        # For each server, the number of the step server's message that it must have received before a pull.
        self._required_seqs: Sequence[int] = [0] * self._transport.count
        self._structures: dict[str, Any] = {}
        self._next = _Prefetched()
        self.since = 0
        self.begin_run()

    def begin_run(self) -> None:
        """Starts a run, with the values prefetched for it."""
        self._prefetched = self._next if self._next.fresh else _Prefetched()
        self._next = _Prefetched()
        self._reads: dict[int, dict[str, None]] = {}
        self._read_at: dict[int, int] = {}

    def enter(self, since: int, count: int, seqs: Sequence[int]) -> None:
        """Records the result of `AdmissionClient.enter` for the starting run."""
        if since > self.since:
            # The prefetched values are too old.
            self._prefetched = _Prefetched()
        # Values pulled from here on, for this run or the next, include all transactions so far.
        self.since = count
        self.require_seqs(seqs)

    def clear(self) -> None:
        """Discards prefetched values, also those that have not arrived."""
        self._prefetched, self._next = _Prefetched(), _Prefetched()

    # Reading ----------------------------------------------------------------------------------------------------

    def take(self, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """Returns the leaves of variables, by name: prefetched, or pulled now."""
        parts = self._by_server(names)
        for server, part in parts.items():
            self._reads.setdefault(server, {}).update(dict.fromkeys(part))
            for pulled in self._prefetched.pending.pop(server, ()):
                self._prefetched.store(pulled())
        ready = self._prefetched.ready
        missing = {server: [name for name in part if name not in ready] for server, part in parts.items()}
        for pulled in [self._call(server, part) for server, part in missing.items() if part]:
            self._prefetched.store(pulled())
        taken = {name: ready.pop(name) for name in names}
        for server, part in parts.items():
            oldest = min(taken[name][0] for name in part)
            self._read_at[server] = min(oldest, self._read_at.get(server, oldest))
        if self._overlap:
            self._prefetch(parts)
        return {name: decode_leaves(leaves) for name, (_, leaves) in taken.items()}

    def _prefetch(self, parts: Mapping[int, Sequence[str]]) -> None:
        """Starts pulls for the next run."""
        for server, names in parts.items():
            self._next.pending.setdefault(server, []).append(self._call(server, list(names)))

    def _by_server(self, names: Iterable[str]) -> dict[int, list[str]]:
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self._members.owner(name), []).append(name)
        return parts

    def _call(self, server: int, names: Sequence[str]) -> Callable[[], Pulled]:
        """Starts a pull; returns a function that waits for its result."""
        seq = self._required_seqs[server]
        if not seq:
            return self._transport.call(server, "pull", self._members.ticket(server), names).get
        return self._call_until_delivered(server, "pull_after", names, seq)

    def _call_until_delivered(self, server: int, method: str, *args: Any) -> Callable[[], Any]:
        """Starts a call that waits for the step server's messages; returns a function that waits for its result.

        Each call blocks for a second at most, so the function repeats it, for up to `deliver_secs`.
        """

        def call() -> Reply:
            return self._transport.call(server, method, self._members.ticket(server), *args, _POLL_SECS)

        first = call()

        def result() -> Any:
            reply, deadline = first, clock.monotonic() + self._deliver_secs
            while not (found := reply.get()):
                if clock.monotonic() >= deadline:
                    raise errors.UnavailableError.from_message(
                        f"Parameter server {server} has not got the step server's messages for {self._deliver_secs:g} "
                        f"s; one of the two does not respond.",
                    )
                reply = call()
            return found

        return result

    # Around an update -------------------------------------------------------------------------------------------

    def predicted_reads(self) -> dict[int, list[str]]:
        """Returns the next run's reads by server, on the assumption that they are those of this run."""
        return {} if self._overlap else {server: list(names) for server, names in self._reads.items()}

    def store_replies(self, pulled: Iterable[Pulled | None]) -> None:
        """Stores values for the next run that came with a transaction."""
        for part in filter(None, pulled):
            self._next.store(part)

    def require_seqs(self, seqs: Sequence[int]) -> None:
        """Makes later pulls wait until each server has received the step server's messages up to these numbers."""
        self._required_seqs = [max(pair) for pair in zip(seqs, self._required_seqs, strict=True)]

    def record_commit(self, reply: Committed, servers: Sequence[int], wanted: Mapping[int, list[str]]) -> None:
        """Records a transaction: its staleness, and the values of the step server that came with it.

        Args:
            reply: The outcome.
            servers: The servers with a part of it, except the step server.
            wanted: The `predicted_reads` that the transaction requested.
        """
        if reply.accepted and self._read_at:
            own = {0, *servers}
            self._staleness_counts[
                max(reply.counts[server] - (server in own) - n for server, n in self._read_at.items())
            ] += 1
        self._read_at.clear()
        # Later reads in this run need the values after the update.
        self._prefetched = _Prefetched()
        self._next.store(Pulled(reply.counts[0], reply.values))
        self.require_seqs(reply.sent_seqs)
        if not self._overlap:
            self.since = reply.counts[0]
            self._prefetch({server: names for server, names in wanted.items() if server != 0 and server not in servers})

    def wait_until_delivered(self, seqs: Sequence[int]) -> None:
        """Waits until all servers have received the step server's messages up to these numbers.

        Raises:
            UnavailableError: A server does not receive them in time.
        """
        for server in range(1, len(seqs)):
            self._call_until_delivered(server, "wait_delivered", seqs[server])()

    def staleness(self) -> tuple[int, float, int]:
        """Returns the number of updates since the last call, and their mean and maximum staleness."""
        missed, self._staleness_counts = self._staleness_counts, Counter()
        count = missed.total()
        return count, sum(missed.elements()) / count if count else 0.0, max(missed, default=0)

    # Snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, names: Sequence[str]) -> tuple[int, dict[str, tuple[Any, ...]]]:
        """Returns the global step and the leaves of variables, all after the same transactions."""
        parts = self._by_server(names)
        name = uuid.uuid4().hex
        begun: Committed = self._transport.call(0, "begin_snapshot", self._members.ticket(0), name, parts).get()
        values = dict(begun.values)
        for collected in [self._call_until_delivered(server, "collect", name) for server in parts if server != 0]:
            values.update(collected())
        return begun.step, {name: decode_leaves(leaves) for name, leaves in values.items()}

    def structure(self, name: str) -> Any:
        """Returns the tree structure of a variable, from its server."""
        if name not in self._structures:
            server = self._members.owner(name)
            found = self._transport.call(server, "structures", self._members.ticket(server), [name]).get()
            self._structures.update((name, structure.treedef) for name, structure in found.items())
        return self._structures[name]
