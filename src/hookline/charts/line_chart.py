"""Draws charts of scalars as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hookline import units
from hookline.charts.markup import Html, element, join

MOST_POINTS = 1000
"""The number of points, roughly, to which a curve is reduced."""

_WIDTH, _HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 18, 10, 34
_MOST_DOTS = 60
# Larger numbers count as infinite: their differences may overflow.
_LARGEST = 1e300
_LOG_RATIO = 1000
# Curves that change by less are drawn as constants.
_LEAST_RATIO = 1e-5

_STROKE = {"fill": "none", "stroke": "currentColor"}

Point = tuple[float, float]
"""A step and a value."""


class Curve(NamedTuple):
    """A curve of a chart: its name, its points in order, and its best point, if it has one."""

    name: str
    points: Sequence[Point]
    best: Point | None = None


def line_chart(title: str, curves: Sequence[Curve], restarts: Iterable[float] = ()) -> Html:
    """Returns a figure with curves over the steps; restarts, best points and values that are not finite are marked.

    Without a style sheet, as in a notebook, lines have the colour of the text.
    """
    finite = [value for curve in curves for _, value in curve.points if is_finite(value)]
    steps = [step for curve in curves for step, _ in curve.points]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    is_log = low > 0 and high / low > _LOG_RATIO
    pad = 0.0 if is_log else 0.05 * (high - low)
    first = 0.0 if 0 < min(steps) < 0.1 * max(steps) else min(steps)
    x = _Axis(first, max(steps), _LEFT, _WIDTH - _RIGHT, least_gap=1.0)
    y = _Axis(low - pad, high + pad, _HEIGHT - _BOTTOM, _TOP, is_log=is_log)
    restarts = [step for step in restarts if min(steps) < step < max(steps)]
    bad = sorted({round(x(step)) for curve in curves for step, value in thin(curve.points) if not is_finite(value)})
    axes = [
        *(_horizontal(y(value), label(value)) for value in y.ticks),
        *(_text(x(step), _HEIGHT - _BOTTOM + 16, label(step), "middle") for step in x.ticks),
        _text(_WIDTH - _RIGHT, _HEIGHT - 3, "step", "end"),
    ]
    marks = [
        *(_path(f"M{x(step):.1f},{_TOP}V{_HEIGHT - _BOTTOM}", "restart", "") for step in restarts),
        *(_path(f"M{at - 3},{_HEIGHT - _BOTTOM - 7}l6,6m0,-6l-6,6", "bad", "") for at in bad),
    ]
    drawn = [part for number, curve in enumerate(curves) for part in _curve(curve, f"c{number % 6}", x, y)]
    words = [f"{curve.name}: {_summary(curve.points)}" for curve in curves]
    picture = element(
        "svg",
        element("title", f"{title} over the steps. {' '.join(words)}"),
        *axes,
        *marks,
        *drawn,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )
    legend = [_key(f"c{number % 6}", curve.name) for number, curve in enumerate(curves)]
    bests = [(curve.name, *curve.best) for curve in curves if curve.best is not None]
    legend += [
        _key("best", f"best{f' {name}' * (len(bests) > 1)} {units.format_number(value)} at {step:,.0f}")
        for name, step, value in bests
    ]
    legend += [_key("restart", "restart")] * bool(restarts) + [_key("bad", "NaN or infinite")] * bool(bad)
    legend += [element("li", "log scale")] * is_log
    # A single curve needs none.
    below = [element("ul", *legend, class_="legend", style="list-style:none")] if len(legend) > 1 else []
    return element("figure", element("figcaption", title), picture, *below)


def is_finite(value: float) -> bool:
    """Returns whether a value can be drawn."""
    return abs(value) < _LARGEST


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Reduces points to about `most`: of each part of the curve the least, the greatest, and one that is not finite.

    Example:
        >>> thin([(0, 1.0), (1, 9.0), (2, 2.0), (3, 3.0), (4, 0.0), (5, 2.0)], most=4)
        [(0, 1.0), (1, 9.0), (3, 3.0), (4, 0.0)]
    """
    if len(points) <= most:
        return list(points)
    size, kept = math.ceil(2 * len(points) / most), []
    for start in range(0, len(points), size):
        part = range(start, min(start + size, len(points)))
        finite = [index for index in part if is_finite(points[index][1])]
        chosen = set(next(([index] for index in part if not is_finite(points[index][1])), []))
        if finite:
            chosen |= {each(finite, key=lambda index: points[index][1]) for each in (min, max)}
        kept += sorted(chosen)
    return [points[index] for index in kept]


