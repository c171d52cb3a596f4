"""Simulates the requests of many SPMD processes to their coordinator: real protocol, virtual network.

Each process is a thread that runs when the simulation gives it the turn. A request takes half a round trip to the
service, waits there for those before it, and its answer goes back through one line. It counts the messages and bytes at
the service, and says how long it takes until the last process has its answer. No device computes and no disk writes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from hookline.checkpoint.directory.collective import Collective
from hookline.coordination.agreement import Delete, Get, Member, Set, WaitUntilApplied
from hookline.coordination.process_group import ProcessGroup

ARRAYS = 200


class Network:
    """The coordination service in process 0, and the way there.

    Args:
        round_trip_secs: From another host to it and back.
        client_secs: What a request takes beside that, in the process that makes it. Process 0 has nothing but this.
        request_secs: How long the service is busy with a request.
        bytes_per_sec: How much goes in, and out, each second.
    """

    def __init__(self, round_trip_secs: float, client_secs: float, request_secs: float, bytes_per_sec: float) -> None:
        self.round_trip_secs, self.client_secs = round_trip_secs, client_secs
        self.request_secs, self.bytes_per_sec = request_secs, bytes_per_sec
        self.now, self.messages, self.bytes_in, self.bytes_out = 0.0, 0, 0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._free, self._line_free = itertools.count(), 0.0, 0.0
        self._values: dict[str, str] = {}
        self._waiting: dict[str, list[Callable[[str], None]]] = defaultdict(list)
        self._turn, self._done = threading.Semaphore(0), 0

    def run(self, parts: list[Callable[[], None]]) -> float:
        """Has each part run in a thread of its own; returns when the last one was done."""
        for part in parts:
            self._start(part)
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        assert self._done == len(parts), f"{len(parts) - self._done} of {len(parts)} have failed, or wait for ever"
        return self.now

    def _start(self, part: Callable[[], None]) -> None:
        def work() -> None:
            mine.acquire()
            try:
                part()
                self._done += 1
            finally:
                self._turn.release()

        mine = threading.Semaphore(0)
        threading.Thread(target=work, daemon=True).start()
        self._at(self.now, lambda: self._give_turn(mine))

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), happen))

    def _give_turn(self, thread: threading.Semaphore) -> None:
        thread.release()
        self._turn.acquire()

    def ask(self, process: int, key: str, text: str | None) -> Any:
        """Sets a key, or gets it where there is no text; called by the thread of a process, which waits."""
        mine, answer = threading.Semaphore(0), []
        way = (self.client_secs + (self.round_trip_secs if process else 0)) / 2

        def reply(found: Any) -> None:
            size = 60 + (len(found) if isinstance(found, str) else 0)
            self.bytes_out += size
            self._line_free = max(self._line_free, self.now) + size / self.bytes_per_sec
            answer.append(found)
            self._at(self._line_free + way, lambda: self._give_turn(mine))

        def arrive() -> None:
            size = 60 + len(key) + len(text or "")
            self.messages, self.bytes_in = self.messages + 1, self.bytes_in + size
            self._free = max(self._free, self.now) + self.request_secs + size / self.bytes_per_sec
            self._at(self._free, serve)

        def serve() -> None:
            if text is None:
                if key in self._values:
                    reply(self._values[key])
                else:
                    self._waiting[key].append(reply)
                return
            is_first = key not in self._values
            if is_first:
                self._values[key] = text
                for waiting in self._waiting.pop(key, ()):
                    waiting(text)
            reply(is_first)

        self._at(self.now + way, arrive)
        self._turn.release()
        mine.acquire()
        return answer[0]


class Board:
    """What a process sees of the service: `hookline.coordination.key_value_store.Board`."""

    def __init__(self, network: Network, process: int) -> None:
        self._network, self._process = network, process

    def set(self, key: str, value: str) -> bool:
        return self._network.ask(self._process, key, value)

    def get(self, key: str, timeout_secs: float) -> str | None:
        return self._network.ask(self._process, key, None)

    def delete(self, prefix: str) -> None:
        self._network.ask(self._process, f"delete {prefix} {self._network.messages}", "")


def agreement(network: Network, count: int) -> list[Callable[[], None]]:
    """One process proposes that all end; all have made the same runs."""
    members = [Member(index, count) for index in range(count)]

    def listen(member: Member) -> None:
        board, listener = Board(network, member.index), member.listen()
        member.started = 1000
        request = next(listener)
        while not isinstance(request, WaitUntilApplied):
            found = None
            if isinstance(request, Get):
                found = board.get(request.key, 0)
            elif isinstance(request, Set):
                found = board.set(request.key, request.text)
            elif isinstance(request, Delete):
                board.delete(request.prefix)
            request = listener.send(found)
        assert member.decision is not None
        assert member.decision.boundary == 1000

    def propose() -> None:
        member = members[count // 2]
        request = member.add_proposal("signal", 15, from_main_thread=True)
        if request is not None:
            Board(network, member.index).set(request.key, request.text)

    return [*(lambda member=member: listen(member) for member in members), propose]


def comparison(network: Network, count: int) -> list[Callable[[], None]]:
    """All show what they have launched."""

    def show(index: int) -> None:
        ProcessGroup(Board(network, index), index, count).all_gather("programs", [1000, "0123456789abcdef" * 2])

    return [lambda index=index: show(index) for index in range(count)]


def save(network: Network, count: int) -> list[Callable[[], None]]:
    """All save a state whose arrays are split over all: what `Saver.save` says on the way, without what it writes."""

    def write(index: int) -> None:
        peers = ProcessGroup(Board(network, index), index, count)
        others = Collective(peers)
        others.run_on_all(lambda: (True, "/runs/a/model.ckpt-1000", 7))
        saving = others.with_tag("save 7")
        saving.gather_to_chief(lambda: "/runs/a/.hookline-writing-model.ckpt-1000" if index == 0 else "")
        peers.all_gather("programs up to save 7", [1000, "0123456789abcdef" * 2])
        piece = [[index * 8, 0], [index * 8 + 8, 1024], 2**31 + index]
        saving.gather_to_chief(lambda: {f"layers/{number}/kernel": [piece] for number in range(ARRAYS)})
        saving.gather_to_chief(lambda: 1.7e9 if index == 0 else 0.0)
        saving.gather_to_chief(lambda: None)

    return [lambda index=index: write(index) for index in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 10, 100, 1000])
    parser.add_argument("--round-trip", type=float, default=0.5e-3, metavar="SECS", help="to the host of process 0")
    parser.add_argument("--client", type=float, default=0.3e-3, metavar="SECS", help="of a process, for each request")
    parser.add_argument("--request", type=float, default=30e-6, metavar="SECS", help="of the service, for each")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, metavar="BYTES", help="a second, of that host")
    args = parser.parse_args()
    print("| | processes | messages | MB to the coordinator | MB from it | seconds |\n|---|---|---|---|---|---|")
    for made in (agreement, comparison, save):
        for count in args.processes:
            network = Network(args.round_trip, args.client, args.request, args.bandwidth)
            secs = network.run(made(network, count))
            sizes = f"{network.bytes_in / 1e6:.3g} | {network.bytes_out / 1e6:.3g}"
            print(f"| {made.__name__} | {count:,} | {network.messages:,} | {sizes} | {secs:.3g} |", flush=True)


if __name__ == "__main__":
    main()
