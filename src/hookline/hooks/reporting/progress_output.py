"""Formats progress, and draws it on a terminal or in the output of a notebook cell."""

from __future__ import annotations

import dataclasses
import html
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import numpy as np

from hookline.charts.line_chart import MOST_POINTS, Curve, Point, line_chart, thin
from hookline.signals import notebooks

_MIN_BAR_CELLS, _MAX_BAR_CELLS = 8, 40

_ERASE = "\r\x1b[K"
_ERASE_REST = "\x1b[K"
_DEFAULT_CELLS = 80


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
    epoch_text: str = ""
    saved_text: str = ""
    has_ended: bool = False
    values_step: int | None = None

    @property
    def step_text(self) -> str:
        """The step, and the last step if it is known."""
        return f"step {self.step}" if self.last_step is None else f"step {self.step}/{self.last_step}"

    def detail_text(self, cells: float = math.inf) -> str:
        """Returns the texts after the step: percentage, epoch, values, last save, rates and time left, as far as known.

        In fewer cells than they need, the last rates go first, then the save, the epoch, and all values but the first.
        """
        percent = [f"{math.floor(100 * min(self.step / self.last_step, 1))}%"] if self.last_step else []
        epoch, saved = ([text] if text else [] for text in (self.epoch_text, self.saved_text))
        values = [f"{tag} {value_text(value)}" for tag, value in self.values.items()]
        if values and self.values_step not in (None, self.step):
            values[0] = f"at step {self.values_step}: {values[0]}"
        rates, left = [], []
        if rate := self.steps_per_sec:
            rates = [f"{_rate_text(count * rate)} {name}/s" for name, count in {"steps": 1, **self.per_step}.items()]
            if self.last_step is not None and self.step < self.last_step and not self.has_ended:
                left = [f"{_duration_text((self.last_step - self.step) / rate)} left"]
        while len(text := "  ".join([*percent, *epoch, *values, *saved, *rates, *left])) > cells:
            droppable = rates or saved or epoch or values[1:]
            if not droppable:
                break
            (rates or saved or epoch or values).pop()
        return text

    def __str__(self) -> str:
        return f"{self.step_text}  {self.detail_text()}".rstrip()


def make_renderer(terminal: TextIO) -> Callable[[Progress, int], str]:
    """Returns a function that renders progress as a line of at most some cells, with a bar if it has a last step."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(file=terminal)

    def paint(progress: Progress, cells: int) -> str:
        head = progress.step_text
        space = cells - cell_len(f"{head}  ")
        rest = progress.detail_text(space - _MIN_BAR_CELLS - 2 if progress.last_step else space)
        free_cells = space - 2 - cell_len(rest)
        if free_cells < _MIN_BAR_CELLS:
            rest = progress.detail_text(space)
        line: Any = Text(f"{head}  {rest}".rstrip())
        if progress.last_step and free_cells >= _MIN_BAR_CELLS:
            done = min(progress.step, progress.last_step)
            line = Table.grid(padding=(0, 2))
            line.add_row(head, ProgressBar(progress.last_step, done, min(free_cells, _MAX_BAR_CELLS)), Text(rest))
        console.width = cells
        with console.capture() as captured:
            console.print(line, end="", no_wrap=True, overflow="ellipsis")
        return captured.get().rstrip("\n")

    return paint


def value_text(value: Any) -> str:
    """Formats a value of a metric: a number with four significant digits."""
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


def is_terminal(file: Any) -> bool:
    """Returns whether a file is a terminal on which lines can be redrawn."""
    isatty = getattr(file, "isatty", None)
    return isatty is not None and isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


class TerminalLine:
    """Redraws one line at the bottom of a terminal.

    Until `finish`, other output to `sys.stdout` and `sys.stderr`, also from log handlers, is printed above the line. If
    such output does not end with a newline, the line is redrawn only after the newline. A stream that is not a
    terminal, such as a file, stays unchanged. Any thread may print.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._has_partial_line = False
        self._lock = threading.RLock()  # A signal handler may print while its own thread does.
        self._proxies: list[_StreamProxy] = []
        for stream in {id(each): each for each in (file, sys.stdout, sys.stderr) if is_terminal(each)}.values():
            self._proxies.append(_StreamProxy(self, stream))
        for proxy in self._proxies:
            _replace_stream(proxy.stream, proxy)

    @property
    def width(self) -> int:
        """The width in characters, without the last column, where some terminals wrap to the next line."""
        try:
            columns = os.get_terminal_size(self._file.fileno()).columns
        except (AttributeError, OSError, ValueError):
            columns = 0
        return (columns or _DEFAULT_CELLS) - 1

    def draw(self, text: str) -> None:
        """Replaces the text of the line by another one, at most `width` characters long."""
        with self._lock:
            self._text = text
            if not self._has_partial_line:
                self._write(f"\r{text}{_ERASE_REST}")

    def print_above(self, stream: TextIO, text: str) -> int:
        """Writes other output above the line."""
        with self._lock:
            if self._text and not self._has_partial_line:
                self._write(_ERASE)
            written = stream.write(text)
            if text:
                self._has_partial_line = not text.endswith(("\n", "\r"))
            if self._text and not self._has_partial_line:
                stream.flush()
                self._write(self._text)
            return written

    def finish(self) -> None:
        """Leaves the last text on the terminal, and restores the streams."""
        with self._lock:
            text, self._text = self._text, ""
            if text:
                self._write(f"\n{text}\n" if self._has_partial_line else "\n")
        # Without `_lock`, to avoid a deadlock: `setStream` takes the lock of a log handler, which a thread that logs
        # holds while it waits for `_lock`.
        for proxy in self._proxies:
            _replace_stream(proxy, proxy.stream)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class _StreamProxy:
    """Replaces a stream, and prints above the line; once the line is finished, it writes to the stream directly."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        self._line, self.stream = line, stream

    def write(self, text: str) -> int:
        return self._line.print_above(self.stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _replace_stream(stream: Any, by: Any) -> None:
    """Replaces a stream in `sys` and in the handlers of the log."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is stream:
            setattr(sys, name, by)
    loggers = [logging.root, *logging.root.manager.loggerDict.copy().values()]
    for handler in [handler for logger in loggers for handler in getattr(logger, "handlers", ())]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
            handler.setStream(by)


