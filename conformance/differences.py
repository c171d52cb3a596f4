"""What docs/differences.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "differences.md"

# | `id` `key` | `value of TensorFlow` | `value of hookline` | reason |
_ROW = re.compile(r"^\| `([a-z0-9_.]+)` `([^`]+)` \| `(.*?)` \| `(.*?)` \| (.*) \|$")


class Difference(NamedTuple):
    """One difference: what each system gives for a named value of a scenario, and why hookline's is another."""

    tensorflow: Any
    hookline: Any
    reason: str


def read_differences(document: Path = DOCUMENT) -> dict[str, Difference]:
    """Returns every difference that the document lists, by `id key`.

    Raises:
        ValueError: A row that cannot be read, is there twice or gives no reason.
    """
    found: dict[str, Difference] = {}
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            match = _ROW.match(line)
            if match is None:
                raise ValueError(f"{document.name}: a row is | `id` `key` | `JSON` | `JSON` | reason |, got {line!r}.")
            id, key, theirs, ours, reason = match.groups()
            if f"{id} {key}" in found or not reason.strip():
                raise ValueError(f"{document.name}: {id} {key} is listed twice, or without a reason.")
            found[f"{id} {key}"] = Difference(json.loads(theirs), json.loads(ours), reason.strip())
    return found
