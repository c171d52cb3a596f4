"""The counts in the table of docs/design.md."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FIRST = '''"""A module
of two lines."""

# A comment.
LIMIT = 3  # Another one.
"""What the line before is."""

TEXT = """
a text

"""


def outer(values):
    """Has a docstring."""
    return [
        inner(value)

        for value in values
    ]


def inner(value):
    return max([value], key=lambda value: twice(value))


def unused():
    return [inner(1), outer(2)]


from house.room.second import twice
'''
FILES = {
    "first": FIRST,
    "room/second": "def twice(value):\n    return sum(part for part in (value, value))\n",
    "room/third": "\n",
    "room/deeper/fourth": "x = 1",
}


@pytest.fixture
def house(tmp_path, monkeypatch):
    folder = tmp_path / "house"
    for name, text in FILES.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "house"]:
        del sys.modules[name]


def test_code_is_counted_without_docstrings_comments_and_blank_lines(house):
    size = importlib.import_module("size")
    lines = {"first": 15, "room/second": 2, "room/third": 0, "room/deeper/fourth": 1}
    assert {name: size.lines_of_code(house / f"{name}.py") for name in lines} == lines
    assert size.counts(house) == {
        "lines": "35",
        "lines of code, without docstrings and comments": "18",
        "files": "4",
        "files in the largest folder": "2 (`house/room`)",
    }


def test_a_function_counts_once_with_its_lambdas_and_only_in_this_package(house):
    size_paths = importlib.import_module("size_paths")
    first = importlib.import_module("house.first")
    assert size_paths.called(lambda: first.outer([1, 2, 3]), str(house)) == (4, 2)


def test_table_of_this_checkout_has_the_rows_of_the_page(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "size.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    assert head == "| | now |"
    assert [row for row in rows[4:] if not re.search(r"\| [1-9]\d* in [1-9]\d* \|$", row)] == []
    page = (ROOT / "docs" / "design.md").read_text()
    names = [row.split(" | ")[0] for row in rows]
    assert [line.split(" | ")[0] for line in page.partition(head)[2].splitlines()[2 : 2 + len(rows)]] == names
    refused = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert refused.stderr.endswith(f"error: {tmp_path} is no checkout of hookline: it has no src/hookline.\n")
