"""`hookline inspect`: prints the checkpoints of a run, and the variables of one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from hookline import clock, units
from hookline.checkpoint.directory import leaves
from hookline.checkpoint.directory.manifest import Leaf
from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.restoring.inspection import DirectoryContents, FoundCheckpoint
from hookline.checkpoint.saving.contents import HOOK_STATES, format_devices
from hookline.cli import output, runs
from hookline.cli.report import account_table
from hookline.cli.runs import ArrayStats, array_stats
from hookline.errors import NotFoundError, OpError
from hookline.summary import account

_LONGEST_VALUE = 40


@dataclasses.dataclass(frozen=True)
class InspectedLeaf:
    """A leaf of a checkpoint, with its value if it was read.

    Attributes:
        leaf: The leaf in the manifest.
        stats: The norm of an array of numbers; None if it was not read.
        value: The value of a single number or a string; None if it was not read.
        defect: The reason why it could not be read; empty if it was read, or not tried.
    """

    leaf: Leaf
    stats: ArrayStats | None = None
    value: Any = None
    defect: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Prints the report, and returns the exit status."""
    with runs.quiet_on_cpu():
        report = runs.retry_if_removed(
            lambda: _Report(
                arguments.run, reads=not arguments.no_values, reads_all=arguments.verify, shows_all=arguments.all
            )
        )
        if arguments.json:
            output.print_json(report.to_json())
        else:
            report.show()
    return int(arguments.verify and any(report.defect(found) and not found.is_unfinished for found in report.all))


