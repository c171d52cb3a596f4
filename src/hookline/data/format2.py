"""Positions in arrays as format 2 of checkpoints holds them: the beginning of a block, and a number of batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hookline import log
from hookline.data.arrays import Arrays
from hookline.errors import FailedPreconditionError

_logger = log.of(__name__)


def after_skip(arrays: Arrays, state: dict[str, Any], used: int, skip: int, who: str) -> dict[str, Any]:
    """Returns the state of an iteration over arrays after the last batches that were used.

    Such a position does not hold the batch size. If a block begins at an example, that and the number of batches before
    it show the size: 33 batches before example 24 of epoch 1 of 240 examples were 30 and 3, of 8 examples each. At the
    beginning of an epoch they may not show it. Then the present size is assumed, with a warning, unless it contradicts
    the numbers.

    Args:
        arrays: The arrays.
        state: The state at the beginning of the block.
        used: The number of batches used so far.
        skip: The number of those in the block.
        who: The iterator, for messages.

    Raises:
        FailedPreconditionError: The batch size was another, and is not known.
    """
    epoch, example, size = state["epoch"], state["example"], min(arrays.batch_size, arrays.examples)
    sizes = _sizes(arrays.examples, epoch, example, used - skip)
    if len(sizes) == 1:
        size = sizes[0]
    elif size not in sizes or not _has_room(arrays.examples, size, example, skip):
        raise FailedPreconditionError(
            None,
            None,
            f"{who} cannot resume at the checkpoint's position with batch_size={arrays.batch_size}: an earlier version "
            f"of hookline saved it as {skip} batches from a place in the data, and they were of another size. Resume "
            f"with the batch size of then until a checkpoint is saved, which holds the example itself.",
        )
    else:
        _logger.warning(
            "%s: an earlier version of hookline saved the position as %d batches from a place in the data, without "
            "their size. It continues as if that was batch_size=%d, as now. If it was another, stop, and resume with "
            "that until a checkpoint is saved, which holds the example itself.",
            who,
            skip,
            arrays.batch_size,
        )
    then = copy.copy(arrays)
    then.batch_size = size
    epoch, example = then.after(epoch, example, skip)
    return {"epoch": epoch, "example": example, "of": state["of"], "batch_size": size}


def _sizes(examples: int, epoch: int, example: int, before: int) -> Sequence[int]:
    """Returns the batch sizes, up to the number of examples, with which some batches lead to an example of an epoch."""
    if example:
        found = [example // batches for batches in range(1, before // (epoch + 1) + 1) if not example % batches]
        return [size for size in found if before == epoch * -(-examples // size) + example // size]
    in_epoch, rest = divmod(before, epoch) if epoch else (examples, before)
    if rest or not in_epoch:
        return []
    first = -(-examples // in_epoch) if epoch else 1
    return range(first, (examples - 1) // (in_epoch - 1) + 1 if epoch and in_epoch > 1 else examples + 1)


def _has_room(examples: int, size: int, example: int, skip: int) -> bool:
    """Returns whether a block can be so long: it ends before the smaller batch at the end of an epoch."""
    return not examples % size or example + skip * size <= examples
