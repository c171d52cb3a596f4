"""Reading in step: the batches of a run do not depend on a process's speed, and all processes end together."""

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
from hookline.data.ahead import Ahead, Item
from hookline.data.joint import Joint
from hookline.data.places import outline
from hookline.data.reader import Reader
from hookline.data.sequences import START, Read
from hookline.errors import FailedPreconditionError
from hookline.session import Position


@dataclasses.dataclass(slots=True)
class _Held(Item):
    """A batch on the host, or the batch or block that a run has taken.

    Attributes:
        placed: The same batch on the devices, if it was put there.
        of: If a run has taken it, the items that it was made of.
    """

    placed: Any = None
    of: tuple[Item, ...] = ()


class AheadInStep(Ahead):
    """Reads ahead in one of several processes that run in step.

    Its items are single batches, which stay on the host until a run takes them. If runs take single batches, these are
    put on the devices beforehand. If runs take blocks, no thread reads, so that all processes get blocks of one size.

    Attributes:
        most: The number of batches that it gives; None before the processes have agreed on it.
    """

    most: float | None = None
    _is_known, _who = True, ""

    @property
    def pays(self) -> bool:  # noqa: D102
        return self.most is not None and self.demand.capacity == 1 and super().pays

    def read(self, most: int, *, ahead: bool = False, at_once: int = 1) -> bool:  # noqa: D102
        # One at a time: each counts towards the end, and runs may have begun to take blocks while the thread reads.
        return super().read(1, ahead=ahead)

    def _next(self) -> Read:
        if self.most is not None and self._count >= self.most:
            raise StopIteration
        try:
            return super()._next()
        except StopIteration:
            if self.most is None or not self._is_known:
                raise
        raise FailedPreconditionError.from_message(
            f"{self._who}: its source has ended after {self._count} batches, but the other processes expect "
            f"{self.most:g}. Give the number of batches for runs, length=..., without dropped ones.",
        )

    def _put(self, row: list[Read], most: int) -> None:
        for read in row:
            placed = self._places.put(read.batch) if self.demand.capacity == 1 else None
            self._count += 1
            item = _Held(self, self._count, read.batch, position=read.position, placed=placed)
            self._reached = item.place
            self._add(item)

    def end(self, who: str, most: float, error: BaseException | None, *, is_known: bool) -> None:
        """Sets the number of batches to give, or an error to give instead; from then on runs may take them.

        With `is_known` the source must have that many; else it may end by itself.
        """
        if error is not None or (not most and self.items[0].error is None):
            self.items.clear()
            self._add(Item(self, self._count, error=error or StopIteration()))
        self._who, self.most, self._is_known = who, most, is_known

    # By the runs ------------------------------------------------------------------------------------------------

    def ready(self, most: int) -> int:
        """Returns how many batches a run may take: `most`, or as many of one form as there are; 0 if more may come.

        An error or the end counts as 1.
        """
        if self.most is None or not self.items:
            return 0
        count = self.in_row(most)
        is_all = count == most or count < len(self.items) or self.items[0].error is not None
        return count if is_all else 0

    def take(self) -> Item:  # noqa: D102
        with self._lock:
            item: Any = self.items.popleft()
            self._tell()
        try:
            value = item.placed if item.placed is not None else self._places.put(item.value)
        except BaseException:  # The batch goes back: the next run gets it.
            self.give_back(item)
            raise
        return _Held(self, item.number, value, position=item.position, of=(item,))

    def take_block(self, count: int, capacity: int) -> Item:  # noqa: D102
        with self._lock:
            parts = tuple([self.items.popleft() for _ in range(count)])
            self._tell()
        try:
            value = batches.stacked([part.value for part in parts], capacity)
            value = self._places.put(value, jax.tree.map(outline, parts[0].value))
        except BaseException:  # The batches go back: the next run gets them.
            for part in reversed(parts):
                self.give_back(part)
            raise
        reached = [part.position for part in parts]
        return _Held(self, parts[-1].number, value, 0, count, capacity, lambda place: reached[place](0), of=parts)

    def give_back(self, item: Item) -> None:  # noqa: D102
        assert isinstance(item, _Held), "No run takes an error."
        with self._lock:
            self.items.extendleft(reversed(item.of or (item,)))