class _Report:
    """Reads and prints the report about a run, or about one checkpoint."""

    def __init__(self, path: str, *, reads: bool, reads_all: bool, shows_all: bool) -> None:
        self.contents, self._is_run = _find_checkpoints(path)
        self.all = list(self.contents.checkpoints)
        self.newest, self.restore_target = self.contents.newest, self.contents.restore_target
        self._read: dict[str, list[InspectedLeaf]] = {}
        self._reads, self._reads_all, self._all = reads, reads_all, shows_all
        for found in [each for each in self._candidates() if reads]:
            try:
                self._read[found.path] = list(read(found))
            except NotFoundError:  # The training removed it in the meantime.
                self.all.remove(found)
                if not self._candidates():
                    raise
                continue
            if not reads_all and not self.defect(found):
                break
        valid = [found for found in self._candidates() if not self.defect(found)]
        self.inspected = next(iter([*valid, *self._candidates()]), None)

    def _candidates(self) -> list[FoundCheckpoint]:
        """Returns the complete checkpoints; the first is the newest."""
        complete = [found for found in self.all if found.manifest is not None]
        return sorted(complete, key=lambda found: found is not self.newest)

    def defect(self, found: FoundCheckpoint) -> str:
        """Returns the known defect of a checkpoint; empty if there is none."""
        broken = [variable for variable in self._read.get(found.path, ()) if variable.defect]
        if found.defect or not broken:
            return found.defect
        more = f" and {units.format_count(len(broken) - 1, 'other variable')}" if broken[1:] else ""
        return f"{broken[0].leaf.name}{more} cannot be read: {broken[0].defect}"

    def variables(self, found: FoundCheckpoint) -> list[InspectedLeaf]:
        """Returns the variables of a checkpoint, with values if they were read."""
        assert found.manifest is not None
        return self._read.get(found.path) or [InspectedLeaf(leaf) for leaf in found.manifest.leaves.values()]

    def show(self) -> None:
        for line in self._about():
            output.print_lines(line)
        if self.all:
            output.print_lines("")
            rows = [self._row(found) for found in self.all]
            styles = ["dim" if found.is_unfinished else "red" if self.defect(found) else "" for found in self.all]
            output.print_table(["checkpoint", ">step", ">age", ">size", "saved from", "state"], rows, styles=styles)
        for found in self.all:
            if (defect := self.defect(found)) and not found.is_unfinished:
                is_broken = "" if inspection.is_permission_denied(defect) else " is broken"
                output.print_lines("", f"{found.name}{is_broken}: {defect}.")
        if self.inspected is not None:
            variables = self.variables(self.inspected)
            nbytes = sum(leaves.nbytes(variable.leaf) for variable in variables)
            of_hooks = sum(each.leaf.name.startswith(HOOK_STATES) for each in variables)
            what = units.format_count(len(variables) - of_hooks, "variable")
            more = f" and {units.format_count(of_hooks, 'value')} of hooks" if of_hooks else ""
            output.print_lines("", f"{self.inspected.name} holds {what}{more}, {units.format_bytes(nbytes)}:", "")
            heads = ["variable", "shape", "dtype", ">size", "pieces", "norm, or = value"]
            shown = [
                each for each in variables if self._all or each.defect or not each.leaf.name.startswith(HOOK_STATES)
            ]
            shown.sort(key=lambda each: each.leaf.name != "global_step")  # Before the many rows of the optimizer.
            styles = ["red" if variable.defect else "" for variable in shown]
            output.print_table(heads, [_cells(variable, self._reads) for variable in shown], styles=styles)
            if left := len(variables) - len(shown):
                output.print_lines(f"--all shows the {units.format_count(left, 'value')} of hooks")

        if self._reads_all:
            broken = sum(1 for found in self.all if not found.is_unfinished and self.defect(found))
            output.print_lines(
                "", f"Read and compared: {units.format_count(len(self._read), 'checkpoint')}. Broken: {broken}."
            )

    def _about(self) -> Iterator[str]:
        contents, due, inspected = self.contents, self.restore_target, self.inspected
        if not self._is_run:
            yield self.all[0].path
            return
        complete = units.format_count(sum(found.manifest is not None for found in self.all), "complete checkpoint")
        if due is None:
            yield f"{contents.directory}: {complete}."
        elif not self.defect(due):
            yield f"{contents.directory}: {complete}, the newest is {due.name}."
        elif inspected is None or self.defect(inspected):
            yield f"{contents.directory}: {complete}{'' if inspected is None else ', but none can be read'}."
            yield f"A training stops at {due.name}, which {_is_broken(self.defect(due))}."
        else:
            yield (
                f"{contents.directory}: {complete}. The newest, {due.name}, {_is_broken(self.defect(due))}; "
                f"the newest that can be read is {inspected.name}."
            )
            unless = (
                "" if inspection.is_permission_denied(self.defect(due)) else ', unless it has restore="latest-valid"'
            )
            yield f"A training stops at {due.name}{unless}."
        for note in contents.notes:
            yield f"Note: {note}."
        if contents.writer is not None:
            who, runs_now = contents.writer
            saves = {
                True: "saves there now",
                False: "saved there and was killed",
                None: "saves there, if it still runs",
            }
            yield f"Process {who.pid} on {who.host} {saves[runs_now]}."
        for process, found in account.read(contents.directory).items():
            yield f"Account{f' of process {process}' if process else ''}: {account_table.headline(found)}"

    def _row(self, found: FoundCheckpoint) -> list[str]:
        step = "" if found.step is None else str(found.step)
        age = units.format_duration(clock.time() - found.timestamp)
        return [found.name, step, age, units.format_bytes(found.nbytes), _devices(found), self._state(found)]

    def _state(self, found: FoundCheckpoint) -> str:
        if defect := self.defect(found):
            return (
                defect
                if found.is_unfinished
                else "cannot be read"
                if inspection.is_permission_denied(defect)
                else "broken"
            )
        state = self.contents.state
        marks = []
        if found is self.restore_target:
            marks = ["newest"]
        elif found is self.inspected and self._is_run:
            marks = ["newest that can be read"]
        if state is not None:
            marks += ["best"] * (found.path == state.best) + ["last good"] * (found.path == state.last_good)
        if found.manifest is not None and found.manifest.extra:
            marks.append("of a failed training")
        return ", ".join(marks) or "complete"

    def to_json(self) -> dict[str, Any]:
        inspected, state, writer = self.inspected, self.contents.state, self.contents.writer
        return {
            "directory": self.contents.directory,
            "newest": self.newest and self.newest.name,
            "best": state and state.best and os.path.basename(state.best),
            "last_good": state and state.last_good and os.path.basename(state.last_good),
            "max_to_keep": state and state.max_to_keep,
            "note": "; ".join(self.contents.notes),
            "writer": writer and {"process": writer.owner.pid, "host": writer.owner.host, "runs": writer.is_running},
            "checkpoints": [self._checkpoint(found) for found in self.all],
            "inspected": inspected and inspected.name,
            "variables": [] if inspected is None else list(map(_variable, self.variables(inspected))),
        }

    def _checkpoint(self, found: FoundCheckpoint) -> dict[str, Any]:
        defect = self.defect(found)
        return {
            "name": found.name,
            "state": "unfinished" if found.is_unfinished else "broken" if defect else "complete",
            "why": defect,
            "read": found.path in self._read,
            "step": found.step,
            "time": found.timestamp,
            "age_secs": clock.time() - found.timestamp,
            "bytes": found.nbytes,
            "devices": list(found.manifest.devices) if found.manifest else [],
            "variables": len(found.manifest.leaves) if found.manifest else None,
        }


