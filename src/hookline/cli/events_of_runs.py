"""`hookline events`: the scalars of runs."""

from __future__ import annotations

import argparse
import csv
import fnmatch
import math
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader, RawEventFileLoader
from tensorboard.util import tensor_util

from hookline.cli import runs, shown
from hookline.errors import NotFoundError
from hookline.escapes import in_a_line

# Around each record: its length and two checksums.
_FRAME_BYTES = 16


class Point(NamedTuple):
    """One value of a scalar."""

    step: int
    wall_time: float
    value: float


Scalars = dict[str, list[Point]]
"""The points of each scalar, in the order of writing."""


class _Counting(RawEventFileLoader):
    """Counts the bytes of the records that it yields."""

    read_bytes = 0

    def Load(self) -> Generator[bytes, None, None]:
        for record in super().Load():
            self.read_bytes += len(record) + _FRAME_BYTES
            yield record


class _Loader(LegacyEventFileLoader, _Counting):
    """TensorBoard's loader, which stops silently at a torn record, with a count of the bytes read."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the scalars, and returns the exit status."""
    if not (arguments.csv or arguments.json):
        shown.require_rich()
    found = {folder: scalars for given in arguments.runs for folder, scalars in _of_run(given)}
    tags = sorted({tag for scalars in found.values() for tag in scalars})
    wanted = [tag for tag in tags if _is_wanted(tag, arguments.tag)]
    if tags and not wanted:
        raise NotFoundError(None, None, f"no scalar is called {' or '.join(arguments.tag)}. Found: {', '.join(tags)}.")
    lines = [(tag, folder, found[folder][tag]) for tag in wanted for folder in found if tag in found[folder]]
    if arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["run", "tag", *Point._fields])
        named = [(in_a_line(folder), in_a_line(tag), points) for tag, folder, points in lines]
        writer.writerows((folder, tag, *point) for folder, tag, points in named for point in points)
    elif arguments.json:
        shown.as_json(
            [{"run": folder, "tag": tag, **point._asdict()} for tag, folder, points in lines for point in points]
        )
    elif lines:
        heads = ["scalar", "run", ">points", ">first step", ">last step", ">last", ">least", ">greatest", "curve"]
        shown.table(heads, [[tag, folder, *_cells(points)] for tag, folder, points in lines])
    else:
        shown.say(f"{', '.join(found)}: no scalars yet.")
    return 0


def _of_run(given: str) -> Iterator[tuple[str, Scalars]]:
    directory = runs.folder(given)
    files = runs.event_files(directory)
    if not files:
        raise runs.no_run(directory, "it has no event file")
    for folder, paths in files.items():
        yield folder, _scalars(paths)


def _scalars(paths: Iterable[str]) -> Scalars:
    """Reads the event files of one folder, in order. A restart voids the earlier points of later steps."""
    scalars: Scalars = {}
    named: set[str] = set()  # TensorFlow 2 marks only the first value of a scalar.
    for path in paths:
        for event in _events(path):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                for points in scalars.values():
                    points[:] = [point for point in points if point.step < event.step]
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    named.add(value.tag)
                if value.HasField("simple_value"):
                    number = value.simple_value
                elif value.tag in named:
                    number = float(tensor_util.make_ndarray(value.tensor).item())
                else:
                    continue
                scalars.setdefault(value.tag, []).append(Point(event.step, event.wall_time, number))
    return {tag: points for tag, points in scalars.items() if points}


def _events(path: str) -> Iterator[Any]:
    """Yields the events of a file, and reports an incomplete read on the standard error."""
    nbytes = os.path.getsize(path)
    loader = _Loader(path)
    yield from loader.Load()
    if loader.read_bytes < nbytes:
        shown.complain(
            f"hookline events: {path}: read {loader.read_bytes:,} of {nbytes:,} bytes. The record there is torn or "
            "damaged, or still being written."
        )


def _is_wanted(tag: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(tag, pattern) for pattern in patterns)


def _cells(points: Sequence[Point]) -> list[str]:
    steps = [point.step for point in points]
    finite = [point.value for point in points if math.isfinite(point.value)]
    least, greatest = (shown.number(each(finite)) if finite else "" for each in (min, max))
    last = shown.number(points[-1].value)
    curve = shown.curve([(point.step, point.value) for point in points])
    return [f"{len(points):,}", str(min(steps)), str(max(steps)), last, least, greatest, curve]
