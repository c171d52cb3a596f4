"""Reads the event files of a run: its scalars, its starts and its hyperparameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tensorboard.plugins.hparams import error as hparams_errors
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.util import tensor_util

from hookline.errors import DataLossError
from hookline.regular_file import UnreadableFileError, open_regular
from hookline.summary.protos import DecodeError, Event
from hookline.summary.records import read_last_record, read_records

# The length and the two checksums of each record.
_FRAME_BYTES = 16


class ScalarPoint(NamedTuple):
    """One value of a scalar."""

    step: int
    wall_time: float
    value: float


class Start(NamedTuple):
    """A start of the training: the last step before it, and the time in seconds since the epoch."""

    step: int
    wall_time: float


@dataclasses.dataclass
class RunEvents:
    """The contents of the event files of one folder.

    Attributes:
        scalars: The points of each scalar, in the order of writing. A restart removes earlier points of steps after it.
        starts: The starts of the training.
        hparams: The hyperparameters of the last start that has any.
        notes: Sentences about parts that cannot be read.
    """

    scalars: dict[str, list[ScalarPoint]] = dataclasses.field(default_factory=dict)
    starts: list[Start] = dataclasses.field(default_factory=list)
    hparams: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


def read_folder(paths: Iterable[str]) -> RunEvents:
    """Reads the event files of one folder, in order."""
    found = RunEvents()
    named: set[str] = set()  # TensorFlow 2 writes the plugin's name only with the first value of a scalar.
    for path in paths:
        unreadable: list[str] = []
        for event in _events(path, found.notes):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                found.starts.append(Start(event.step - 1, event.wall_time))
                for points in found.scalars.values():
                    points[:] = [point for point in points if point.step < event.step]
            for value in event.summary.value:
                if value.tag == hparams_metadata.SESSION_START_INFO_TAG:
                    found.hparams = _hparams(value) or found.hparams
                if value.metadata.plugin_data.plugin_name == "scalars":
                    named.add(value.tag)
                if value.HasField("simple_value"):
                    number = value.simple_value
                elif value.tag not in named:
                    continue
                elif (number := _number(value.tensor)) is None:
                    unreadable.append(value.tag)
                    continue
                found.scalars.setdefault(value.tag, []).append(ScalarPoint(event.step, event.wall_time, number))
        if unreadable:
            tags = ", ".join(sorted(set(unreadable)))
            found.notes.append(f"{path}: {len(unreadable)} values of {tags} are not numbers, and left out.")
    found.scalars = {tag: points for tag, points in found.scalars.items() if points}
    return found


def last_event(path: str) -> Any | None:
    """Returns the last whole event of a file, without reading the others; None if there is none."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            record = read_last_record(file)
        return None if record is None else Event.FromString(record)
    except (OSError, UnreadableFileError, DecodeError):
        return None


def _number(tensor: Any) -> float | None:
    """Returns the number in a tensor with one element; None for any other tensor."""
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    try:
        return float(tensor_util.make_ndarray(tensor).item())
    except (TypeError, ValueError, OverflowError):
        return None


def _hparams(value: Any) -> dict[str, Any]:
    try:
        given = hparams_metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content).hparams
    except (DecodeError, hparams_errors.HParamsError):
        return {}
    return {name: getattr(given[name], given[name].WhichOneof("kind") or "", None) for name in sorted(given)}


def _events(path: str, notes: list[str]) -> Iterator[Any]:
    """Yields the events of a file, and adds a note if it cannot be read to the end."""
    try:
        opened = open_regular(path)
    except UnreadableFileError as error:
        notes.append(f"{path}: {error}, and left out.")
        return
    except OSError as error:
        notes.append(f"{path}: it cannot be read, and is left out: {error.strerror}.")
        return
    read_bytes = 0
    with os.fdopen(opened, "rb") as file:
        nbytes = os.fstat(opened).st_size
        try:
            for record in read_records(file):
                yield Event.FromString(record)
                read_bytes += len(record) + _FRAME_BYTES
        except (DataLossError, DecodeError):
            notes.append(
                f"{path}: read {read_bytes:,} of {nbytes:,} bytes. The record there is torn or damaged, or still being "
                "written."
            )
