"""`hookline events`: prints the scalars of runs."""

from __future__ import annotations

import argparse
import csv
import fnmatch
import math
import os
import sys
from collections.abc import Iterator, Sequence

from hookline import units
from hookline.cli import output, runs
from hookline.cli.report import run_events
from hookline.cli.report.run_events import ScalarPoint
from hookline.errors import NotFoundError
from hookline.log import escape_line

Scalars = dict[str, list[ScalarPoint]]


def run(arguments: argparse.Namespace) -> int:
    """Prints the scalars, and returns the exit status."""
    found = {folder: scalars for given in arguments.runs for folder, scalars in _scalars_of_run(given)}
    tags = sorted({tag for scalars in found.values() for tag in scalars})
    wanted = [tag for tag in tags if _is_wanted(tag, arguments.tag)]
    if tags and not wanted:
        raise NotFoundError.from_message(f"no scalar is called {' or '.join(arguments.tag)}. Found: {', '.join(tags)}.")
    lines = [(tag, folder, found[folder][tag]) for tag in wanted for folder in found if tag in found[folder]]
    if arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["run", "tag", *ScalarPoint._fields])
        named = [(escape_line(folder), escape_line(tag), points) for tag, folder, points in lines]
        writer.writerows((folder, tag, *point) for folder, tag, points in named for point in points)
    elif arguments.json:
        output.print_json(
            [{"run": folder, "tag": tag, **point._asdict()} for tag, folder, points in lines for point in points]
        )
    elif lines:
        above, several = _common_folder(list(found)), len(found) > 1
        output.print_lines(f"{above}:", "")
        heads = ["scalar", *["run"] * several, ">points", ">steps", ">last", ">least", ">greatest", "curve"]
        rows = [[tag, *[os.path.relpath(folder, above)] * several, *_cells(points)] for tag, folder, points in lines]
        output.print_table(heads, rows, wraps="scalar")
    else:
        output.print_lines(f"{', '.join(found)}: no scalars yet.")
    return 0


def _scalars_of_run(given: str) -> Iterator[tuple[str, Scalars]]:
    directory = runs.run_directory(given)
    files = runs.event_files(directory)
    if not files:
        raise runs.not_a_run_error(directory, "it has no event file")
    for folder, paths in files.items():
        events = run_events.read_folder(paths)
        for note in events.notes:
            output.print_error(f"hookline events: {note}")
        yield folder, events.scalars


def _common_folder(folders: Sequence[str]) -> str:
    """Returns the folder that holds all of them, relative if they are."""
    if len({os.path.isabs(folder) for folder in folders}) == 1:
        return os.path.commonpath(folders) or os.curdir
    return os.path.commonpath([os.path.abspath(folder) for folder in folders])


def _is_wanted(tag: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(tag, pattern) for pattern in patterns)


def _cells(points: Sequence[ScalarPoint]) -> list[str]:
    steps = [point.step for point in points]
    finite = [point.value for point in points if math.isfinite(point.value)]
    least, greatest = (units.format_number(each(finite)) if finite else "" for each in (min, max))
    last = units.format_number(points[-1].value)
    curve = output.sparkline([(point.step, point.value) for point in points])
    return [f"{len(points):,}", f"{min(steps)}-{max(steps)}", last, least, greatest, curve]
