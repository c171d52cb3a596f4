"""Counts the batches of a source, and finds the steps at which its epochs end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hookline.data.batches import BatchSpec
from hookline.data.sequences import BatchSequence, array_position, num_batches_of


class Epochs(NamedTuple):
    """The epochs of a training run whose every step takes one batch.

    They follow from the position in the data, so they are right also after a resume with another batch size: the epoch
    that was under way then has another number of steps.

    Attributes:
        steps: The number of steps in an epoch.
        end: The step at which the epoch under way ends.
        number: The number of that epoch, from 1.
        total: The number of epochs in all; None if the data have no end.

    Example:
        >>> epochs = Epochs(steps=3, end=6, number=2, total=4)
        >>> epochs.end_after(5), epochs.end_after(6), epochs.last_step
        (6, 9, 12)
        >>> epochs.number_at(6), epochs.number_at(7), epochs.done_at(6), epochs.done_at(7)
        (2, 3, 2, 2)
    """

    steps: int
    end: int
    number: int
    total: int | None

    def end_after(self, step: int) -> int:
        """Returns the first step after `step` at which an epoch ends."""
        return self.end + ((step - self.end) // self.steps + 1) * self.steps

    def number_at(self, step: int) -> int:
        """Returns the number of the epoch to which a step belongs; the first step is 1."""
        return self.number - (self.end - step) // self.steps

    def done_at(self, step: int) -> int:
        """Returns the number of epochs that have ended at a step."""
        return self.number_at(step + 1) - 1

    @property
    def last_step(self) -> int | None:
        """The step at which the last epoch ends; None if the data have no end."""
        return None if self.total is None else self.end + (self.total - self.number) * self.steps


class BatchCount:
    """Counts the batches that a source gives to runs.

    Args:
        source: The source.
        sequence: Its sequence.
        form: The form of its batches.
        given: The number of batches in one pass, if the user gave it.
    """

    def __init__(self, source: Any, sequence: BatchSequence, form: BatchSpec, given: float | None) -> None:
        self._source, self._sequence, self._form, self._given = source, sequence, form, given
        self._drops = form.last_batch == "drop"

    def left(self, position: dict[str, Any]) -> float | None:
        """Returns the number of batches after a position, or one less if a last one may be dropped; None if unknown."""
        arrays, passes = self._sequence.arrays, self._sequence.passes
        start = array_position(position, arrays)
        if self._given is None and arrays is not None and start is not None:
            return arrays.batches_left(*start, drop=self._drops, passes=passes)
        in_pass, _ = self._in_pass()
        return None if in_pass is None else in_pass * (passes - position.get("passes", 0)) - position["count"]

    @property
    def per_epoch(self) -> float | None:
        """The number of batches in an epoch of arrays, or in a pass over another source; None if it is not known."""
        if self._sequence.arrays is not None:
            return self._sequence.arrays.batches_in_epoch(drop=self._drops)
        in_pass, is_exact = self._in_pass()
        return in_pass if is_exact else None

    def _in_pass(self) -> tuple[float | None, bool]:
        """Returns the number of batches in one pass, at least; and whether it is exact."""
        found = num_batches_of(self._source) if self._sequence.num_batches is None else self._sequence.num_batches
        found = found if self._given is None else self._given
        if found is None or found == math.inf or self._given is not None or not self._drops:
            return found, True
        if not isinstance(self._source, list | tuple):
            return max(found - 1, 0), False  # The last one may be smaller, and is then dropped.
        short = [self._form.is_short(batch) for batch in self._source]
        return found - sum(short), not any(short[:-1])

    def epochs_at(self, position: dict[str, Any], step: int) -> Epochs:
        """Returns the epochs of a training run at a step and a position; `per_epoch` must be known and finite."""
        arrays, passes, steps = self._sequence.arrays, self._sequence.passes, int(self.per_epoch or 0)
        if arrays is None:
            return Epochs(steps, step + steps - position["count"], position.get("passes", 0) + 1, passes)
        found = array_position(position, arrays)
        assert found is not None, "A reader refuses the position of another source."
        done, example = found
        left = arrays.batches_in_epoch(example, drop=self._drops)
        return Epochs(steps, step + left, done + 1, None if arrays.epochs is None else arrays.epochs * passes)
