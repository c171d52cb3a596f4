"""`hookline events`: prints the scalars of runs."""

from __future__ import annotations

import argparse
import csv
import fnmatch
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tensorboard.util import tensor_util

from hookline.cli import output, runs
from hookline.errors import DataLossError, NotFoundError
from hookline.log import escape_line
from hookline.regular_file import UnreadableFileError, open_regular
from hookline.summary.protos import DecodeError, Event
from hookline.summary.records import read_records

# The length and the two checksums of each record.
_FRAME_BYTES = 16


class ScalarPoint(NamedTuple):
    """One value of a scalar."""

    step: int
    wall_time: float
    value: float


Scalars = dict[str, list[ScalarPoint]]
"""The points of each scalar, in the order of writing."""


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
        heads = ["scalar", "run", ">points", ">first step", ">last step", ">last", ">least", ">greatest", "curve"]
        output.print_table(heads, [[tag, folder, *_cells(points)] for tag, folder, points in lines])
    else:
        output.print_lines(f"{', '.join(found)}: no scalars yet.")
    return 0


def _scalars_of_run(given: str) -> Iterator[tuple[str, Scalars]]:
    directory = runs.run_directory(given)
    files = runs.event_files(directory)
    if not files:
        raise runs.not_a_run_error(directory, "it has no event file")
    for folder, paths in files.items():
        yield folder, _scalars(paths)


def _scalars(paths: Iterable[str]) -> Scalars:
    """Reads the event files of one folder, in order. A restart removes earlier points of steps after it."""
    scalars: Scalars = {}
    named: set[str] = set()  # TensorFlow 2 writes the plugin's name only with the first value of a scalar.
    for path in paths:
        unreadable: list[str] = []
        for event in _events(path):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                for points in scalars.values():
                    points[:] = [point for point in points if point.step < event.step]
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    named.add(value.tag)
                if value.HasField("simple_value"):
                    number = value.simple_value
                elif value.tag not in named:
                    continue
                elif (number := _number(value.tensor)) is None:
                    unreadable.append(value.tag)
                    continue
                scalars.setdefault(value.tag, []).append(ScalarPoint(event.step, event.wall_time, number))
        if unreadable:
            tags = ", ".join(sorted(set(unreadable)))
            output.print_error(
                f"hookline events: {path}: {len(unreadable)} values of {tags} are not numbers, and left out."
            )
    return {tag: points for tag, points in scalars.items() if points}


def _number(tensor: Any) -> float | None:
    """Returns the number in a tensor with one element; None for any other tensor."""
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    try:
        return float(tensor_util.make_ndarray(tensor).item())
    except (TypeError, ValueError, OverflowError):
        return None


def _events(path: str) -> Iterator[Any]:
    """Yields the events of a file, and prints an error if it cannot be read to the end."""
    try:
        opened = open_regular(path)
    except UnreadableFileError as error:
        output.print_error(f"hookline events: {path}: {error}, and left out.")
        return
    read_bytes = 0
    with os.fdopen(opened, "rb") as file:
        nbytes = os.fstat(opened).st_size
        try:
            for record in read_records(file):
                yield Event.FromString(record)
                read_bytes += len(record) + _FRAME_BYTES
        except (DataLossError, DecodeError):
            output.print_error(
                f"hookline events: {path}: read {read_bytes:,} of {nbytes:,} bytes. The record there is torn or "
                "damaged, or still being written."
            )


def _is_wanted(tag: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(tag, pattern) for pattern in patterns)


def _cells(points: Sequence[ScalarPoint]) -> list[str]:
    steps = [point.step for point in points]
    finite = [point.value for point in points if math.isfinite(point.value)]
    least, greatest = (output.format_number(each(finite)) if finite else "" for each in (min, max))
    last = output.format_number(points[-1].value)
    curve = output.sparkline([(point.step, point.value) for point in points])
    return [f"{len(points):,}", str(min(steps)), str(max(steps)), last, least, greatest, curve]
