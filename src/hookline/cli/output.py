"""The output of commands: text, numbers and tables for people, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hookline.log import escape_line, escape_text

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 20
# Wider than any table, so that in a pipe each row is one line.
_WIDE = 100_000


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, styles: Iterable[str] = (), wraps: str | None = None
) -> None:
    """Prints a table: on a terminal with colours and within its width, otherwise one plain line for each row.

    Args:
        columns: The headings; a leading ">" aligns the column on the right.
        rows: The cells of each row.
        styles: The style of each row; rows beyond the last style have none.
        wraps: The only column that is wrapped on a narrow terminal; by default all are.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=None if sys.stdout.isatty() else io.StringIO())
    if not console.is_terminal:
        console = Console(file=io.StringIO(), width=_WIDE)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in columns:
        made.add_column(
            Text(head.removeprefix(">")),
            justify="right" if head.startswith(">") else "left",
            overflow="fold",
            no_wrap=wraps not in (None, head),
        )
    left = iter(styles)
    for row in rows:
        made.add_row(*(Text(escape_line(cell)) for cell in row), style=next(left, ""))
    with console.capture() as captured:
        console.print(made)
    _print("\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n"))


def print_lines(*lines: str) -> None:
    """Prints lines; line breaks within them are escaped."""
    for line in lines:
        _print(escape_line(line))


def print_error(text: str) -> None:
    """Prints a message to the standard error."""
    print(escape_text(text), file=sys.stderr, flush=True)


def _print(text: str) -> None:
    """Prints a string, with question marks for characters that the encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def print_json(value: Any) -> None:
    """Prints a value as JSON, with NaN and infinities as strings. Each item of a list is a line."""
    if isinstance(value, list):
        print("[" + ",\n ".join(json.dumps(_finite(item), allow_nan=False) for item in value) + "]")
    else:
        print(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def sparkline(points: Sequence[tuple[float, float]]) -> str:
    """Returns a curve of points (x, y): a bar for the mean in each part of the x axis, "x" for NaN and infinities.

    Example:
        >>> sparkline([(0, 1.0), (1, 2.0), (2, 3.0), (3, float("nan"))])
        '▁▅█x'
    """
    if not points:
        return ""
    first, last = points[0][0], max(x for x, _ in points)
    width = min(_CURVE_WIDTH, len(points))
    parts: list[list[float]] = [[] for _ in range(width)]
    for x, y in points:
        position = (x - first) / (last - first) if last > first else 0.0
        parts[min(max(int(position * width), 0), width - 1)].append(y)
    means = [_mean(part) for part in parts if part]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _mean(part: Sequence[float]) -> float:
    # Divided first, because the sum of finite numbers may overflow; so may their difference in `_bar`.
    return math.fsum(y / len(part) for y in part) if all(map(math.isfinite, part)) else math.nan


def _bar(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return "x"
    if high == low:
        return _BARS[0]
    return _BARS[min(int((mean / 2 - low / 2) / (high / 2 - low / 2) * len(_BARS)), len(_BARS) - 1)]
