"""The public modules and names: docs/public.md lists them, they exist, and the docs show no others."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_signatures import DOCUMENTED

import hookline

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC_PAGE = (ROOT / "docs/public.md").read_text(encoding="utf-8")
PUBLIC = re.findall(r"^\| `(hookline[.\w]*)` \|", PUBLIC_PAGE, re.MULTILINE)

WITHOUT_EXAMPLE = {f"hookline.summary.{message}" for message in ("Event", "SessionLog", "Summary")}
"""The names that need no example, beside exceptions: the messages, whose classes Protobuf makes."""


def names_of(module: str) -> set[str]:
    found = importlib.import_module(module)
    return set(getattr(found, "__all__", None) or dir(found))


def examples() -> Iterator[tuple[str, str]]:
    """Yields the place and the code of each example in the docs."""
    for page in PAGES:
        for code in re.findall(
            r"^```python[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            yield page.name, code
    for script in sorted((ROOT / "examples").glob("*.py")):
        yield script.name, script.read_text(encoding="utf-8")
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield notebook.name, "".join(cell["source"])
    for module in PUBLIC:
        for name in ["__doc__", *sorted(names_of(module))]:
            value = getattr(importlib.import_module(module), name)
            of_class = vars(value).values() if inspect.isclass(value) else ()
            for text in [value, *map(inspect.getdoc, [value, *of_class])]:
                if isinstance(text, str):
                    code = "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) ?(.*)$", text, re.MULTILINE))
                    yield f"{module}.{name}", code


def used_names(code: str) -> set[str]:
    """Returns the dotted names of hookline in a piece of code: imports, and chains of their attributes."""
    used, homes = set(), {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                used.add(source + alias.name)
                homes[alias.asname or alias.name] = source + alias.name
        elif isinstance(node, ast.Attribute):
            used.add(ast.unparse(node))
    first = {name: name.partition(".")[0] for name in used}
    used = {homes.get(first[name], first[name]) + name.removeprefix(first[name]) for name in used}
    return {name for name in used if re.fullmatch(r"hookline[.\w]*", name)}


def is_public(name: str) -> bool:
    """Whether a dotted name is that of a public module, or begins with a public name of one."""
    parts = name.split(".")
    length = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in PUBLIC)
    return len(parts) == length or parts[length] in names_of(".".join(parts[:length]))


def test_page_lists_the_public_modules_of_the_package():
    assert len(PUBLIC) == len(set(PUBLIC))
    offered = {f"hookline.{name}" for name in hookline._MODULES}
    assert set(PUBLIC) == offered | {"hookline"}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_module_has_the_names_in_its_list(module):
    found = importlib.import_module(module)
    names = names_of(module)
    assert names
    assert [name for name in names if not hasattr(found, name)] == []
    assert {name for name in names if name.startswith("_")} <= {"__version__"}


def listed_names(text: str, heading: str) -> list[str]:
    """Returns the names in the list below a heading."""
    found = re.search(rf"{heading}:?\n\n(?:[^-\n].*\n\n)?((?:(?:- |  ).*\n)+)", text)
    return re.findall(r"`(\w+)`", found[1])


@pytest.mark.parametrize("text", [hookline.train.__doc__, PUBLIC_PAGE], ids=["docstring", "page"])
def test_each_name_of_train_is_listed_as_tensorflows_or_as_ours(text):
    theirs, ours = listed_names(text, "TensorFlow's names"), listed_names(text, "Hookline's own names")
    assert sorted(theirs + ours) == sorted(hookline.train.__all__)

    # The symbols of TensorFlow that hookline_tf1 has, and the table of signatures, which has those of tf.contrib.
    symbols = (ROOT / "tf1/docs/tf1-symbols.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `tf\.train\.(\w+)` \|", symbols, re.MULTILINE))
    known |= {name.split(".")[1] for name in DOCUMENTED if name.startswith("train.")}
    assert set(theirs) <= known
    assert known.isdisjoint(ours)


def test_package_has_its_modules_as_attributes():
    assert set(hookline.__all__) >= hookline._MODULES
    assert all(inspect.ismodule(getattr(hookline, name)) for name in hookline._MODULES)


def test_examples_use_only_public_names():
    private = {(place, name) for place, code in examples() for name in used_names(code) if not is_public(name)}
    assert private == set()


def test_public_names_have_an_example():
    missing = []
    for module in set(PUBLIC) - {"hookline.numpy"}:  # JAX documents its names.
        for name in names_of(module):
            value = getattr(importlib.import_module(module), name)
            is_error = module == "hookline.errors" and inspect.isclass(value) and issubclass(value, Exception)
            is_described = (inspect.isclass(value) or inspect.isroutine(value)) and not is_error
            if is_described and ">>>" not in (inspect.getdoc(value) or ""):
                missing.append(f"{module}.{name}")
    missing = sorted(set(missing) - WITHOUT_EXAMPLE)
    assert not missing, "\n".join(missing)


def test_pages_name_no_private_module():
    private = {module.name for module in pkgutil.iter_modules(hookline.__path__)} - hookline._MODULES
    named = {page.name: set(re.findall(r"\bhookline\.(\w+)", page.read_text(encoding="utf-8"))) for page in PAGES}
    named.pop("public.md")  # Names some as examples of private modules.
    assert {page: names & private for page, names in named.items() if names & private} == {}
