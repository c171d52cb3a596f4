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
        *("models", "data", "evaluation", "checkpoints", "divergence", "preemption", "use-your-model"),
        *("summaries", "sinks", "command", "hooks", "lifecycle", "graph", "extend"),
    ],
    "Scale": ["devices", "spmd", "distributed", "reliability", "performance"],
    "Reference": ["public"],
    "Internals": ["design", "decisions", "transactions"],
}
_MORE = {
    "Start": ["tf1/README", "tf1/docs/coming-from-tf1", "tf1/docs/differences", "tf1/docs/tf1-symbols"],
    "Internals": ["CONTRIBUTING", "CHANGELOG"],
}
_COPIED = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.*", "docs/bench/*.*", "tf1/README.md", "tf1/docs/*.md"]
_REPOSITORY = "https://repository.example/hookline/blob/main/"
# A link to something that is no page: a folder, a script.
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")

project, author, copyright = "hookline", "the authors of hookline", "the authors of hookline"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns = ["docs/bench/*.md"]
html_theme, html_title = "furo", "hookline"
html_show_sphinx = html_copy_source = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
nitpick_ignore_regex = [(".*", r"(?!hookline).*"), (".*", r"hookline\.\w+\.[\w.]*\.\w+")]
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
            target.write_text(_LINK.sub(lambda link, page=path: _link(link, page), path.read_text("utf-8")), "utf-8")
        else:
            shutil.copy(path, target)
    with (SOURCE / "README.md").open("a", encoding="utf-8") as file:
        for caption, pages in MAP.items():
            entries = [f"docs/{page}" for page in pages] + _MORE.get(caption, [])
            entries += [f"reference/{name}" for name in public_modules()] * (caption == "Reference")
            file.write("\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]))
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
        is_error = inspect.isclass(found) and issubclass(found, BaseException)
        kind = "exception" if is_error else "class" if inspect.isclass(found) else "function" if callable(found) else "data"
        parts += [f".. auto{kind}:: {name}.{exported}"]
        if kind in ("class", "exception"):
            skipped = "object, tuple, BaseException, Exception, Enum, Generic, dict, str"
            parts += ["   :members:"] + [f"   :inherited-members: {skipped}"] * (not is_error)
        parts.append("")
    return "\n".join(parts)


_NAMES = public_names()
_SHORT = {home.rpartition(".")[2]: home for home in reversed(_NAMES.values())}


def _with_references(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes names between backticks literals, and references where they are public; runs before napoleon."""

    def replace(match: re.Match[str]) -> str:
        text = match[1]
        home = _SHORT.get(text, text if text in _NAMES.values() else None)
        return f":py:obj:`{text} <{home}>`" if home else f"``{text}``"

    is_code = False
    for number, line in enumerate(lines):
        is_code = line.strip().startswith((">>>", "...")) or (is_code and bool(line.strip()))
        if not is_code:
            lines[number] = re.sub(r"(?<![`:])`([^`]+)`(?!`)", replace, line)


def _with_public_types(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Replaces the places of definition by public homes in a signature."""

    def replace(text: str | None) -> str | None:
        return None if text is None else re.sub(r"hookline(?:\.\w+)+", lambda found: _NAMES.get(found[0], found[0]), text)

    return replace(signature), replace(returns)


def setup(app: Any) -> None:
    """Prepares the pages; Sphinx calls it before it reads them."""
    sys.path.insert(0, str(ROOT / "src"))
    app.connect("autodoc-process-docstring", _with_references, priority=100)
    app.connect("autodoc-process-signature", _with_public_types)
    _prepare()
