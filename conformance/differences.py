"""What the docs/differences.md of suites list."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

# | reason | `value of TensorFlow` | `value of hookline` | `id` `key` |
_HEAD = "| hookline's way |"
_ROW = re.compile(r"^\| (.*?) \| `(.*?)` \| `(.*?)` \| `([a-z0-9_.]+)` `([^`]+)` \|$")


class Difference(NamedTuple):
    """One difference: what each system gives for a named value of a scenario, and why hookline's is another."""

    tensorflow: Any
    hookline: Any
    reason: str


def differences_of(suites: Iterable[str]) -> dict[str, Difference]:
    """Returns every difference that the documents of suites list, by `id key`."""
    found: dict[str, Difference] = {}
    for suite in suites:
        folder = Path(importlib.import_module(suite).__path__[0]).parent
        found |= read_differences(folder / "docs" / "differences.md")
    return found


def read_differences(document: Path) -> dict[str, Difference]:
    """Returns every difference that a document lists, by `id key`.

    Raises:
        ValueError: A row that cannot be read, is there twice or gives no reason.
    """
    found: dict[str, Difference] = {}
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith(_HEAD):
            match = _ROW.match(line)
            if match is None:
                raise ValueError(f"{document.name}: a row is | reason | `JSON` | `JSON` | `id` `key` |, got {line!r}.")
            reason, theirs, ours, id, key = match.groups()
            if f"{id} {key}" in found or not reason.strip():
                raise ValueError(f"{document.name}: {id} {key} is listed twice, or without a reason.")
            found[f"{id} {key}"] = Difference(json.loads(theirs), json.loads(ours), reason.strip())
    return found
