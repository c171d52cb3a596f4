"""The sources from which a session reads batches, and its position in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from hookline.graph import placement
from hookline.graph.graph import Operation
from hookline.graph.nodes.nodes import Source
from hookline.session.plan.result_readers import RunState

T = TypeVar("T")


class Position(NamedTuple):
    """The position of a session in a sequence: after the last value used, regardless of prefetched values.

    Attributes:
        value: A pytree that a checkpoint can store.
        on_saved: To be called when a checkpoint with this position is complete.
        before_save: To be called before a checkpoint for a later process is written; it warns if that process could not
            continue from this position.
    """

    value: Any
    on_saved: Callable[[], None]
    before_save: Callable[[], None]


class OpenSource(Protocol):
    """The interface of a sequence that a session reads from.

    A run takes a value, and afterwards marks it as used (`mark_used`) or gives it back. The session's lock is held from
    `take` to `mark_used` or `give_back`, and is not held in `wait`.
    """

    def num_ready(self, max_count: int = 1) -> int:
        """Returns how many values of one form are ready in a row, at most `max_count`; a run may take them now.

        0 means that the run must wait. An error, the end, or a stop in place of the next value counts as 1, and
        `raise_error` raises it.
        """
        ...

    def wait(self, max_count: int = 1, capacity: int = 1, upcoming_steps: float = 1) -> None:
        """Blocks until `num_ready` is not 0; raises nothing.

        If nothing is prefetched, it reads up to `max_count` values, which will be taken in blocks of that capacity. If
        more values take hardly more time, it reads for the following runs, too: this run and those take
        `upcoming_steps`.
        """
        ...

    def raise_error(self) -> None:
        """Raises the error in place of the next value, if any: the end of the sequence, or a failure to read it."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the sequence has ended: there is no next value."""
        ...

    def take(self) -> Any:
        """Returns the next item, which has its value as `value`; None if the run must wait for it.

        Raises:
            BaseException: As in `raise_error`.
        """
        ...

    def take_block(self, count: int, capacity: int) -> Any:
        """Returns the next `count` values as one item; `num_ready(count)` has returned that number before.

        Its `value` is a block: its arrays have a new first dimension, in which the values have the indices from `start`
        to before `start + count`. The rest of the block is undefined. All blocks of a capacity have one length, which
        is the capacity or more.
        """
        ...

    def give_back(self, item: Any) -> None:
        """Makes an item the next one again, because the run that took it was not applied."""
        ...

    def mark_used(self, item: Any) -> None:
        """Moves the position after the last value of an item."""
        ...

    def position(self) -> Position:
        """Returns the position."""
        ...

    def seek(self, position: Any) -> None:
        """Continues from the value of a position from a checkpoint."""
        ...

    def attach_coordinator(self, coord: Any) -> None:
        """Makes the prefetching thread stop with a coordinator."""
        ...

    def close(self) -> None:
        """Stops reading."""
        ...


BATCH_NOT_READY: Any = object()
"""Returned in place of the result of a run: the caller must wait for a batch first."""


def run_with_batches(
    nodes: Sequence[Source],
    sources: Sequence[OpenSource],
    run: RunState,
    make: Callable[..., T],
    *arguments: Any,
    is_used: Callable[[], bool] | None = None,
    capacity: int = 1,
) -> T:
    """Makes a run with a batch of each source; the batches are marked as used if it is applied, and else given back.

    Args:
        nodes: The nodes of the sources.
        sources: The sources. It does not wait for them.
        run: The run, in which the batches are stored.
        make: Makes the run.
        *arguments: The arguments of `make`.
        is_used: Returns whether the batches were used; by default whether the run was applied.
        capacity: If above 1, the batches come in blocks of that capacity, each with `run.num_steps` batches.

    Returns:
        The result of `make`; or `BATCH_NOT_READY`, and nothing is taken.

    Raises:
        OutOfRangeError: A source has ended. Nothing is taken from the others.
    """
    run.applied = False
    items: list[tuple[OpenSource, Any]] = []
    try:
        for number, node in enumerate(nodes):
            source = sources[number]
            if capacity == 1:
                item = source.take()
                if item is None:
                    return BATCH_NOT_READY
            else:
                item = source.take_block(run.num_steps, capacity)
                run.block_starts[node] = item.start
            items.append((source, item))
            run.host_results[node] = item.value
        return make(*arguments)
    finally:
        used = run.applied if is_used is None else is_used()
        for source, item in items:
            source.mark_used(item) if used else source.give_back(item)


class Sources:
    """The open sources of one session (a `SessionBackend`); the first run or restore that needs one opens it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._open: dict[Operation, OpenSource] = {}
        self._coord: Any = None
        self._mesh_context = placement.current_mesh_context()

    def open_source(self, node: Source) -> OpenSource:
        """Returns the open source of a node."""
        found = self._open.get(node)
        if found is None:
            with placement.enter_mesh(self._mesh_context):
                found = self._open[node] = node.open_for(node, self._session.shared)
            if self._coord is not None:
                found.attach_coordinator(self._coord)
        return found

    def attach_coordinator(self, coord: Any) -> None:
        """Makes the prefetching threads stop with a coordinator."""
        self._coord = coord
        for source in self._open.values():
            source.attach_coordinator(coord)

    def open_all(self, nodes: Iterable[Source]) -> list[OpenSource]:
        """Returns the open sources of nodes."""
        return [self.open_source(node) for node in nodes]

    def positions(self, names: Iterable[str]) -> dict[str, Position]:
        """Returns the positions in the named sources that resume, by the node's name."""
        wanted = set(names)
        return {node.name: self.open_source(node).position() for node in self._nodes() if node.name in wanted}

    def names(self) -> list[str]:
        """Returns the names of the sources that resume: checkpoints hold their positions."""
        return [node.name for node in self._nodes()]

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Continues from the positions of a checkpoint; sources that are not in it are left alone."""
        for node in self._nodes():
            if node.name in positions:
                self.open_source(node).seek(positions[node.name])

    def close(self) -> None:
        """Stops reading."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _nodes(self) -> list[Source]:
        return [node for node in self._session.graph.get_operations() if isinstance(node, Source) and node.resumes]
