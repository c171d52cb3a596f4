"""`hookline diff`: compares the variables of two checkpoints."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator

import jax
import numpy as np

from hookline import units
from hookline.checkpoint.directory.manifest import Leaf
from hookline.checkpoint.restoring import inspection
from hookline.checkpoint.restoring.inspection import FoundCheckpoint
from hookline.checkpoint.saving.contents import HOOK_STATES
from hookline.cli import output, runs
from hookline.cli.runs import Difference, difference
from hookline.errors import NotFoundError, OpError

_ARRAYS = ("array", "numpy", "scalar")
_LONGEST_FORM = 20
_ORDER = ("added", "gone", "reshaped", "unread", "changed", "same")


@dataclasses.dataclass(frozen=True)
class Change:
    """The comparison of one variable.

    Attributes:
        name: Its name.
        kind: "added", "gone", "reshaped", "changed", "same", or "unread" if one of the two could not be read.
        a: Its dtype and shape in A, in words, or its value if it is not an array; empty if A lacks it.
        b: The same in B.
        by: The difference, for arrays of the same shape.
        why: The reason why A or B could not be read.
    """

    name: str
    kind: str
    a: str = ""
    b: str = ""
    by: Difference | None = None
    why: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Prints the differences, and returns the exit status."""
    with runs.quiet_on_cpu():
        a, b, changes, notes = runs.retry_if_removed(lambda: _compared(arguments.a, arguments.b))
    if arguments.json:
        output.print_json(
            {"a": a.path, "b": b.path, "notes": notes, "variables": list(map(dataclasses.asdict, changes))}
        )
    else:
        _show(a, b, changes, notes, shows_all=arguments.all)
    return int(any(change.kind == "unread" for change in changes))


def _compared(one: str, other: str) -> tuple[FoundCheckpoint, FoundCheckpoint, list[Change], list[str]]:
    (a, of_a), (b, of_b) = _checkpoint(one), _checkpoint(other)
    changes = sorted(_changes(a, b), key=lambda change: _ORDER.index(change.kind))
    return a, b, changes, [f"{name}: {note}" for name, note in (("A", of_a), ("B", of_b)) if note]


def _checkpoint(path: str) -> tuple[FoundCheckpoint, str]:
    """Returns a checkpoint, or the newest complete one of a run, and a note on a newer one that was skipped."""
    path, note = runs.normalize_path(path), ""
    if inspection.is_checkpoint(path):
        found = inspection.inspect_checkpoint(path)
    else:
        contents = inspection.inspect_directory(runs.run_directory(path))
        if contents.newest is None:
            why = contents.anomaly or "it has no complete checkpoint"
            raise (
                NotFoundError.from_message(f"'{path}': {why}.")
                if runs.is_run(path)
                else runs.not_a_run_error(path, why)
            )
        found = contents.newest
        if contents.restore_target is not None and contents.restore_target is not found:
            note = f"{contents.restore_target.name} is skipped, because it is broken: {contents.restore_target.defect}."
    if found.manifest is None:
        raise NotFoundError.from_message(f"Checkpoint '{found.path}' is broken: {found.defect}.")
    return found, note