class ReaderInStep(Reader):
    """One session's way through a sequence, in one of several processes that run in step.

    All processes open it, run it and ask for its positions at the same places of the script.

    Args:
        joint: The batches of all processes.
        arguments: As in `Reader`.
    """

    _ahead: AheadInStep
    _kind = AheadInStep

    def __init__(self, joint: Joint, *arguments: Any) -> None:
        self._joint = joint
        super().__init__(*arguments)

    def ready(self, most: int = 1) -> int:  # noqa: D102
        return self._ahead.ready(most)

    def take(self) -> Item | None:  # noqa: D102
        return super().take() if self.ready() else None

    def wait(self, most: int = 1, capacity: int = 1, to_come: float = 1) -> None:  # noqa: D102
        if self._form.why_no_blocks is not None:
            most = 1
        if (capacity := max(most, capacity)) > self._capacity:
            self._has_room(capacity)
        ahead = self._ahead
        if ahead.most is None:
            self._agree()
        while not ahead.ready(most):
            if ahead.pays and not ahead.demand.is_over:
                ahead.start(f"hookline-data-{self._node.name}", self._coord)
                ahead.wait()
            else:
                self._read(more=most > 1)

    def _read(self, *, more: bool = False) -> None:
        """Reads a batch, if none is ready or `more`."""
        if self._ahead.demand.is_over:  # A further run happens in all processes.
            self._ahead.read_on(1, ahead=more)
        else:
            self._ahead.read(1, ahead=more)

    def _agree(self) -> None:
        """Reads the first batch, and agrees with the other processes on the number of batches."""
        ahead, node = self._ahead, self._node
        self._read()
        front = ahead.front
        batch, error = (None, None) if front is None else (front.value, front.error)
        position = front.position(0) if front is not None and error is None else START
        most, refused = self._joint.agree(node.name, batch, position, error)
        if error is None or isinstance(error, StopIteration):
            ahead.end(node.node_def, most, refused, is_known=self._places.is_part)
        else:
            ahead.end(node.node_def, math.inf, None, is_known=False)

    def position(self) -> Position:  # noqa: D102
        own = self._value()
        value = own
        if self._places.is_part:
            every = self._joint.peers.gather(f"position of {self._node.name}", _encoded(own))
            value = {"count": _decoded(every[0])["count"], "of": every}
        return Position(value, lambda: self._sequence.saved(own), self._sequence.before_save)

    def go_to(self, position: dict[str, Any]) -> None:  # noqa: D102
        peers = self._joint.peers
        super().go_to(_own(position, peers.index, peers.count) if self._places.is_part else position)


# A position of several processes as one: each has its own position in its part of the data.


def _own(position: dict[str, Any], process: int, count: int) -> dict[str, Any]:
    """Returns the position of one of `count` processes; a position of another number of processes cannot be used."""
    texts = position.get("of", [None])
    if not position["count"] and len(texts) != count:
        return START
    return _decoded(texts[process]) if len(texts) == count else {"count": position["count"], "of": texts}


def _encoded(position: dict[str, Any]) -> str:
    """Encodes a position as text.

    Raises:
        TypeError: It holds values other than dicts with text keys, lists, tuples, numbers, text, bytes and arrays.
    """
    return json.dumps(_written(position))


def _decoded(text: str) -> dict[str, Any]:
    """Decodes a position from the result of `_encoded`."""
    return _read(json.loads(text))


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {"dict": [[key, _written(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_written(part) for part in value]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        held = io.BytesIO()
        np.save(held, np.asarray(value), allow_pickle=False)
        return {"array": base64.b64encode(held.getvalue()).decode()}
    raise TypeError(f"A position cannot be sent to other processes, because it contains a {type(value).__name__}.")


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "bytes":
        return base64.b64decode(held)
    if kind == "dict":
        return {key: _read(part) for key, part in held}
    if kind == "array":
        return np.load(io.BytesIO(base64.b64decode(held)), allow_pickle=False)
    return [_read(part) for part in held] if kind == "list" else tuple([_read(part) for part in held])
