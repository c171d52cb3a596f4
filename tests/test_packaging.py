"""The metadata of the packages is true: dependencies, extras, the commands that install them, and links."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"hookline": ROOT, "hookline_tf1": ROOT / "tf1"}
# For those who work on hookline itself, or for its examples.
NOT_IN_ALL = {"bench", "browser", "demo", "dev", "docs", "examples", "install"}
DISTRIBUTION_OF = {
    "absl": "absl-py",
    "google_crc32c": "google-crc32c",
    "mlflow": "mlflow-skinny",
    "orbax": "orbax-checkpoint",
    "PIL": "pillow",
}
# JAX requires jaxlib, TensorBoard protobuf; in a notebook there is IPython.
COMES_ALONG = {"jaxlib", "google", "IPython"}


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


SETTINGS = settings(ROOT)
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]


def names(*requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in itertools.chain(*requirements)}


def published_readme(folder: Path) -> str:
    """Returns the README as the metadata of the distribution has it."""
    made = settings(folder)["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((folder / fragment["path"]).read_text(encoding="utf-8") for fragment in made["fragments"])
    for change in made["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    return text


@pytest.mark.parametrize("folder", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_links_of_the_published_readme_lead_to_files_of_the_repository(folder):
    address = settings(folder)["project"]["urls"]["Repository"]
    assert all(url.startswith(address) for url in settings(folder)["project"]["urls"].values())
    text = published_readme(folder)
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", text)
    into = re.compile(rf"{re.escape(address)}/(?:blob|raw)/main/([^#]+)(?:#.*)?")
    found = [(link or url, into.fullmatch(link or url)) for link, url in links]
    assert [link for link, match in found if not match and not link.startswith("https://")] == []
    paths = [match[1] for _, match in found if match]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_repository_has_one_address():
    addresses = {settings(folder)["project"]["urls"]["Repository"] for folder in DISTRIBUTIONS.values()}
    assert len(addresses) == 1
    assert addresses.pop() in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_source_distribution_contains_what_the_readme_links_to_and_make_needs():
    included = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    patterns = [name.removeprefix("/") for name in included]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    needed = re.findall(r"\]\((?![a-z]+:|#)([^)#]+)", readme) + re.findall(r"[\w./-]+\.(?:py|txt)\b", makefile)
    needed += [*SETTINGS["tool"]["pytest"]["ini_options"]["testpaths"], "conftest.py", "Makefile", "LICENSE"]
    tops = {path.partition("/")[0] for path in needed if (ROOT / path).exists()}
    assert {top for top in tops if not any(fnmatch.fnmatch(top, pattern) for pattern in patterns)} == set()


@pytest.mark.parametrize(("package", "folder"), DISTRIBUTIONS.items())
def test_each_imported_package_is_a_dependency_or_in_an_extra(package, folder):
    imported = set()
    for path in (folder / "src" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    imported -= {*sys.stdlib_module_names, *DISTRIBUTIONS, *COMES_ALONG}
    optional = EXTRAS.values() if folder == ROOT else [settings(folder)["project"]["dependencies"]]
    required = names(PROJECT["dependencies"], *optional)
    assert {DISTRIBUTION_OF.get(name, name) for name in imported} - required == set()


def test_extra_all_contains_each_extra_for_users():
    (everything,) = EXTRAS["all"]
    listed = re.fullmatch(r"hookline\[(.*)\]", everything)
    assert listed
    assert listed[1].split(",") == sorted(EXTRAS.keys() - NOT_IN_ALL - {"all"})


def test_commands_that_install_something_do_not_need_hookline_on_an_index():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.*"), *ROOT.glob("tf1/**/*.md")]
    sources = [path for folder in DISTRIBUTIONS.values() for path in (folder / "src").rglob("*.py")]
    formatted, in_clone = {"{package}", "{self.name}"}, {"", "tf1"}
    known = names(PROJECT["dependencies"], *EXTRAS.values()) - {"hookline"} | {"jupyterlab", "mlflow", "xprof"}
    wrong = []
    for path in [*pages, *sources]:
        for word in re.findall(r"pip install '?([\w./{}-]+(?:\[[\w,]+\])?)", path.read_text(encoding="utf-8")):
            name, _, extras = word.rstrip(".]").partition("[")
            is_known = name.strip("./") in known | formatted | in_clone
            if not is_known or not {*extras.split(",")} <= {*EXTRAS, ""}:
                wrong.append(f"{path.relative_to(ROOT)}: pip install {word}")
    assert wrong == []
