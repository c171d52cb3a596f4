"""The README and every page in docs/: their blocks run unchanged, as those of hookline's pages do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import pages
from tests.test_public import is_public, used_names

TF1 = Path(__file__).parents[1]
PAGES = [TF1 / "README.md", *sorted((TF1 / "docs").glob("*.md"))]
SCRIPTS = TF1.parent / "conformance" / "scripts"


@pytest.fixture(autouse=True)
def graph():
    """None: a page begins where a script begins, with the default graph of the thread."""


@pytest.mark.parametrize("code", pages.blocks(PAGES, TF1))
def test_block_runs_and_prints_the_shown_output(code, request, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert pages.run(code, request.node.callspec.id, capsys) == []


def test_block_markers_are_known():
    assert pages.marks(PAGES) <= {"", "no-run", *(path.name for path in SCRIPTS.glob("*.py"))}


def test_every_linked_page_exists():
    assert {page.name: pages.broken_links(page) for page in PAGES} == {page.name: [] for page in PAGES}


def test_examples_use_only_public_names_of_hookline():
    code = [match["code"] for page in PAGES for match in pages.BLOCK.finditer(page.read_text(encoding="utf-8"))]
    used = {name for each in code for name in used_names(each) if re.match(r"hookline(\.|$)", name)}
    assert used
    assert {name for name in used if not is_public(name)} == set()


@pytest.mark.parametrize("script", ["mnist_tf1.py", "mnist_hookline.py"])
def test_page_shows_the_script_unchanged(script):
    page = (TF1 / "docs" / "coming-from-tf1.md").read_text(encoding="utf-8")
    shown = re.findall(rf"^```python {re.escape(script)}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    text = (SCRIPTS / script).read_text(encoding="utf-8")

    assert lines_of("".join(shown)) == lines_of(text)


def lines_of(text: str) -> list[str]:
    """Returns the lines that are not blank."""
    return [line for line in text.splitlines() if line]
