"""Targets of sessions whose servers a test has chosen, and waiting for what servers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline import clock
from hookline.distributed.staleness_hook import StalenessHook
from hookline.distributed.store import RemoteStore
from hookline.distributed.transport import Transport
from hookline.graph import Graph


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


def until(reached: Callable[[], Any], within_secs: float = 60.0) -> None:
    """Blocks until a condition holds, which another thread or process brings about."""
    deadline = clock.monotonic() + within_secs
    while not reached():
        assert clock.monotonic() < deadline, f"not within {within_secs:g} s"
        clock.sleep(0.01)
