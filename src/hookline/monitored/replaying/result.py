"""ReplayResult: what a replay has seen, and whether it made the same bits as the run."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from hookline.monitored.replaying.proof import Comparison
from hookline.summary import FileWriter, Summary


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """The result of `Loop.replay`; its `str()` is a table of the values, and the proof.

    Args:
        folder: The folder of the run.
        steps: As given: a step, and the last one; the steps after the first of them were looked at.
        start: The checkpoint from which it began.
        rows: For each step, the values of the names in `look`: numbers and NumPy arrays, before the update of the step.
        proof: The comparison with each checkpoint of the run on the way, up to the last step: its `step` and `path`,
            the number of arrays that were `compared`, the names of those that are `different`, and what is not as it
            was in the `environment`.
        stopped: Why the replay ended before the last step, in words; empty if it did not.
        next_saved: The step of the run's next checkpoint after the last step; None if there is none.

    Example:
        >>> result = ReplayResult("runs/a", (4, 6), "runs/a/model.ckpt-3", {5: {"loss": 0.5}, 6: {"loss": 0.25}}, ())
        >>> print(result)
        step  loss
           5   0.5
           6  0.25
        Not proven: the run has no checkpoint between step 3, where the replay began, and step 6.
        >>> print(result.is_same)
        None
    """

    folder: str
    steps: tuple[int, int]
    start: str
    rows: Mapping[int, Mapping[str, Any]]
    proof: Sequence[Comparison]
    stopped: str = ""
    next_saved: int | None = None

    @property
    def is_same(self) -> bool | None:
        """Whether all compared bits are those of the run; None if there was nothing to compare."""
        return all(not each.different for each in self.proof) if any(each.compared for each in self.proof) else None

    def first_nonfinite(
        self, test: Callable[[Any], Any] = lambda value: ~np.isfinite(value)
    ) -> tuple[int, list[str]] | None:
        """Returns the first step with a value that is not finite, and the names of these; None without one.

        Args:
            test: The test of the numbers of a value; `np.isnan` finds NaN alone.
        """
        for step, row in sorted(self.rows.items()):
            if names := [name for name, value in row.items() if np.any(test(value))]:
                return step, names
        return None

    @property
    def verdict(self) -> str:
        """The proof in words: the steps with the same bits; or the first array that differs, and what is likely."""
        same: list[str] = []
        for each in self.proof:
            if each.different:
                return self._difference(each, same)
            if each.compared:
                same.append(f"{each.step:,}")
        if not same:
            text = (
                f"Not proven: the run has no checkpoint between step {self._start_step:,}, where the replay began, "
                f"and step {self.steps[1]:,}."
            )
            return text if self.next_saved is None else f"{text} A replay up to step {self.next_saved:,} would be."
        return f"The same bits as the run at step {_join(same)}."

    @property
    def _start_step(self) -> int:
        return int(self.start.rpartition("-")[2])

    def _difference(self, found: Comparison, same: Sequence[str]) -> str:
        """Describes the first difference from the run."""
        name, *others = found.different
        text = f"Not the bits of the run: {name} differs at step {found.step:,}"
        text += f", and so do {len(others):,} others of {found.compared:,}" if others else ""
        text += f". The last equal state is that of step {same[-1] if same else f'{self._start_step:,}'}."
        known = [f"{name} was {then}, is {now}" for name, (then, now) in found.environment.items() if then != "unknown"]
        unknown = [name for name, (then, _) in found.environment.items() if then == "unknown"]
        if known:
            text += f" Likely: {'; '.join(known)}."
        else:
            text += (
                " Likely: other code, data, feeds or arguments than the run's, or a function on the host that draws "
                "random numbers without a seed."
            )
        if unknown:
            text += f" Its checkpoints do not tell: {', '.join(unknown)}."
        return text

    def __str__(self) -> str:
        header, *lines = self._table(shown)
        widths = [max(len(line[index]) for line in [header, *lines]) for index in range(len(header))]
        table = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in [header, *lines]
        ]
        stopped = [f"It ended before step {self.steps[1]:,}: {self.stopped.rstrip('.')}."] if self.stopped else []
        return "\n".join([*(table if any(self.rows.values()) else []), *stopped, self.verdict])

    def write_csv(self, file: TextIO) -> None:
        """Writes the table as CSV: a column for the step and for each name; of an array, its norm."""
        csv.writer(file).writerows(self._table(lambda value: repr(_number(value))))

    def write_events(self, folder: str) -> None:
        """Writes the table as event files, for TensorBoard: a scalar for each name; of an array, its norm."""
        with FileWriter(folder) as writer:
            for step, row in sorted(self.rows.items()):
                named = {f"|{name}|" if self._is_array(name) else name: _number(value) for name, value in row.items()}
                values = [Summary.Value(tag=name, simple_value=number) for name, number in named.items()]
                writer.add_summary(Summary(value=values), step)

    def _table(self, show: Any) -> list[list[str]]:
        names = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        header = ["step", *(f"|{name}|" if self._is_array(name) else name for name in names)]
        return [
            header,
            *[[str(step), *(show(row[name]) for name in names)] for step, row in sorted(self.rows.items())],
        ]

    def _is_array(self, name: str) -> bool:
        return any(np.ndim(row[name]) > 0 for row in self.rows.values())


def _number(value: Any) -> float | int:
    """Returns a number as it is, and the norm of an array."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else math.sqrt(float((np.abs(array).astype(np.float64) ** 2).sum()))


def shown(value: Any) -> str:
    """Returns a number as text, with six significant digits; of an array, its norm."""
    number = _number(value)
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
