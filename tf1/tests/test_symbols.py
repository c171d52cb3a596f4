"""The page of all symbols agrees with the code."""

from __future__ import annotations

from pathlib import Path

from tf1.conformance import symbols


def test_page_is_generated_from_the_code():
    page = (Path(__file__).parents[1] / "docs" / "tf1-symbols.md").read_text(encoding="utf-8")

    assert page == symbols.page(), "make it again: python -m tf1.conformance.symbols > tf1/docs/tf1-symbols.md"