def label(value: float) -> str:
    """Formats a number at an axis.

    Example:
        >>> [label(value) for value in (0.25, 2000, 25_000, 3.5e6, 1e-7)]
        ['0.25', '2,000', '25k', '3.5M', '1e-07']
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if max(size, 1e4) <= abs(value) < 1e15:
            return f"{value / size:.8g}{unit}"
    return f"{value:,.8g}"


class _Axis:
    """Maps numbers to positions in the picture, and chooses ticks.

    Args:
        low: The least number.
        high: The greatest number.
        begin: The position of the least number.
        end: The position of the greatest one.
        is_log: Whether positions are proportional to logarithms.
        least_gap: The least distance of two ticks.
    """

    def __init__(
        self,
        low: float,
        high: float,
        begin: float,
        end: float,
        *,
        is_log: bool = False,
        least_gap: float = 0.0,
    ) -> None:
        self._scale: Callable[[float], float] = math.log10 if is_log else float
        low, high = self._scale(low), self._scale(high)
        if high - low <= _LEAST_RATIO * max(abs(low), abs(high)) or high - low < 1 / _LARGEST:
            around = max(abs(low) / 10, 0.5) if low else 1.0
            low, high = low - around, high + around
        at = _ticks(low, high, max(least_gap, float(is_log)))
        self.ticks = [10**tick for tick in at] if is_log else at
        self._low, self._ratio, self._begin = low, (end - begin) / (high - low), begin

    def __call__(self, number: float) -> float:
        return self._begin + (self._scale(number) - self._low) * self._ratio


def _ticks(low: float, high: float, least_gap: float) -> list[float]:
    """Returns at most six round numbers between two numbers."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    gap = max(next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= 5), least_gap)
    first = math.ceil(low / gap - 1e-9)
    return [number * gap + 0.0 for number in range(first, math.floor(high / gap + 1e-9) + 1)]


def _curve(curve: Curve, style: str, x: _Axis, y: _Axis) -> list[Html]:
    commands, command = [], "M"
    points = thin(curve.points)
    for step, value in points:
        if is_finite(value):
            commands.append(f"{command}{x(step):.1f},{y(value):.1f}")
        command = "L" if is_finite(value) else "M"
    dots = [point for point in points if is_finite(point[1])] if len(points) <= _MOST_DOTS else []
    parts = [_path("".join(commands), "line", style), *(_dot(point, x, y, 2.2, style) for point in dots)]
    return parts if curve.best is None else [*parts, _dot(curve.best, x, y, 5, "best")]


def _dot(point: Point, x: _Axis, y: _Axis, radius: float, style: str) -> Html:
    words = element("title", f"{units.format_number(point[1])} at step {point[0]:.0f}")
    return element("circle", words, cx=f"{x(point[0]):.1f}", cy=f"{y(point[1]):.1f}", r=radius, class_=style, **_STROKE)


def _path(commands: str, kind: str, style: str) -> Html:
    return element("path", d=commands, class_=f"{kind} {style}".strip(), **_STROKE)


def _horizontal(at: float, words: str) -> Html:
    line = element("g", _path(f"M{_LEFT},{at:.1f}H{_WIDTH - _RIGHT}", "grid", ""), opacity=0.3)
    return join([line, _text(_LEFT - 6, at + 4, words, "end")])


def _text(x: float, y: float, words: str, anchor: str) -> Html:
    return element(
        "text", words, fill="currentColor", font_size=12, x=f"{x:.1f}", y=f"{y:.1f}", style=f"text-anchor:{anchor}"
    )


def _key(style: str, words: str) -> Html:
    return element("li", element("span", class_=f"key {style}"), words)


def _summary(points: Sequence[Point]) -> str:
    step, value = points[-1]
    return f"{units.format_number(value)} at the last step, {step:.0f}."
