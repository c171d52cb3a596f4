"""`hookline report`: writes an HTML page about a run, from its own files."""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hookline import clock, units
from hookline.charts import line_chart
from hookline.charts.line_chart import Curve, Point
from hookline.charts.markup import Html, element, escape, join, table
from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.restoring.inspection import FoundCheckpoint
from hookline.checkpoint.saving import durable
from hookline.checkpoint.saving.contents import format_devices
from hookline.cli import output, runs
from hookline.cli.report import account_table, run_events, run_facts
from hookline.cli.report.run_events import RunEvents
from hookline.cli.report.run_facts import RunFacts
from hookline.errors import NotFoundError, UnavailableError
from hookline.loop.evaluation.eval_result import infer_mode
from hookline.summary import account
from hookline.version import __version__

FILE_NAME = "report.html"
_MOST_CHARTS = 60
_SPEED = ("/sec", "peak_share", "device_memory/bytes_in_use", "device_memory/peak_bytes")
_STATES = {
    "running": "It is running.",
    "finished": "It has finished.",
    "stopped": "A signal, an error, a time limit or a hook has stopped it; it continues when it is started again.",
    "killed": "It was killed; it continues from its newest checkpoint when it is started again.",
    "broken": "Its newest checkpoint is broken.",
    "unreadable": "Its checkpoints cannot be read.",
    "unknown": "It has no checkpoints, and its event files have no end.",
}


def run(arguments: argparse.Namespace) -> int:
    """Writes the page, and returns the exit status."""
    directory = runs.run_directory(arguments.run)
    if inspection.is_checkpoint(directory):
        raise NotFoundError.from_message(f"'{directory}' is a checkpoint. Give the folder of its run.")
    with runs.quiet_on_cpu():
        facts = run_facts.read_facts(directory)
        if facts.state == "unknown" and not runs.is_run(directory):
            raise runs.not_a_run_error(directory, "it has no checkpoint and no event file of its own")
        page = _page(_Run(facts))
    path = os.path.join(directory, FILE_NAME) if arguments.out is None else arguments.out
    try:
        durable.write_text(path, page)
    except OSError as error:
        why = f"'{path}' cannot be written: {error.strerror}. Choose another file with --out FILE."
        raise UnavailableError.from_message(why) from error
    output.print_lines(f"Wrote {path}. Open it in a browser.")
    return 0


@dataclasses.dataclass(frozen=True)
class _Scalar:
    """The curves of one scalar: of the training, and of its evaluations."""

    tag: str
    curves: list[Curve]

    @property
    def is_speed(self) -> bool:
        return self.tag.endswith(_SPEED)


