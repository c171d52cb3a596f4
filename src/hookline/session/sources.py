"""The sequences that a session reads from, and how far it has come in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from hookline.graph import placement
from hookline.graph.graph import Graph, Operation
from hookline.graph.nodes import Source
from hookline.session.getters import Run

T = TypeVar("T")


class Position(NamedTuple):
    """How far a session has come in a sequence: what it has used, whatever was read ahead.

    Attributes:
        value: A pytree that a checkpoint can store.
        saved: To be called when a checkpoint that holds it is complete.
    """

    value: Any
    saved: Callable[[], None]


class OpenSource(Protocol):
    """What a session needs of a sequence that it reads from.

    A run takes a value, and afterwards says that it was used or gives it back. The session's lock is held from taking
    to saying so, and is not held in `wait`.
    """

    def ready(self, most: int = 1) -> int:
        """Returns how many values a run may take now, at most `most`: those of one form that are there in a row.

        0 stands for: wait for them. An error, the end, or a stop in place of the next one counts as 1, and `check`
        raises it.
        """
        ...

    def wait(self, most: int = 1, capacity: int = 1, to_come: float = 1) -> None:
        """Blocks until `ready` is not 0; raises nothing.

        Where nothing is read ahead it reads up to `most` values, which will be taken in blocks of that capacity. If
        more cost hardly more, it reads for the runs that follow, too: `to_come` is how many values they all will take.
        """
        ...

    def check(self) -> None:
        """Raises what stands in place of the next value: the end of the sequence, or why it could not be read."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nothing stands in place of the next value but the end of the sequence."""
        ...

    def take(self) -> Any:
        """Returns the next item, which has its value as `value`; None where it is to be awaited.

        Raises:
            BaseException: As of `check`.
        """
        ...

    def take_block(self, count: int, capacity: int) -> Any:
        """Returns the next `count` values as one item; `ready(count)` has said that they are there.

        Its `value` is a block: its arrays have a dimension more in front, in which the values stand at the places from
        `start` to before `start + count`. What else is in it is anything. All blocks of a capacity are of one length,
        which is that or more.
        """
        ...

    def give_back(self, item: Any) -> None:
        """Puts an item in front again: the run that took it came to nothing."""
        ...

    def use(self, item: Any) -> None:
        """Moves the position behind the last value of an item."""
        ...

    def position(self) -> Position:
        """Returns the position."""
        ...

    def go_to(self, position: Any) -> None:
        """Continues from the value of a position that a checkpoint held."""
        ...

    def serve(self, coord: Any) -> None:
        """Lets the thread that reads ahead stop with a coordinator."""
        ...

    def close(self) -> None:
        """Reads no further."""
        ...


NOT_READY: Any = object()
"""In place of what a run returns: a batch is to be awaited first."""


def feed(
    nodes: Sequence[Source],
    sources: Sequence[OpenSource],
    run: Run,
    make: Callable[..., T],
    *arguments: Any,
    is_used: Callable[[], bool] | None = None,
    capacity: int = 1,
) -> T:
    """Has a run made with a batch of each source, which is used up if the run is applied, and otherwise is not.

    Args:
        nodes: The nodes of the sources.
        sources: The sources. None of them is awaited.
        run: The run, which gets to know the batches.
        make: Makes it.
        *arguments: What `make` is given.
        is_used: Whether the batches were used up; by default if it is applied.
        capacity: Above 1: its batches come in blocks of that capacity, of which it takes `run.count`.

    Returns:
        What `make` returns; or `NOT_READY`, and nothing is taken.

    Raises:
        OutOfRangeError: One has come to its end. Nothing is taken of the others.
    """
    run.applied = False
    items: list[tuple[OpenSource, Any]] = []
    try:
        for node, source in zip(nodes, sources, strict=True):
            if capacity == 1:
                item = source.take()
                if item is None:
                    return NOT_READY
            else:
                item = source.take_block(run.count, capacity)
                run.starts[node] = item.start
            items.append((source, item))
            run.hosts[node] = item.value
        return make(*arguments)
    finally:
        used = run.applied if is_used is None else is_used()
        for source, item in items:
            source.use(item) if used else source.give_back(item)


class Sources:
    """The sources of a graph as one session has them open: each from the first run, or the restore, that needs it.

    `is_shared` says whether the variables outlive the session.
    """

    def __init__(self, graph: Graph, is_shared: Callable[[], bool]) -> None:
        self._graph = graph
        self._is_shared = is_shared
        self._open: dict[Operation, OpenSource] = {}
        self._coord: Any = None
        self._home = placement.current()
        self._measured: Callable[[Any], Any] | None = None

    def measure(self, measured: Callable[[Any], Any]) -> None:
        """Has a wrapper around the `wait` of each."""
        self._measured = measured
        for source in self._open.values():
            source.wait = measured(source.wait)

    def of(self, node: Source) -> OpenSource:
        """Returns what the session reads from for a node."""
        found = self._open.get(node)
        if found is None:
            with placement.inside(self._home):
                found = self._open[node] = node.open_for(node, self._is_shared())
            if self._coord is not None:
                found.serve(self._coord)
            if self._measured is not None:
                found.wait = self._measured(found.wait)
        return found

    def serve(self, coord: Any) -> None:
        """Lets the threads that read ahead stop with a coordinator."""
        self._coord = coord
        for source in self._open.values():
            source.serve(coord)

    def opened(self, nodes: Iterable[Source]) -> list[OpenSource]:
        """Returns what the session reads from for nodes."""
        return [self.of(node) for node in nodes]

    def positions(self, names: Iterable[str]) -> dict[str, Position]:
        """Returns the position in each source that resumes and is named, by the node's name."""
        wanted = set(names)
        return {node.name: self.of(node).position() for node in self._nodes() if node.name in wanted}

    def names(self) -> list[str]:
        """Returns the names of the sources that resume."""
        return [node.name for node in self._nodes()]

    def go_to(self, positions: Mapping[str, Any]) -> None:
        """Continues from positions that a checkpoint held; sources that it does not name are left alone."""
        for node in self._nodes():
            if node.name in positions:
                self.of(node).go_to(positions[node.name])

    def close(self) -> None:
        """Reads no further."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _nodes(self) -> list[Source]:
        return [node for node in self._graph.get_operations() if isinstance(node, Source) and node.resumes]
