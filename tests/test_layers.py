"""The layout of DESIGN.md section 1, proved from the source."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookline

SRC = Path(hookline.__file__).parent

# From the bottom up. A module imports only its own part of the package and the layers below; neighbours do not meet.
LAYERS = [
    {"log"},
    {"errors", "clock", "arguments", "paths", "redirection", "regular_file", "units", "version"},
    {"signals", "jax_internals"},
    {"sharding"},
    {"graph"},
    {"coordination"},
    {"numpy"},
    {"session"},
    {"summary", "checkpoint", "data", "charts"},
    {"sinks"},
    {"hooks"},
    {"monitored"},
    {"loop"},
    {"distributed"},
    {"testing", "cli"},
]
FACADES = {"__init__", "extend", "train"}

# Modules that a program loads only with the part that needs them.
NOT_LOADED_WITH_HOOKLINE = ["orbax", "tensorboard", "tensorflow", "flax", "equinox", "grain", "ray", "rich", "sklearn"]

RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
MODULES = {".".join(path.relative_to(SRC).with_suffix("").parts): path for path in sorted(SRC.rglob("*.py"))}
LAYERED = [name for name in MODULES if name not in FACADES]


def part_of(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@functools.cache
def imported_names(tree: ast.AST) -> frozenset[str]:
    """Absolute names of everything imported anywhere below a node; `from a import b` gives `a.b`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import; write the absolute one"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@functools.cache
def attributes(module: str) -> set[str]:
    """Returns the names after a dot anywhere in a module."""
    return {node.attr for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute)}


def imported_parts(tree: ast.AST) -> set[str]:
    """The parts of hookline imported anywhere below a node, such as `graph`."""
    dotted = (name.split(".") for name in imported_names(tree))
    return {(names[1] if len(names) > 1 else "__init__") for names in dotted if names[0] == "hookline"}


def without_type_checking(tree: ast.Module) -> ast.Module:
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    return ast.Module(kept, [])


def test_every_module_has_a_layer():
    assert {part_of(name) for name in LAYERED} <= RANK.keys()


def test_folders_are_small_with_unique_module_names_and_docstrings():
    """Folders have at most 14 modules with unique names, and a docstring that lists them."""
    folders = {}
    for name, path in MODULES.items():
        folders.setdefault(path.parent, []).append(name)
    assert {str(folder.relative_to(SRC)): len(names) for folder, names in folders.items() if len(names) > 14} == {}
    assert [str(folder.relative_to(SRC)) for folder in folders if not ast.get_docstring(tree_of_path(folder))] == []
    rooms = {}
    for name in MODULES:
        if not name.endswith("__init__"):
            rooms.setdefault((part_of(name), name.rpartition(".")[2]), []).append(name)
    assert [names for names in rooms.values() if len(names) > 1] == []


def test_init_docstrings_name_existing_modules():
    """In an `__init__` with only a docstring, names in backticks are modules beside it."""
    missing = {}
    for folder in {path.parent for path in MODULES.values()}:
        tree = tree_of_path(folder)
        if len(tree.body) == 1:
            named = set(re.findall(r"`(\w+)`", ast.get_docstring(tree) or ""))
            missing[folder.name] = {name for name in named if not (folder / f"{name}.py").exists()}
    assert missing
    assert {folder: names for folder, names in missing.items() if names} == {}


def tree_of_path(folder: Path) -> ast.Module:
    return ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))


def test_design_page_names_existing_modules_and_tests():
    root = Path(__file__).parent.parent
    page = (root / "docs" / "design.md").read_text(encoding="utf-8")
    there = {path.relative_to(SRC).as_posix() for path in MODULES.values()}
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", page))
    tests = {name for name in named if name.startswith(("tests/", "benchmarks/"))}
    assert [name for name in sorted(tests) if not (root / name).exists()] == []
    assert [name for name in sorted(named - tests) if not any(f"/{path}".endswith(f"/{name}") for path in there)] == []
    drawn = re.findall(r"^( *)(\w+)/ ", page, re.MULTILINE)
    folders = {path.parent.name for path in MODULES.values()}
    assert [name for _, name in drawn if name not in folders] == []


def test_imports_only_go_down():
    upward = {}
    for module in LAYERED:
        part = part_of(module)
        lower = {other for other, rank in RANK.items() if rank < RANK[part]}
        if others := imported_parts(tree_of(module)) - lower - {part}:
            upward[module] = others
    assert upward == {}