def _changes(a: FoundCheckpoint, b: FoundCheckpoint) -> Iterator[Change]:
    assert a.manifest is not None
    assert b.manifest is not None
    ours, theirs, alike = a.manifest.leaves, b.manifest.leaves, []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in theirs:
            yield Change(name, "gone", a=_describe_leaf(ours[name]))
        elif name not in ours:
            yield Change(name, "added", b=_describe_leaf(theirs[name]))
        elif ours[name].shape != theirs[name].shape or _is_array(ours[name]) != _is_array(theirs[name]):
            yield Change(name, "reshaped", _describe_leaf(ours[name]), _describe_leaf(theirs[name]))
        else:
            alike.append(name)
    of_a = inspection.read_values(a.path, [ours[name] for name in alike])
    of_b = inspection.read_values(b.path, [theirs[name] for name in alike])
    for name, one, other in zip(alike, of_a, of_b, strict=True):
        form = _describe_leaf(ours[name]), _describe_leaf(theirs[name])
        unreadable = [(at, value) for at, value in (("A", one), ("B", other)) if isinstance(value, OpError)]
        if unreadable:
            why = ", and ".join(_why(at, inspection.describe_error(value)) for at, value in unreadable)
            yield Change(name, "unread", *form, why=why)
        elif _is_array(ours[name]):
            by = difference(np.asarray(one), np.asarray(other))
            same = not by.elements and ours[name].dtype == theirs[name].dtype
            yield Change(name, "same" if same else "changed", *form, by=by)
        elif ours[name].kind == theirs[name].kind == "key":
            same = np.array_equal(jax.random.key_data(one), jax.random.key_data(other))
            yield Change(name, "same" if same else "changed", *form)
        else:
            same = type(one) is type(other) and one == other
            yield Change(name, "same" if same else "changed", repr(one), repr(other))


def _why(at: str, reason: str) -> str:
    return f"of {at} {reason}" if inspection.is_permission_denied(reason) else f"{at} is broken: {reason}"


def _is_array(leaf: Leaf) -> bool:
    return leaf.kind in _ARRAYS


def _describe_leaf(leaf: Leaf) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if leaf.shape else leaf.dtype


def _show(a: FoundCheckpoint, b: FoundCheckpoint, changes: list[Change], notes: list[str], *, shows_all: bool) -> None:
    same = sum(change.kind == "same" and (shows_all or not change.name.startswith(HOOK_STATES)) for change in changes)
    output.print_lines(f"A: {a.path}, step {a.step}", f"B: {b.path}, step {b.step}")
    for note in notes:
        output.print_lines(note)
    differ = [change for change in changes if change.kind != "same"]
    shown = [change for change in differ if shows_all or not change.name.startswith(HOOK_STATES)]
    if shown:
        output.print_lines("")
        heads = ["change", "variable", "A, or A → B", ">difference", ">relative", ">elements"]
        colours = {"added": "green", "gone": "red", "unread": "red", "reshaped": "yellow"}
        styles = [colours.get(change.kind, "") for change in shown]
        output.print_table(heads, map(_cells, shown), styles=styles, wraps="variable")
    output.print_lines("")
    if left := [change.name for change in differ if change not in shown]:
        of_triggers = sum(map(_is_of_trigger, left))
        values = units.format_count(len(left) - of_triggers, "value")
        verb = "differs" if len(left) - of_triggers == 1 else "differ"
        more = f"{of_triggers} of their triggers, such as clocks"
        if len(left) == of_triggers:
            output.print_lines(f"No value of hooks differs, only {more}; --all shows all.")
        else:
            output.print_lines(f"{values} of hooks {verb}{f', and {more}' * bool(of_triggers)}; --all shows all.")
    for why in dict.fromkeys(change.why for change in differ if change.why):
        unreadable = units.format_count(sum(change.why == why for change in differ), "variable")
        output.print_lines(f"{unreadable} could not be compared: {why}.")
    output.print_lines(f"{units.format_count(same, 'variable')} {'is' if same == 1 else 'are'} the same in both.")


def _is_of_trigger(name: str) -> bool:
    """Returns whether a value of a hook is of the phase of its trigger: its clock, its last firing."""
    return re.search("/triggers?/", name.partition("/state/")[0]) is not None


def _cells(change: Change) -> list[str]:
    by = ["", "", ""]
    if change.by is not None:
        found = change.by
        by = [
            units.format_number(found.largest),
            units.format_number(found.relative),
            f"{found.elements:,} of {found.total:,}",
        ]
    forms = dict.fromkeys(_shorten(form) for form in (change.a, change.b) if form)
    return [change.kind, change.name, " → ".join(forms), *by]


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_FORM else f"{text[:_LONGEST_FORM]} ..."
