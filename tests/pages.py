"""Pages of the docs: the Python blocks that run unchanged, and the links."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```python[ \t]*(?P<mark>[^\n]*)\n(?P<code>.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_SAYS = re.compile(r"^\s*print\(.*\)  # (?P<said>.+)$", re.MULTILINE)


def blocks(pages: Iterable[Path], below: Path) -> list[pytest.ParameterSet]:
    """Returns the code of each block that runs, named by its page, as seen from a folder, and line."""
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            if not match["mark"]:
                found.append(pytest.param(match["code"], id=f"{page.relative_to(below)}:{line}"))
    return found


def run(code: str, name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Runs a block, and returns the lines in its comments that it does not print."""
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    return [said for said in _SAYS.findall(code) if said not in printed]


def marks(pages: Iterable[Path]) -> set[str]:
    """Returns the words after ```python at the beginnings of blocks."""
    return {match["mark"] for page in pages for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}


def broken_links(page: Path) -> list[str]:
    """Returns the links of a page to files that do not exist."""
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]
