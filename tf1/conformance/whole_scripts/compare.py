"""What two plays of one script have in common: losses, variables, and what TensorBoard shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tf1.conformance.whole_scripts import runs

from hookline.testing import read_events

TOLERANCE = 2e-4
"""How far a number may be off, as a part of itself or, if it is smaller than one, as it is."""

HEAD = "{:24}{:>8}{:>10}{:>11}{:>8}{:>12}{:>10}  {}".format(
    "script", "values", "off by", "variables", "events", "tensorflow", "hookline", "the same"
)


class Result(NamedTuple):
    """What became of a script: its line of the table, and what is not the same."""

    row: str
    faults: list[str]


def played(script: Path, *, timed: bool = True) -> Result:
    """Plays a script on both systems and compares the records; a second play, of its own, measures the time."""
    records: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for system in ("hookline",) if script.stem in runs.OLD_NAMES else ("tensorflow", "hookline"):
        records[system] = runs.play(system, script)
        if timed:
            seconds[system] = runs.play(system, script, as_it_is=True).get("secs")
    ours = records["hookline"]
    if "tensorflow" in records:
        values, off, faults = compared(records["tensorflow"], ours)
    else:
        values, off = sum(map(len, ours.get("runs", ()))), None
        faults = [f"hookline: {last_line(ours['error'])}"] if ours.get("error") else []
    row = _row(script.stem, values, off, ours, seconds.get("tensorflow"), seconds.get("hookline"), faults)
    return Result(row, faults)


def compared(theirs: dict[str, Any], ours: dict[str, Any]) -> tuple[int, float, list[str]]:
    """Returns how many numbers were compared, the largest difference, and what is not the same."""
    faults = [f"{name}: {last_line(r['error'])}" for name, r in (("tensorflow", theirs), ("hookline", ours))
              if r.get("error")]  # fmt: skip
    if faults:
        return 0, float("nan"), faults
    if [len(run) for run in theirs["runs"]] != [len(run) for run in ours["runs"]]:
        faults.append(f"{len(theirs['runs'])} runs returned numbers on tensorflow, {len(ours['runs'])} on hookline")
    one, other = (np.array([number for run in record["runs"] for number in run]) for record in (theirs, ours))
    size = min(len(one), len(other))
    one, other = one[:size], other[:size]
    with np.errstate(invalid="ignore"):
        distances = np.abs(one - other) / np.maximum(np.abs(one), 1)
    distances = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0, distances)
    off = float(distances.max(initial=0))
    if not off <= TOLERANCE:
        first = int(np.argmax(~(distances <= TOLERANCE)))
        faults.append(f"value {first} of {size} is {one[first]:g} on tensorflow, {other[first]:g} on hookline")
    # TensorFlow counts the epochs of an input producer in a variable.
    theirs["variables"] = {n: s for n, s in theirs["variables"].items() if not n.endswith("/limit_epochs/epochs")}
    for what in ("variables", "trainable"):
        faults += _different(what, theirs[what], ours[what])
    faults += _different("events", shown(theirs["folder"] / "work"), shown(ours["folder"] / "work"))
    return size, off, faults


def shown(folder: Path) -> list[str]:
    """Returns the folder, tag and step of what is in the event files below a folder, but for measured speeds."""
    found = set()
    for place in {path.parent for path in folder.rglob("*tfevents*")}:
        for event in read_events(place):
            for value in event.summary.value:  # What is behind `staleness/` hookline adds for workers.
                if not value.tag.endswith("/sec") and not value.tag.startswith("staleness/"):
                    found.add(f"{place.relative_to(folder)} {value.tag} {event.step}")
    return sorted(found)


def _different(what: str, theirs: Any, ours: Any) -> list[str]:
    """Says what one of two has and the other has not."""
    if isinstance(theirs, dict):
        theirs, ours = ([f"{name} {shape}" for name, shape in sorted(both.items())] for both in (theirs, ours))
    missing, more = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
    if not missing and not more:
        return []
    return [f"{what}: only tensorflow has {missing[:4]}, only hookline {more[:4]}"]


def _row(name: str, values: int, off: Any, ours: Any, their_secs: Any, our_secs: Any, faults: list[str]) -> str:
    events = len(shown(ours["folder"] / "work"))
    difference, seconds = ("-" if off is None else f"{off:.1e}"), [
        "-" if secs is None else f"{secs:.1f} s" for secs in (their_secs, our_secs)
    ]  # fmt: skip
    variables = len(ours.get("variables", ()))
    verdict = "no" if faults else "yes"
    return f"{name:24}{values:8}{difference:>10}{variables:11}{events:8}{seconds[0]:>12}{seconds[1]:>10}  {verdict}"


def last_line(error: str) -> str:
    """Returns the last line of a traceback that names an error, cut to a length for tables."""
    lines = error.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (named or lines)[-1][:160]
