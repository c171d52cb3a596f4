"""Reads in SPMD processes: a run's batches do not depend on a process's speed, and all processes end together."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
from typing import Any

import jax
import numpy as np

from hookline.data import batches
from hookline.data.batch_sharding import outline
from hookline.data.global_batch_check import GlobalBatchCheck
from hookline.data.prefetcher import PrefetchedBatch, Prefetcher
from hookline.data.reader import BatchReader
from hookline.data.sequences import START, ReadResult
from hookline.errors import FailedPreconditionError
from hookline.session import Position


@dataclasses.dataclass(slots=True)
class _HostBatch(PrefetchedBatch):
    """A batch on the host; or the batch or block that a run has taken.

    Attributes:
        placed: The same batch on the devices, if it was put there.
        parts: If a run has taken it, the items that it consists of.
    """

    placed: Any = None
    parts: tuple[PrefetchedBatch, ...] = ()


class SpmdPrefetcher(Prefetcher):
    """Prefetches in one of several SPMD processes.

    Its items are single batches, whose host arrays are kept until a run takes them. For runs that take single batches,
    they are also put on the devices beforehand. For runs that take blocks, no thread reads, so that all processes get
    blocks of one size.

    Attributes:
        num_batches: The number of batches that it gives; None before the processes have agreed on it.
    """

    num_batches: float | None = None
    _is_known, _who = True, ""

    @property
    def is_worthwhile(self) -> bool:  # noqa: D102
        return self.num_batches is not None and self.request.capacity == 1 and super().is_worthwhile

    def read(self, max_count: int, *, ahead: bool = False, read_size: int = 1) -> bool:  # noqa: D102
        # One at a time: each counts towards the end, and runs may begin to take blocks while the thread reads.
        return super().read(1, ahead=ahead)

    def _next(self) -> ReadResult:
        if self.num_batches is not None and self._count >= self.num_batches:
            raise StopIteration
        try:
            return super()._next()
        except StopIteration:
            if self.num_batches is None or not self._is_known:
                raise
        raise FailedPreconditionError.from_message(
            f"{self._who}: its source has ended after {self._count} batches, but the other processes expect "
            f"{self.num_batches:g}. Give the number of batches for runs, num_batches=..., without dropped ones.",
        )

    def _enqueue(self, row: list[ReadResult], max_count: int) -> None:
        for read in row:
            placed = self._batch_sharding.device_put(read.batch) if self.request.capacity == 1 else None
            self._count += 1
            item = _HostBatch(self, self._count, read.batch, position=read.position, placed=placed)
            self._end_position = item.position_after
            self._add(item)

    def set_num_batches(self, who: str, num_batches: float, error: BaseException | None, *, is_known: bool) -> None:
        """Sets the number of batches to give, or an error to raise instead; from then on runs may take batches.

        With `is_known` the source must have that many; otherwise it may end by itself.
        """
        if error is not None or (not num_batches and self.items[0].error is None):
            self.items.clear()
            self._add(PrefetchedBatch(self, self._count, error=error or StopIteration()))
        self._who, self.num_batches, self._is_known = who, num_batches, is_known

    # By the runs ------------------------------------------------------------------------------------------------

    def num_ready(self, max_count: int) -> int:
        """Returns the number of batches that a run may take; 0 if it must wait, because more may come.

        That is `max_count`, or as many of one form as there are. An error or the end counts as 1.
        """
        if self.num_batches is None or not self.items:
            return 0
        count = self.num_in_row(max_count)
        is_all = count == max_count or count < len(self.items) or self.items[0].error is not None
        return count if is_all else 0

    def take(self) -> PrefetchedBatch:  # noqa: D102
        with self._lock:
            item: Any = self.items.popleft()
            self._notify()
        try:
            value = item.placed if item.placed is not None else self._batch_sharding.device_put(item.value)
        except BaseException:  # The next run gets the batch.
            self.give_back(item)
            raise
        return _HostBatch(self, item.number, value, position=item.position, parts=(item,))

    def take_block(self, count: int, capacity: int) -> PrefetchedBatch:  # noqa: D102
        with self._lock:
            parts = tuple([self.items.popleft() for _ in range(count)])
            self._notify()
        try:
            value = batches.stack([part.value for part in parts], capacity)
            value = self._batch_sharding.device_put(value, jax.tree.map(outline, parts[0].value))
        except BaseException:  # The next run gets the batches.
            for part in reversed(parts):
                self.give_back(part)
            raise
        reached = [part.position for part in parts]
        return _HostBatch(
            self, parts[-1].number, value, 0, count, capacity, lambda index: reached[index](0), parts=parts
        )

    def give_back(self, item: PrefetchedBatch) -> None:  # noqa: D102
        assert isinstance(item, _HostBatch), "No run takes an error."
        with self._lock:
            self.items.extendleft(reversed(item.parts or (item,)))


class SpmdBatchReader(BatchReader):
    """Reads a sequence for one session, in one of several SPMD processes.

    All processes make the same calls in the same order: to open it, to read, and to get its position.

    Args:
        global_check: The check of all processes' batches.
        arguments: As in `BatchReader`.
    """

    _prefetcher: SpmdPrefetcher
    _prefetcher_class = SpmdPrefetcher

    def __init__(self, global_check: GlobalBatchCheck, *arguments: Any) -> None:
        self._global_check = global_check
        super().__init__(*arguments)

    def num_ready(self, max_count: int = 1) -> int:  # noqa: D102
        return self._prefetcher.num_ready(max_count)

    def take(self) -> PrefetchedBatch | None:  # noqa: D102
        return super().take() if self.num_ready() else None

    def wait(self, max_count: int = 1, capacity: int = 1, upcoming_steps: float = 1) -> None:  # noqa: D102
        if self._batch_spec.block_error is not None:
            max_count = 1
        if (capacity := max(max_count, capacity)) > self._capacity:
            self._set_capacity(capacity)
        prefetcher = self._prefetcher
        if prefetcher.num_batches is None:
            self._agree()
        while not prefetcher.num_ready(max_count):
            if prefetcher.is_worthwhile and not prefetcher.request.is_cancelled:
                prefetcher.start(self._node.name, self._coord)
                prefetcher.wait()
            else:
                self._read(more=max_count > 1)

    def _read(self, *, more: bool = False) -> None:
        """Reads a batch, if none is ready or `more`."""
        if self._prefetcher.request.is_cancelled:  # A further run happens in all processes.
            self._prefetcher.read_after_stop(1, ahead=more)
        else:
            self._prefetcher.read(1, ahead=more)

    def _agree(self) -> None:
        """Reads the first batch, and agrees with the other processes on the number of batches."""
        prefetcher, node = self._prefetcher, self._node
        self._read()
        front = prefetcher.front
        batch, error = (None, None) if front is None else (front.value, front.error)
        position = front.position(0) if front is not None and error is None else START
        num_batches, refused = self._global_check.agree(node.name, batch, position, error)
        if error is None or isinstance(error, StopIteration):
            prefetcher.set_num_batches(node.node_def, num_batches, refused, is_known=self._batch_sharding.is_part)
        else:
            prefetcher.set_num_batches(node.node_def, math.inf, None, is_known=False)

    def position(self) -> Position:  # noqa: D102
        own = self.own_position
        value = own
        if self._batch_sharding.is_part:
            every = self._global_check.peers.all_gather(f"position of {self._node.name}", _serialize_position(own))
            value = {"count": _deserialize_position(every[0])["count"], "of": every}
        return Position(value, lambda: self._sequence.on_saved(own), self._sequence.before_save)

    def seek(self, position: dict[str, Any]) -> None:  # noqa: D102
        group = self._global_check.peers
        super().seek(_own_position(position, group.index, group.count) if self._batch_sharding.is_part else position)


# The positions of several processes, combined into one: each has its own position in its part of the data.


def _own_position(position: dict[str, Any], process: int, count: int) -> dict[str, Any]:
    """Returns the position of one of `count` processes, or one that no source accepts if their number was another."""
    texts = position.get("of", [None])
    if not position["count"] and len(texts) != count:
        return START
    return _deserialize_position(texts[process]) if len(texts) == count else {"count": position["count"], "of": texts}


def _serialize_position(position: dict[str, Any]) -> str:
    """Encodes a position as text.

    Raises:
        TypeError: It holds values other than dicts with text keys, lists, tuples, numbers, text, bytes and arrays.
    """
    return json.dumps(_to_json(position))


def _deserialize_position(text: str) -> dict[str, Any]:
    """Decodes a position from the result of `_serialize_position`."""
    return _from_json(json.loads(text))


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[key, _to_json(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_to_json(part) for part in value]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return {"array": base64.b64encode(file.getvalue()).decode()}
    raise TypeError(f"A position cannot be sent to other processes, because it contains a {type(value).__name__}.")


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dict":
        return {key: _from_json(part) for key, part in content}
    if kind == "array":
        return np.load(io.BytesIO(base64.b64decode(content)), allow_pickle=False)
    return [_from_json(part) for part in content] if kind == "list" else tuple([_from_json(part) for part in content])
