"""Calls of TensorFlow's functions, a line each, that both systems make (see scenarios/calls.py)."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"(?:(?P<named>[\w.]+): )?(?P<call>.*?tf\.(?P<called>[\w.]+)\(.*)")


def calls() -> dict[str, list[str]]:
    """Returns the calls by function: the first one of a line, or what stands before a colon at its beginning."""
    found: dict[str, list[str]] = {}
    for file in sorted(Path(__file__).parent.glob("*.txt")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                match = _LINE.fullmatch(line)
                if match is None:
                    raise ValueError(f"{file.name}: no function of tf is called in {line!r}.")
                found.setdefault(match["named"] or match["called"], []).append(match["call"])
    return found
