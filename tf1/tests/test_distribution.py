"""The distribution is of hookline's version, and needs that very one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import hookline
from hookline_tf1 import _version

TF1 = Path(__file__).parents[1]


def project(folder: Path):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_its_version_is_hooklines_and_it_needs_that_very_one():
    own, core = project(TF1), project(TF1.parent)
    assert hookline.__version__ == _version.VERSION
    assert own["dependencies"] == [f"hookline=={hookline.__version__}"]
    for same in ("requires-python", "license", "classifiers"):
        assert own[same] == core[same]


def test_its_license_is_hooklines():
    assert (TF1 / "LICENSE").read_bytes() == (TF1.parent / "LICENSE").read_bytes()


def test_another_hookline_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(hookline, "__version__", "9.9.9")
    with pytest.raises(ImportError, match=r"needs hookline .*, and found 9\.9\.9: .*pip install"):
        _version.check()


def test_the_source_of_hookline_does_not_hold_this_one():
    include = tomllib.loads((TF1.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = include["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [pattern for pattern in patterns if not pattern.startswith("/")] == []
