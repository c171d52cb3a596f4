"""`hookline diff`: the variables of two checkpoints, compared."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from hookline import units
from hookline.checkpoint.directory.manifest import Leaf
from hookline.checkpoint.restoring import examine
from hookline.checkpoint.restoring.examine import Found
from hookline.cli import runs, shown
from hookline.cli.runs import Difference, difference
from hookline.errors import NotFoundError, OpError

_ARRAYS = ("array", "numpy", "scalar")
_ORDER = ("added", "gone", "reshaped", "unread", "changed", "same")


@dataclasses.dataclass(frozen=True)
class Change:
    """The comparison of one variable.

    Attributes:
        name: Its name.
        kind: "added", "gone", "reshaped", "changed", "same", or "unread" if one of the two is broken.
        a: Its shape and dtype in A, in words, or its value if it is no array; empty if A lacks it.
        b: The same for B.
        by: The difference of arrays of one shape.
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
    if not arguments.json:
        shown.require_rich()
    with runs.examined():
        a, b, changes, notes = runs.looked_again(lambda: _compared(arguments.a, arguments.b))
    if arguments.json:
        shown.as_json({"a": a.path, "b": b.path, "notes": notes, "variables": list(map(dataclasses.asdict, changes))})
    else:
        _show(a, b, changes, notes)
    return int(any(change.kind == "unread" for change in changes))


def _compared(one: str, other: str) -> tuple[Found, Found, list[Change], list[str]]:
    (a, of_a), (b, of_b) = _checkpoint(one), _checkpoint(other)
    changes = sorted(_changes(a, b), key=lambda change: _ORDER.index(change.kind))
    return a, b, changes, [f"{name}: {note}" for name, note in (("A", of_a), ("B", of_b)) if note]


def _checkpoint(path: str) -> tuple[Found, str]:
    """Returns a checkpoint, or the newest complete one of a run, and a note on a newer one that was skipped."""
    path, note = runs.normal(path), ""
    if examine.is_one(path):
        found = examine.one(path)
    else:
        contents = examine.contents(runs.folder(path))
        if contents.newest is None:
            why = contents.surprise or "it has no complete checkpoint"
            raise NotFoundError.from_message(f"'{path}': {why}.") if runs.is_run(path) else runs.no_run(path, why)
        found = contents.newest
        if contents.due is not None and contents.due is not found:
            note = f"{contents.due.name} is passed over, for it is broken: {contents.due.flaw}."
    if found.manifest is None:
        raise NotFoundError.from_message(f"Checkpoint '{found.path}' is broken: {found.flaw}.")
    return found, note


def _changes(a: Found, b: Found) -> Iterator[Change]:
    assert a.manifest is not None
    assert b.manifest is not None
    ours, theirs, alike = a.manifest.leaves, b.manifest.leaves, []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in theirs:
            yield Change(name, "gone", a=_form(ours[name]))
        elif name not in ours:
            yield Change(name, "added", b=_form(theirs[name]))
        elif ours[name].shape != theirs[name].shape or _is_array(ours[name]) != _is_array(theirs[name]):
            yield Change(name, "reshaped", _form(ours[name]), _form(theirs[name]))
        else:
            alike.append(name)
    of_a = examine.values(a.path, [ours[name] for name in alike])
    of_b = examine.values(b.path, [theirs[name] for name in alike])
    for name, one, other in zip(alike, of_a, of_b, strict=True):
        form = _form(ours[name]), _form(theirs[name])
        unread = [(at, value) for at, value in (("A", one), ("B", other)) if isinstance(value, OpError)]
        if unread:
            why = ", and ".join(_why(at, examine.reason(value)) for at, value in unread)
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
    return f"of {at} {reason}" if examine.is_denied(reason) else f"{at} is broken: {reason}"


def _is_array(leaf: Leaf) -> bool:
    return leaf.kind in _ARRAYS


def _form(leaf: Leaf) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if leaf.shape else leaf.dtype


def _show(a: Found, b: Found, changes: list[Change], notes: list[str]) -> None:
    same = sum(change.kind == "same" for change in changes)
    shown.say(f"A: {a.path}, step {a.step}", f"B: {b.path}, step {b.step}")
    for note in notes:
        shown.say(note)
    told = [change for change in changes if change.kind != "same"]
    if told:
        shown.say("")
        heads = ["change", "variable", "A", "B", ">largest difference", ">relative", ">elements"]
        colours = {"added": "green", "gone": "red", "unread": "red", "reshaped": "yellow"}
        shown.table(heads, map(_cells, told), styles=[colours.get(change.kind, "") for change in told])
        for why in dict.fromkeys(change.why for change in told if change.why):
            unread = units.count(sum(change.why == why for change in told), "variable")
            shown.say("", f"{unread} could not be compared, for {why}.")
    shown.say("", f"{units.count(same, 'variable')} {'is' if same == 1 else 'are'} the same in both.")


def _cells(change: Change) -> list[str]:
    by = ["", "", ""]
    if change.by is not None:
        found = change.by
        by = [shown.number(found.largest), shown.number(found.relative), f"{found.elements:,} of {found.total:,}"]
    return [change.kind, change.name, _short(change.a), _short(change.b), *by]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]} ..."
