"""Targets of sessions with servers chosen by a test, and waiting for actions of servers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hookline import Graph, clock
from hookline.distributed import RemoteStore, StalenessHook

# The interface of a session's target to its store.
from hookline.distributed.protocol import Transport


class Target:
    """The servers behind a transport, as a worker with this index sees them."""

    def __init__(self, transport: Transport, index: int = 0, **options: Any) -> None:
        self.transport, self.index, self.options = transport, index, options

    def open_store(self, graph: Graph) -> RemoteStore:
        return RemoteStore(graph, self.transport, worker_index=self.index, **self.options)

    def hooks(self, summary_dir: str | None) -> list[Any]:
        return [StalenessHook(output_dir=summary_dir)]


def apart(transport: Transport) -> Target:
    """A target with `left` on the first server and `right` on the last."""
    return Target(transport, placement={"left": 0, "right": transport.count - 1})


def at_once(*calls: Callable[[], object]) -> None:
    """Makes all calls, each in a thread of its own, and waits for their ends."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until(reached: Callable[[], Any], within_secs: float = 60.0) -> None:
    """Blocks until a condition holds, which another thread or process brings about."""
    deadline = clock.monotonic() + within_secs
    while not reached():
        assert clock.monotonic() < deadline, f"not within {within_secs:g} s"
        clock.sleep(0.01)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process, and continues it afterwards unless it has ended.

    One of its threads takes the signal, when it comes to run; until then the others go on, and answer what they get.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: _threads(pid) == {"T"})
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _threads(pid: int) -> set[str]:
    """Returns the states of a process's threads, in the letters of proc(5)."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            # After the name, which is in parentheses and may contain some itself.
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states
