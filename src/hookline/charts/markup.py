"""Makes HTML and SVG. All text is escaped, because names and values in a run's files may be anybody's."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from hookline.log import escape_line

# Longer cells are wrapped.
_LONG = 40


class Html(str):
    """A string that is HTML already."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str | float) -> Html:
    """Returns an element. Attributes, and content that is not `Html`, are escaped; `class_` sets the class.

    Example:
        >>> element("p", "a < b", element("b", "bold"), class_="note")
        '<p class="note">a &lt; b<b>bold</b></p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(map(escape, content))}</{name}>")


def escape(text: str) -> Html:
    """Escapes a text, and its control characters; `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(escape_line(text)))


def join(parts: Iterable[str]) -> Html:
    """Escapes and concatenates texts."""
    return Html("".join(map(escape, parts)))


def table(label: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Returns a table with an accessible label; a leading ">" of a heading aligns the column on the right."""
    kinds = ["number" if head.startswith(">") else "text" for head in heads]
    top = [
        element("th", head.removeprefix(">"), scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True)
    ]
    body = [element("tr", *(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows]
    parts = [element("thead", element("tr", *top)), element("tbody", *body)]
    return element("div", element("table", *parts, aria_label=label), class_="wide")


def _cell(text: str, kind: str) -> Html:
    return element("td", text, class_="long" if len(text) > _LONG else kind)
