"""The site of `make docs`: its map, and with HOOKLINE_SITE, the folder of a built one, its links and its reference."""

from __future__ import annotations

import html.parser
import importlib
import inspect
import os
import re
import runpy
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
CONF = runpy.run_path(str(ROOT / "docs" / "conf.py"))
SITE = Path(os.environ.get("HOOKLINE_SITE", ""))

built = pytest.mark.skipif(Path() == SITE, reason="the site is not built: make test-docs")


class Links(html.parser.HTMLParser):
    """Collects the links and anchors of a page, and what a browser loads for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "href") if tag in ("script", "link", "img") and name in given]


def test_each_page_has_its_place_on_the_map():
    placed = [page for pages in CONF["MAP"].values() for page in pages if "*" not in page]
    assert sorted(placed) == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


def test_type_is_shown_by_its_public_home():
    replace = CONF["_with_public_types"]
    signature = "(hook: hookline.hooks.base.SessionRunHook)"
    assert replace(None, "", "", None, None, signature, None) == ("(hook: hookline.train.SessionRunHook)", None)


def test_docstring_becomes_restructured_text():
    lines = ["Some `Loop`s, `a\nb`.", "", "    | a | b |", "    |---|---|", "    | 1 | `x` |", "", ">>> `code`"]
    CONF["_with_references"](None, "", "", None, None, lines)
    text = "\n".join(lines)
    assert ":py:obj:`Loop <hookline.train.Loop>`\\ s, ``a b``." in text
    assert (
        "    .. list-table::\n       :header-rows: 1\n\n       * - a\n         - b\n       * - 1\n         - ``x``"
        in text
    )
    assert text.endswith(">>> `code`")


@built
def test_each_link_of_the_site_leads_somewhere():
    pages = {page: Links(page) for page in SITE.rglob("*.html")}
    assert len(pages) > 40
    broken = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = pages[target].anchors if target in pages else {""}
            if not parts.scheme and not (target.exists() and unquote(parts.fragment) in anchors):
                broken.append((page.name, link))
    assert broken == []


@built
def test_the_site_loads_nothing_from_a_network():
    loaded = [link for page in SITE.rglob("*.html") for link in Links(page).loaded]
    styles = "".join(path.read_text(encoding="utf-8") for path in SITE.rglob("*.css"))
    found = loaded + re.findall(r"(?:url\(|@import)([^);]*)", styles)
    assert loaded
    assert [link for link in found if re.match(r"\W*(?:https?:)?//", str(link))] == []


@built
def test_the_reference_shows_public_names_by_their_public_homes():
    text = "".join(re.sub("<[^>]*>", "", page.read_text("utf-8")) for page in (SITE / "reference").glob("*.html"))
    inside = [place for place in CONF["_NAMES"] if place.rpartition(".")[0] not in CONF["public_modules"]()]
    assert [place for place in inside if re.search(rf"(?<![\w.]){re.escape(place)}(?![\w.])", text)] == []


@built
@pytest.mark.parametrize("module", CONF["public_modules"]())
def test_each_public_name_has_an_entry_and_is_found_by_the_search(module):
    anchors = Links(SITE / "reference" / f"{module}.html").anchors
    found = importlib.import_module(module)
    names = [name for name in getattr(found, "__all__", ()) if not inspect.ismodule(getattr(found, name))]
    assert [name for name in names if f"{module}.{name}" not in anchors] == []
    index = (SITE / "searchindex.js").read_text(encoding="utf-8")
    assert [name for name in names if name not in index] == []