def read(found: FoundCheckpoint) -> Iterator[InspectedLeaf]:
    """Yields the variables of a complete checkpoint, with few of them in memory at a time."""
    assert found.manifest is not None
    each = found.manifest.leaves.values()
    for leaf, value in zip(each, inspection.read_values(found.path, each), strict=True):
        if isinstance(value, OpError):
            yield InspectedLeaf(leaf, defect=inspection.describe_error(value))
        elif leaf.kind == "key" or leaf.kind == "bytes":
            yield InspectedLeaf(leaf)
        elif leaf.kind in ("array", "numpy", "scalar"):
            array = np.asarray(value)
            yield InspectedLeaf(leaf, array_stats(array), array.item() if array.ndim == 0 else None)
        else:
            yield InspectedLeaf(leaf, value=value)


def _is_broken(defect: str) -> str:
    return "cannot be read" if inspection.is_permission_denied(defect) else "is broken"


def _find_checkpoints(path: str) -> tuple[DirectoryContents, bool]:
    """Returns the checkpoints of a run, or a single checkpoint; and whether the path is a run."""
    path = runs.normalize_path(path)
    if inspection.is_checkpoint(path):
        found = inspection.inspect_checkpoint(path)
        return DirectoryContents(os.path.dirname(found.path), (found,), None, None, None, "", (), None), False
    contents = inspection.inspect_directory(runs.run_directory(path))
    if not contents.checkpoints and not runs.is_run(path):
        raise runs.not_a_run_error(path, "it has no checkpoint and no event file")
    return contents, True


def _devices(found: FoundCheckpoint) -> str:
    if found.manifest is None:
        return ""
    return format_devices(found.manifest.devices) if found.manifest.devices else "1 device"


def _cells(variable: InspectedLeaf, was_read: bool) -> list[str]:
    leaf = variable.leaf
    last = (
        variable.defect
        if inspection.is_permission_denied(variable.defect)
        else f"broken: {variable.defect}"
        if variable.defect
        else _format_measured(variable)
        if was_read
        else ""
    )
    return [leaf.name, str(tuple(leaf.shape)), leaf.dtype, units.format_bytes(leaves.nbytes(leaf)), _pieces(leaf), last]


def _pieces(leaf: Leaf) -> str:
    if len(leaf.pieces) < 2:
        return "whole" if leaf.pieces else ""
    shapes = {tuple(stop - start for start, stop in zip(piece.start, piece.stop, strict=True)) for piece in leaf.pieces}
    return f"{len(leaf.pieces)} of {' or '.join(map(str, sorted(shapes)))}"


def _format_measured(variable: InspectedLeaf) -> str:
    if (position := _data_position(variable)) is not None:
        return f"= {position}"
    if variable.value is not None:
        text = units.format_number(variable.value) if isinstance(variable.value, float) else repr(variable.value)
        return f"= {text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]} ...'}"
    if variable.stats is None:
        return ""
    size = variable.stats
    bad = ", ".join(f"{count:,} {name}" for count, name in ((size.nans, "NaN"), (size.infs, "infinite")) if count)
    return f"{units.format_number(size.norm)} ({bad})" if bad else units.format_number(size.norm)


def _data_position(variable: InspectedLeaf) -> str | None:
    """Returns the position in `hookline.data.from_arrays` in words; None for other values."""
    if not variable.leaf.name.endswith("/state/json") or not isinstance(variable.value, str):
        return None
    try:
        position = json.loads(variable.value)
        of_epoch = f"{position['example']:,} of {units.format_count(position['of']['examples'], 'example')}"
        return f"{units.format_count(position['epoch'], 'epoch')} and {of_epoch}"
    except (ValueError, TypeError, LookupError):  # Another source has a state of its own.
        return None


def _variable(variable: InspectedLeaf) -> dict[str, Any]:
    leaf, size, value = variable.leaf, variable.stats, variable.value
    return {
        "name": leaf.name,
        "kind": leaf.kind,
        "shape": leaf.shape,
        "dtype": leaf.dtype,
        "bytes": leaves.nbytes(leaf),
        "pieces": [{"start": piece.start, "stop": piece.stop} for piece in leaf.pieces],
        "norm": None if size is None else size.norm,
        "nans": None if size is None else size.nans,
        "infs": None if size is None else size.infs,
        "value": str(value) if isinstance(value, complex) else value,
        "broken": variable.defect,
    }
