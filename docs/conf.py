"""Configures the site that `make docs` builds with Sphinx: from these pages as they are, README, and the docstrings.

Pages are copied to `build/docs/source`, at the same relative paths, so that their links hold. The reference is made of
the `__all__` of the public modules.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "docs" / "source"
MAP = {
    "Start": ["loop", "from-a-plain-loop", "from-keras", "differences", "comparison", "notebooks"],
    "Guide": [
        *("models", "data", "evaluation", "checkpoints", "divergence", "replay", "preemption", "use-your-model"),
        *("summaries", "sinks", "command", "hooks", "lifecycle", "graph", "extend"),
    ],
    "Scale": ["devices", "spmd", "distributed", "reliability", "performance"],
    "Reference": ["public"],
    "Internals": ["design", "decisions", "transactions", "bench/*"],
}
_MORE = {
    "Start": ["tf1/README", "tf1/docs/coming-from-tf1", "tf1/docs/differences", "tf1/docs/tf1-symbols"],
    "Internals": ["CONTRIBUTING", "CHANGELOG"],
}
_COPIED = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.*",
    "docs/bench/*.*",
    "tf1/README.md",
    "tf1/docs/*.md",
]
_REPOSITORY = "https://repository.example/hookline/blob/main/"
# A link to something that is no page: a folder, a script.
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")

project, author, copyright = "hookline", "the authors of hookline", "the authors of hookline"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
# A type that two public modules have, such as `Preempted`, links to the first.
suppress_warnings = ["ref.python"]
html_theme, html_title = "furo", "hookline"
html_show_sphinx = html_copy_source = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar, napoleon_attr_annotations = True, False  # The types of attributes are in their texts.
# The objects of other packages, and the types in public signatures that are not public themselves.
_PRIVATE = (
    r"AnyGraph|ArraySource|BatchReader|Best|BoundHook|Comparison|Epoch|HasRawSession|HookFetches|HostOp|LocalStore|"
    r"LoopDescription|Op|PeerClient|PendingSave|ProcessTree|ReadRequest|ReadResult|Series|StateValues|Status|StoreTarget|"
    r"SummaryTap|T|TapProvider|Transport|UseDefault|WriterScope|_HasSaver|_HasSummaryOp"
)
nitpick_ignore_regex = [(".*", r"(?!hookline).*"), (".*", rf"hookline\.[\w.]+\.({_PRIVATE})")]
pygments_style, pygments_dark_style = "friendly", "monokai"


def public_modules() -> list[str]:
    """Returns the public modules, from the table of the page about them."""
    table = (ROOT / "docs" / "public.md").read_text(encoding="utf-8").partition("## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)


def public_names() -> dict[str, str]:
    """Returns the public home of each object, such as "hookline.train.Loop", by the place of its definition."""
    homes: dict[str, str] = {}
    for name in public_modules():
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            found = getattr(module, exported)
            if hasattr(found, "__qualname__"):
                homes.setdefault(f"{found.__module__}.{found.__qualname__}", f"{name}.{exported}")
    return homes


def _prepare() -> None:
    """Copies the pages, and writes those of the reference."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in sorted(found for pattern in _COPIED for found in ROOT.glob(pattern)):
        target = SOURCE / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = _LINK.sub(lambda link, page=path: _link(link, page), path.read_text("utf-8"))
            target.write_text(text if text.startswith("# ") else f"# Figures: {path.stem}\n\n{text}", "utf-8")
        else:
            shutil.copy(path, target)
    with (SOURCE / "README.md").open("a", encoding="utf-8") as file:
        for caption, pages in MAP.items():
            entries = [f"docs/{page}" for page in pages] + _MORE.get(caption, [])
            entries += [f"reference/{name}" for name in public_modules()] * (caption == "Reference")
            file.write(
                "\n".join(["", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *entries, "```", ""])
            )
    (SOURCE / "reference").mkdir()
    for name in public_modules():
        (SOURCE / "reference" / f"{name}.rst").write_text(_reference(name), encoding="utf-8")


def _link(link: re.Match[str], page: Path) -> str:
    target = (page.parent / link[1]).resolve().relative_to(ROOT)
    copied = any(target.match(pattern) for pattern in _COPIED)
    return link[0] if copied else f"]({_REPOSITORY}{target}{link[2] or ''})"


def _reference(name: str) -> str:
    """Returns the page of a public module."""
    module = importlib.import_module(name)
    parts = [name, "=" * len(name), "", f".. automodule:: {name}", ""]
    for exported in getattr(module, "__all__", ()):
        found = getattr(module, exported)
        if inspect.ismodule(found):
            if f"{name}.{exported}" not in public_modules():  # Else it has its own page.
                head = [exported, "-" * len(exported), "", f".. automodule:: {found.__name__}"]
                parts += [*head, "   :members:", "   :no-index:", ""]
            continue
        kind = _directive(found)
        parts += [f".. auto{kind}:: {name}.{exported}"]
        if kind in ("class", "exception"):
            parts.append("   :members:")
        if kind == "class":
            parts.append("   :inherited-members: object, tuple, Enum, Generic, dict, str")
        if exported == "SingularMonitoredSession":  # Its base has it.
            parts.append("   :exclude-members: StepContext")
        parts.append("")
    return "\n".join(parts)


def _directive(found: Any) -> str:
    """Returns the kind of an object in the reference."""
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    return "function" if callable(found) else "data"


_NAMES = public_names()
_SHORT = {home.rpartition(".")[2]: home for home in reversed(_NAMES.values())}


def _with_references(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring: names between backticks, and tables; napoleon does the rest."""

    def replace(match: re.Match[str]) -> str:
        text = " ".join(match[1].split())
        home = _SHORT.get(text, text if text in _NAMES.values() else None)
        ends = "\\ " if match[2] else ""  # Before the s of a plural.
        return (f":py:obj:`{text} <{home}>`" if home else f"``{text}``") + ends + match[2]

    paragraphs = re.split(r"(\n\s*\n)", "\n".join(lines))
    for number, paragraph in enumerate(paragraphs):
        if not re.search(r"^\s*>>>", paragraph, re.MULTILINE):
            found = re.sub(r"(?<![`:])`([^`]+)`(?!`)(\w?)", replace, paragraph)
            paragraphs[number] = re.sub(r"(?:^ *\|.*\|$\n?)+", _table, found, flags=re.MULTILINE)
    lines[:] = "".join(paragraphs).split("\n")


def _table(found: re.Match[str]) -> str:
    """Makes a table of Markdown a table of reStructuredText."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in found[0].splitlines()]
    indent = " " * (len(found[0]) - len(found[0].lstrip(" ")))
    parts = ["", ".. list-table::", "   :header-rows: 1", ""]
    for row in rows[:1] + rows[2:]:
        parts += [f"   {'*' if not number else ' '} - {cell}" for number, cell in enumerate(row)]
    return "\n".join(part and f"{indent}{part}" for part in parts) + "\n"


def _with_public_types(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Replaces the places of definition by public homes in a signature."""

    def replace(text: str | None) -> str | None:
        return (
            None if text is None else re.sub(r"hookline(?:\.\w+)+", lambda found: _NAMES.get(found[0], found[0]), text)
        )

    return replace(signature), replace(returns)


def setup(app: Any) -> None:
    """Prepares the pages; Sphinx calls it before it reads them."""
    sys.path.insert(0, str(ROOT / "src"))
    app.connect("autodoc-process-docstring", _with_references, priority=100)
    app.connect("autodoc-process-signature", _with_public_types)
    _prepare()
