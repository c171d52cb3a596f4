"""Code on top of the core uses only its public modules, and no attribute of it with a leading underscore."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import hookline
import hookline.extend
import hookline_tf1

ROOT = Path(__file__).parents[2]
TF1 = hookline_tf1
PUBLIC = re.findall(r"^\| `(hookline[.\w]*)` \|", (ROOT / "docs/public.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = [TF1.__name__, *(found.name for found in pkgutil.walk_packages(TF1.__path__, f"{TF1.__name__}."))]


def is_own(module: str) -> bool:
    return module.startswith(TF1.__name__)


def is_core(module: str) -> bool:
    return module.partition(".")[0] == "hookline"


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_public_names_of_the_core(module):
    private = []
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            private += [alias.name for alias in node.names if is_core(alias.name) and alias.name not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and is_core(node.module or ""):
            names = importlib.import_module(node.module).__all__ if node.module in PUBLIC else []
            private += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names]
    assert private == []


@functools.cache
def attributes(kind: type) -> dict[str, set[str]]:
    """The private names that a class has in its own source: those it defines, and those it uses of itself."""
    try:
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))
    except (OSError, TypeError):
        return {"defined": set(), "used": set()}
    defined, used = {name for name in vars(kind) if is_private(name)} - {"_abc_impl", "_is_protocol"}, set()
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in ("self", "cls"):
            (defined if isinstance(node.ctx, ast.Store) else used).add(node.attr)
    return {"defined": defined, "used": used - defined}


def classes() -> list[type]:
    found = {}
    for module in MODULES:
        for value in vars(importlib.import_module(module)).values():
            if inspect.isclass(value) and is_own(value.__module__):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_classes_share_no_private_name_with_classes_of_the_core(kind):
    own = [base for base in kind.__mro__ if is_own(base.__module__)]
    theirs = set().union(*(attributes(base)["defined"] for base in kind.__mro__ if is_core(base.__module__)))
    mine = attributes(kind)
    assert mine["defined"] & theirs == set(), "defined in both"
    known = set().union(*(attributes(base)["defined"] for base in own))
    assert (mine["used"] - known) & theirs == set(), "used of the core"


@functools.cache
def names_in(own: bool) -> frozenset[str]:
    """The private attributes that the classes and modules of one side define."""
    paths = Path((TF1 if own else hookline).__file__).parent.rglob("*.py")
    found = set()
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(filter(is_private, found))


@pytest.mark.parametrize("module", MODULES)
def test_modules_read_no_private_attribute_of_the_core(module):
    read = {
        node.attr: node.lineno
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute) and is_private(node.attr)
    }
    of_core = {name: line for name, line in read.items() if name in names_in(own=False) - names_in(own=True)}
    assert of_core == {}


def test_extend_has_only_needed_names_with_their_purposes():
    imports = [node for module in MODULES for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom)]
    needed = {alias.name for node in imports if node.module == "hookline.extend" for alias in node.names}
    assert needed == set(hookline.extend.__all__)
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/extend.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert needed == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
