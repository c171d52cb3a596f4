"""Two records of one scenario, and where they do not agree."""

from __future__ import annotations

import json
import math
from typing import Any

from conformance.differences import Difference

TOLERANCE = 1e-5


def same(one: Any, other: Any) -> bool:
    """Returns whether two values are the same, floats up to a tolerance."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def disagreements(
    id: str, reference: dict[str, Any], record: dict[str, Any], listed: dict[str, Difference]
) -> list[str]:
    """Returns what is wrong with hookline's record of a scenario beside that of TensorFlow; nothing if all is well.

    Args:
        id: The scenario.
        reference: TensorFlow's record.
        record: hookline's.
        listed: What the differences.md of the suites list, by `id key`.
    """
    broken = [
        f"{name} failed: {found['failed']}"
        for name, found in (("tensorflow", reference), ("hookline", record))
        if "failed" in found
    ]
    if broken:
        return broken
    theirs, ours = reference["values"], record["values"]
    wrong = []
    for key in dict.fromkeys((*theirs, *ours)):
        one, other = theirs.get(key), ours.get(key)
        difference = listed.get(f"{id} {key}")
        if difference is None:
            if not same(one, other):
                wrong.append(f"not listed: | `{id}` `{key}` | `{json.dumps(one)}` | `{json.dumps(other)}` | |")
        elif same(one, other):
            wrong.append(f"{key}: listed in differences.md, but both give {one!r}")
        elif not same(difference.tensorflow, one):
            wrong.append(f"{key}: listed with {difference.tensorflow!r} for tensorflow, which gives {one!r}")
        elif not same(difference.hookline, other):
            wrong.append(f"{key}: listed with {difference.hookline!r} for hookline, which gives {other!r}")
    return wrong
