"""The three floors of the package, and forbidden calls of its modules, proved from the source."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import hookline_tf1

NAME = hookline_tf1.__name__
SRC = Path(hookline_tf1.__file__).parent
MODULES = {".".join(path.relative_to(SRC.parent).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@functools.cache
def imported_names(module: str) -> frozenset[str]:
    """Absolute names of everything imported anywhere in a module; `from a import b` gives `a.b`."""
    names = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import; write the absolute one"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def imported_modules(module: str) -> set[str]:
    """The modules of the package imported anywhere in a module, for type checking too."""
    found = set()
    for name in imported_names(module):
        while name.startswith(f"{NAME}."):
            if name in MODULES or f"{name}.__init__" in MODULES:
                found.add(name if name in MODULES else f"{name}.__init__")
                break
            name = name.rpartition(".")[0]
    return found - {module}


@pytest.mark.parametrize(("floor", "below"), [("_rules", ()), ("_machinery", ("_rules",))])
def test_imports_only_go_down(floor, below):
    """The rules of shapes know no machinery, and neither of them a name of TensorFlow's."""
    upward = {}
    for module in [name for name in MODULES if name.startswith(f"{NAME}.{floor}.")]:
        if others := {name.split(".")[1] for name in imported_modules(module)} - {floor, *below}:
            upward[module] = others
    assert upward == {}


def test_imports_are_not_circular():
    left = {module: imported_modules(module) for module in MODULES}
    while done := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in done:
            del left[module]
    assert sorted(left) == []


def test_no_module_reads_the_time_or_handles_signals_or_unpickles():
    forbidden = {"time", "datetime", "signal", "pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    used = {module: {name.partition(".")[0] for name in imported_names(module)} & forbidden for module in MODULES}
    assert {module: names for module, names in used.items() if names} == {}


def test_no_module_uses_private_names_of_jax():
    private = re.compile(r"(from|import) jax(lib|\._)|from jax import _|jax\.(_|lib\b)")
    assert [name for name, path in MODULES.items() if private.search(path.read_text(encoding="utf-8"))] == []


def test_every_module_takes_its_logger_from_hookline():
    """That is one below `hookline`, which `tf.logging` is."""
    texts = [path.read_text(encoding="utf-8") for path in MODULES.values()]
    found = {found for text in texts for found in re.findall(r"log\.get_logger\(.*", text)}
    assert found == {'log.get_logger("hookline.tf1")'}