class _Run:
    """The facts of a run and its events."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts, directory = facts, facts.directory
        files = runs.event_files(directory)
        nested = [folder for folder in files if folder != directory and run_facts.has_own_files(folder)]
        inside = [folder for folder in files if not any(f"{folder}/".startswith(f"{other}/") for other in nested)]
        self.events: dict[str, RunEvents] = {
            os.path.relpath(folder, directory): run_events.read_folder(files[folder]) for folder in inside
        }
        self.own = self.events.get(os.curdir, RunEvents())
        newest = None if facts.contents is None else facts.contents.newest
        self.manifest = None if newest is None else newest.manifest
        states = {} if self.manifest is None else run_facts.evaluation_states(self.manifest)
        self._modes: dict[str, Any] = {name: state.get("modes") for name, state in states.items()}
        tags = dict.fromkeys(tag for events in self.events.values() for tag in events.scalars)
        self.scalars = [_Scalar(tag, list(self._curves(tag))) for tag in tags]

    def _curves(self, tag: str) -> Iterator[Curve]:
        for folder, events in self.events.items():
            points = [(point.step, point.value) for point in events.scalars.get(tag, ())]
            if points and folder == os.curdir:
                yield Curve("training", points)
            elif points:
                yield Curve(folder, points, self._best(folder, tag, points))

    def _best(self, folder: str, tag: str, points: Sequence[Point]) -> Point | None:
        modes = self._modes.get(folder)
        mode = modes.get(tag) if isinstance(modes, Mapping) else infer_mode(tag)
        finite = [point for point in points if line_chart.is_finite(point[1])]
        if not finite or mode not in ("min", "max"):
            return None
        return (min if mode == "min" else max)(finite, key=lambda point: point[1])

    def notes(self) -> Iterator[str]:
        """Yields sentences about what is missing or cannot be read."""
        if self.facts.why:
            yield f"{self.facts.why}."
        if not self.events:
            yield "There are no event files, so there are no curves."
        elif not self.scalars:
            yield "The event files have no scalars, so there are no curves."
        for events in self.events.values():
            yield from events.notes
        for scalar in self.scalars:
            for curve in scalar.curves:
                if bad := [step for step, value in curve.points if not line_chart.is_finite(value)]:
                    values = f"{units.format_count(len(bad), 'value')} {'is' if len(bad) == 1 else 'are'}"
                    yield f"{scalar.tag} ({curve.name}): {values} NaN or infinite, the first at step {bad[0]:,}."


def _page(run: _Run) -> str:
    """Returns the page as HTML. Each section is left out if it is empty."""
    name = os.path.basename(os.path.abspath(run.facts.directory))
    sections = [
        ("", _facts(run)),
        ("Notes", join([element("ul", *(element("li", note) for note in run.notes()))] * any(run.notes()))),
        ("Curves", _charts(run, [scalar for scalar in run.scalars if not scalar.is_speed])),
        ("Speed", _charts(run, [scalar for scalar in run.scalars if scalar.is_speed])),
        ("Last values", _values(run.scalars)),
        ("Where the time went", _time(run.facts.directory)),
        ("Starts", _starts(run.own)),
        ("Checkpoints", _checkpoints(run.facts)),
        ("Hyperparameters", _hyperparameters(run.own)),
        ("Devices and versions of the newest checkpoint", _environment(run)),
    ]
    body = [
        element("section", *[element("h2", title)] * bool(title), content) for title, content in sections if content
    ]
    written = element("footer", f"Written by hookline {__version__} at {_format_time(clock.time())}.")
    head = element("header", element("h1", name), element("p", run.facts.directory, class_="path"))
    return _PAGE.format(title=escape(f"{name}: run of hookline"), style=_STYLE, body=join([head, *body, written]))


def _facts(run: _Run) -> Html:
    facts, speeds = run.facts, [value for _, value in _points(run, "global_step/sec") if line_chart.is_finite(value)]
    shown = {
        "Step": "unknown" if facts.step is None else f"{facts.step:,}",
        "Last change": "" if facts.timestamp is None else _format_time(facts.timestamp),
        "Speed, median of global_step/sec": f"{_median_text(speeds)} steps/s" if speeds else "",
    }
    if facts.best is not None:
        shown[f"Best {facts.best.metric}"] = f"{units.format_number(facts.best.value)} at step {facts.best.step:,}"
    items = [element("div", element("dt", key), element("dd", value)) for key, value in shown.items() if value]
    state = f"{_STATES[facts.state]}{facts.stop_text and f' It {facts.stop_text}.'}"
    return join([element("p", state), element("dl", *items, class_="facts")])


def _median_text(values: Sequence[float]) -> str:
    return line_chart.label(float(f"{statistics.median(values):.3g}"))


def _points(run: _Run, tag: str) -> Sequence[Point]:
    return next((scalar.curves[0].points for scalar in run.scalars if scalar.tag == tag), ())


def _charts(run: _Run, scalars: Sequence[_Scalar]) -> Html:
    # Those with an evaluation come first.
    ordered = sorted(scalars, key=lambda scalar: len(scalar.curves), reverse=True)
    restarts = [start.step for start in run.own.starts[1:]]
    drawn = [line_chart.line_chart(scalar.tag, scalar.curves, restarts) for scalar in ordered[:_MOST_CHARTS]]
    left = len(ordered) - len(drawn)
    more = [element("p", f"{left:,} more scalars are in the table of last values only.")] * (left > 0)
    return join([element("div", *drawn, class_="charts"), *more]) if drawn else Html()


def _values(scalars: Sequence[_Scalar]) -> Html:
    rows = [_value_cells(scalar.tag, curve) for scalar in scalars for curve in scalar.curves]
    heads = ["metric", "of", ">last", ">at step", ">least", ">greatest", ">best", ">points"]
    return table("Last values", heads, rows) if rows else Html()


def _value_cells(tag: str, curve: Curve) -> list[str]:
    step, last = curve.points[-1]
    finite = [value for _, value in curve.points if line_chart.is_finite(value)]
    least, greatest = (units.format_number(each(finite)) if finite else "" for each in (min, max))
    best = "" if curve.best is None else f"{units.format_number(curve.best[1])} at {curve.best[0]:,}"
    return [tag, curve.name, units.format_number(last), f"{step:,}", least, greatest, best, f"{len(curve.points):,}"]


def _starts(events: RunEvents) -> Html:
    rows = [
        [str(number), _format_time(start.wall_time), f"{start.step:,}"] for number, start in enumerate(events.starts, 1)
    ]
    return table("Starts", [">start", "time", ">from step"], rows) if rows else Html()


def _checkpoints(facts: RunFacts) -> Html:
    found = () if facts.contents is None else facts.contents.checkpoints
    rows = [_checkpoint_cells(facts, checkpoint) for checkpoint in found]
    heads = ["checkpoint", ">step", "saved", ">age", ">size", "from", "state"]
    return table("Checkpoints", heads, rows) if rows else Html()


def _checkpoint_cells(facts: RunFacts, found: FoundCheckpoint) -> list[str]:
    state = facts.contents and facts.contents.state
    is_best, is_good = (found.path == path for path in ((state.best, state.last_good) if state else (None, None)))
    marks = ["best"] * is_best + ["last good"] * is_good
    if found.defect:
        marks = [found.defect if found.is_unfinished else f"broken: {found.defect}"]
    elif found.manifest is not None and found.manifest.extra:
        marks.append("of a failed training")
    return [
        found.name,
        "" if found.step is None else f"{found.step:,}",
        _format_time(found.timestamp),
        units.format_duration(clock.time() - found.timestamp),
        units.format_bytes(found.nbytes),
        "" if found.manifest is None else _devices(found.manifest.devices),
        ", ".join(marks) or "complete",
    ]


def _devices(names: Sequence[str]) -> str:
    return format_devices(names) if names else "1 device"


def _hyperparameters(events: RunEvents) -> Html:
    rows = [
        [name, units.format_number(value) if isinstance(value, float) else str(value)]
        for name, value in events.hparams.items()
    ]
    return table("Hyperparameters", ["name", "value"], rows) if rows else Html()


def _time(directory: str) -> Html:
    parts = []
    for process, found in account.read(directory).items():
        parts.append(element("p", f"{f'Process {process}: ' if process else ''}{account_table.headline(found)}"))
        parts.append(table("Where the time went", ["state", ">time", ">share"], account_table.rows(found)))
        parts += [element("p", note) for note in account_table.notes(found)]
    return join(parts)


def _environment(run: _Run) -> Html:
    if run.manifest is None:
        return Html()
    rows = [["devices", _devices(run.manifest.devices)], *map(list, run.manifest.environment.items())]
    return table("Devices and versions", ["name", "value"], rows)


def _format_time(secs: float) -> str:
    try:
        return str(np.datetime64(int(secs), "s")).replace("T", " ") + " UTC"
    except (OverflowError, ValueError):  # A file may have any number.
        return "unknown"


# No script runs in the page, and it loads nothing, even if a text of the run were not escaped.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --faint: #5c6670; --line: #dde1e6; --page: #fff; --card: #f6f7f9;
  --c0: #2f6fd0; --c1: #c2570c; --c2: #1a7f4b; --c3: #8a3ffc; --c4: #b0186b; --c5: #6b6400; --bad: #c4262e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --faint: #9aa4ae; --line: #363d45; --page: #14171a;
  --card: #1d2125; --c0: #6ea8ff; --c1: #ff9d52; --c2: #5fd08f; --c3: #b794ff; --c4: #ff7eb6; --c5: #d3c84b;
  --bad: #ff7b7b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .6rem; font-size: 1.15rem; }
.path { margin: 0; color: var(--faint); overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .6rem; margin: 0; }
.facts div { background: var(--card); border-radius: .4rem; padding: .5rem .8rem; overflow-wrap: anywhere; }
dt { color: var(--faint); font-size: .85rem; }
dd { margin: 0; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border-radius: .4rem; padding: .6rem .8rem; break-inside: avoid; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--line); }
path { fill: none; }
.line { stroke-width: 2; stroke-linejoin: round; }
.line.c0 { stroke-width: 1.2; }
.line.c0, .c0 { stroke: var(--c0); } .line.c1, .c1 { stroke: var(--c1); } .line.c2, .c2 { stroke: var(--c2); }
.line.c3, .c3 { stroke: var(--c3); } .line.c4, .c4 { stroke: var(--c4); } .line.c5, .c5 { stroke: var(--c5); }
circle { fill: var(--card); }
circle.best { fill: none; stroke: var(--text); stroke-width: 2; }
.restart { stroke: var(--faint); stroke-dasharray: 4 3; }
.bad { stroke: var(--bad); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .2rem 0 0; padding: 0;
  color: var(--faint); font-size: .85rem; }
.key { display: inline-block; vertical-align: middle; width: 1rem; height: 0; margin-right: .4rem;
  border-top: 3px solid var(--faint); }
.key.c0 { border-color: var(--c0); } .key.c1 { border-color: var(--c1); } .key.c2 { border-color: var(--c2); }
.key.c3 { border-color: var(--c3); } .key.c4 { border-color: var(--c4); } .key.c5 { border-color: var(--c5); }
.key.restart { border-top: 2px dashed var(--faint); }
.key.bad { border-color: var(--bad); }
.key.best { width: .8rem; height: .8rem; border: 2px solid var(--text); border-radius: 50%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem 1.2rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; }
th, td { white-space: nowrap; }
td.long { min-width: 16rem; max-width: 32rem; white-space: normal; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { margin-top: 2rem; color: var(--faint); font-size: .85rem; }
@media print { body { max-width: none; padding: 0; } .wide { overflow: visible; } h2 { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; } tr { break-inside: avoid; } }
"""
