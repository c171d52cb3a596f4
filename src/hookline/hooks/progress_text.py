"""The progress of a training as a line of text; with a bar and colours if Rich is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import numpy as np

_MIN_BAR_CELLS, _MAX_BAR_CELLS = 8, 40


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a training.

    Example:
        >>> print(Progress(250, 1000, {"loss": 0.125}, 12.5))
        step 250/1000  25%  loss 0.1250  12.5 steps/s  1:00 left
    """

    step: int
    last_step: int | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps_per_sec: float | None = None
    per_step: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def step_text(self) -> str:
        """The step, and the last step if it is known."""
        return f"step {self.step}" if self.last_step is None else f"step {self.step}/{self.last_step}"

    @property
    def more_texts(self) -> list[str]:
        """The other texts: percentage, values, rates and time left, as far as they are known."""
        texts = [f"{math.floor(100 * min(self.step / self.last_step, 1))}%"] if self.last_step else []
        texts += [f"{tag} {_value_text(value)}" for tag, value in self.values.items()]
        if rate := self.steps_per_sec:
            for name, count in {"steps": 1, **self.per_step}.items():
                texts.append(f"{_rate_text(count * rate)} {name}/s")
            if self.last_step is not None and self.step < self.last_step:
                texts.append(f"{_duration_text((self.last_step - self.step) / rate)} left")
        return texts

    def __str__(self) -> str:
        return "  ".join([self.step_text, *self.more_texts])


def painter(terminal: TextIO) -> Callable[[Progress, int], str]:
    """Returns a function from progress and width to a line; it uses Rich if that is installed."""
    return _rich_painter(terminal) if importlib.util.find_spec("rich") else _paint_plainly


def _rich_painter(terminal: TextIO) -> Callable[[Progress, int], str]:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(file=terminal)

    def paint(progress: Progress, cells: int) -> str:
        head, rest = progress.step_text, "  ".join(progress.more_texts)
        room = cells - cell_len(f"{head}    {rest}")
        line: Any = Text(f"{head}  {rest}".rstrip())
        if progress.last_step and room >= _MIN_BAR_CELLS:
            done = min(progress.step, progress.last_step)
            line = Table.grid(padding=(0, 2))
            line.add_row(head, ProgressBar(progress.last_step, done, min(room, _MAX_BAR_CELLS)), Text(rest))
        console.width = cells
        with console.capture() as captured:
            console.print(line, end="", no_wrap=True, overflow="ellipsis")
        return captured.get().rstrip("\n")

    return paint


def _paint_plainly(progress: Progress, cells: int) -> str:
    return str(progress)[:cells]


def _value_text(value: Any) -> str:
    array = np.asarray(value)
    if array.shape == () and array.dtype.kind not in "biuOUS":
        return f"{float(array):#.4g}"
    return " ".join(str(value).split())


def _rate_text(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration_text(secs: float) -> str:
    minutes, secs = divmod(math.ceil(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"
