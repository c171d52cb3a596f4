"""Every Python block of every page in docs/ runs as it stands, in a fresh graph and an empty directory.

A block that must not run starts with ```python no-run. Where a line prints, a comment after it has the output.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import pages

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))


@pytest.mark.parametrize("code", pages.blocks(PAGES, DOCS))
def test_block_runs_and_prints_the_shown_output(code, request, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert pages.run(code, request.node.callspec.id, capsys) == []


def test_hooks_page_begins_with_a_short_hook():
    page = (DOCS / "hooks.md").read_text(encoding="utf-8")
    first = page.partition("```python\n")[2].partition("```")[0]
    assert "on_trigger" in first
    assert len(first.splitlines()) <= 20


def test_block_markers_are_known():
    assert pages.marks(PAGES) <= {"", "no-run"}


@pytest.mark.parametrize("folder", [".", "docs", "examples"])
def test_examples_use_the_words_of_the_field(folder):
    """Params, grads, opt_state, loss_fn; slots are TensorFlow's and stay in prose."""
    for path in [path for kind in ("md", "py", "ipynb") for path in (DOCS.parent / folder).glob(f"*.{kind}")]:
        text = path.read_text(encoding="utf-8")
        other = re.findall(r"""\bslopes?\b|\bloss_of\b|["']slots["']""", text)
        assert other == [], f"{path.name} has {other}"


def test_page_gives_the_number_of_lines_before_and_after():
    text = (DOCS / "from-a-plain-loop.md").read_text(encoding="utf-8")
    loops = re.findall(r"^# The loop:\n(.*?)^# Its end", text, re.DOTALL | re.MULTILINE)
    before, after = (sum(bool(line.strip()) for line in loop.splitlines()) for loop in loops)
    assert f"are the loop: {before}, " in text
    assert (after, "the loop becomes five lines" in text) == (5, True)


def test_every_linked_page_exists():
    assert {page.name: pages.broken_links(page) for page in PAGES} == {page.name: [] for page in PAGES}


def test_front_end_of_the_page_has_the_stated_length():
    text = (DOCS / "extend.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    lines = sum(bool(line.strip()) for line in code.splitlines())
    assert lines <= int(re.search(r"front end of (\d+) lines", text)[1]) < lines + 10