def is_notebook_cell(file: Any) -> bool:
    """Returns whether a file is the output of a notebook cell: a stream of a Jupyter kernel, in that kernel."""
    shell = notebooks.ipython_shell()
    return hasattr(shell, "kernel") and type(file).__module__.partition(".")[0] == "ipykernel"


class CellLine:
    """Shows the progress as one output of the running cell, which each `show` replaces.

    Lines that are printed or logged have their own outputs. If another cell continues the training, that cell gets a
    new output, and the output of the earlier cell stays. The notebook keeps the last progress, as text and as HTML with
    a bar and a curve of the first value; no widget is needed.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        self._handle: Any = None
        self._points: dict[str, list[Point]] = {}

    def show(self, progress: Progress) -> None:
        """Replaces the shown progress."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        shell = notebooks.ipython_shell()
        self._add_point(progress)
        bundle = {"text/plain": str(progress), "text/html": self._as_html(progress)}
        cell = None if shell is None else shell.execution_count
        if self._handle is None or cell != self._cell:
            self._cell, self._handle = cell, display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def finish(self) -> None:
        """Leaves the last progress in the output."""
        self._handle = None

    def _add_point(self, progress: Progress) -> None:
        """Adds the first value to its curve, from which every other point goes once it is long."""
        for tag, value in [*progress.values.items()][:1]:
            array = np.asarray(value)
            if array.shape == () and array.dtype.kind in "biuf":
                points = self._points.setdefault(tag, [])
                step = progress.step if progress.values_step is None else progress.values_step
                if not points or points[-1][0] < step:
                    points.append((step, float(array)))
                if len(points) > MOST_POINTS:
                    points[:] = thin(points, MOST_POINTS // 2)

    def _as_html(self, progress: Progress) -> str:
        bar = ""
        if progress.last_step:
            done = min(progress.step, progress.last_step)
            bar = f'<progress value="{done}" max="{progress.last_step}"></progress> '
        line = f'<div style="font-family: monospace; white-space: pre-wrap">{bar}{html.escape(str(progress))}</div>'
        charts = [line_chart(tag, [Curve("training", points)]) for tag, points in self._points.items() if points[1:]]
        return "".join([line, *(f'<div style="max-width: 32em">{chart}</div>' for chart in charts)])