def imported_modules(module: str) -> set[str]:
    """The modules of hookline imported anywhere in a module, for type checking too."""
    found = set()
    for name in imported_names(tree_of(module)):
        while name.startswith("hookline."):
            part = name.removeprefix("hookline.")
            if part in MODULES or f"{part}.__init__" in MODULES:
                found.add(part if part in MODULES else f"{part}.__init__")
                break
            name = name.rpartition(".")[0]
    return found - {module}


def test_imports_are_not_circular():
    left = {module: imported_modules(module) for module in MODULES}
    while done := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in done:
            del left[module]
    assert sorted(left) == []


def test_contract_of_hooks_needs_only_graph_and_session():
    if "hooks.base" not in MODULES:
        pytest.skip("the hooks are not written yet")
    assert imported_parts(without_type_checking(tree_of("hooks.base"))) <= {"graph", "session", "errors", "log"}


@pytest.mark.parametrize("module", sorted(FACADES & MODULES.keys()))
def test_facades_only_re_export(module):
    """Imports, docstrings, `__all__` and other dunder constants, and a lazy `__getattr__`; nothing else.

    A block in which a Ctrl-C is held back may stand around imports.
    """
    nodes = without_type_checking(tree_of(module)).body
    for block in [node for node in nodes if isinstance(node, ast.With)]:
        assert [ast.unparse(item) for item in block.items] == ["defer_sigint()"], f"{module}.py: {ast.unparse(block)}"
        nodes[nodes.index(block) : nodes.index(block) + 1] = block.body
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names = [ast.unparse(target) for target in getattr(node, "targets", None) or [node.target]]
        elif isinstance(node, ast.FunctionDef):
            names = [node.name]
            assert node.name in ("__getattr__", "__dir__"), f"{module}.py defines {node.name}"
        else:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert is_docstring or isinstance(node, ast.Import | ast.ImportFrom), f"{module}.py: {ast.unparse(node)}"
            continue
        assert all(name.startswith("_") for name in names), f"{module}.py defines {names}"


def test_only_the_clock_reads_the_time():
    readers = [
        name for name in MODULES if {part_of(used) for used in imported_names(tree_of(name))} & {"time", "datetime"}
    ]
    assert readers == ["clock"]


def test_only_one_module_imports_orbax():
    users = [name for name in MODULES if any(part_of(used) == "orbax" for used in imported_names(tree_of(name)))]

    assert len(users) <= 1, users


def test_submodules_are_loaded_on_first_use_without_heavy_libraries():
    code = """
import sys, threading, hookline
assert "jax" not in sys.modules
hookline.Session
assert "jax" in sys.modules
assert not {"hookline.train", "hookline.data", "hookline.monitored", "hookline.checkpoint"} & set(sys.modules)
assert {"train", "data"} <= set(dir(hookline))
from hookline import Variable, summary
print(threading.active_count(), *{name.partition(".")[0] for name in sys.modules})
print(hookline.train.StopAtStepHook.__name__, hookline.data.iterator.__name__)
hookline.checkpoint.latest_checkpoint(".")
assert "orbax.checkpoint" not in sys.modules, "not before a checkpoint is written or read"
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    early, late = done.stdout.splitlines()
    threads, *loaded = early.split()
    assert not set(loaded) & set(NOT_LOADED_WITH_HOOKLINE)
    assert threads == "1"
    assert late.split() == ["StopAtStepHook", "iterator"]


def test_only_ray_unpickles():
    forbidden = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    used = {
        module: {part for name in imported_names(tree_of(module)) for part in name.split(".")} | attributes(module)
        for module in MODULES
    }
    assert {module: names & forbidden for module, names in used.items() if names & forbidden} == {}


def test_connections_never_unpickle_messages():
    """`Connection.recv` of the standard library does; `recv_bytes` does not."""
    users = [module for module in MODULES if any("multiprocessing" in name for name in imported_names(tree_of(module)))]
    used = {name for module in users for name in attributes(module)}
    assert users == ["distributed.connections"]
    assert used & {"recv", "recv_bytes"} == {"recv_bytes"}


def test_every_module_takes_its_logger_from_log_py():
    own = {name for name in LAYERED if "logging.getLogger(__name__)" in MODULES[name].read_text(encoding="utf-8")}
    assert own == set(), "log.of(__name__) escapes what a terminal would act on"
