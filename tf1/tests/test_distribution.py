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


def test_version_equals_hooklines_and_requires_exactly_it():
    own, core = project(TF1), project(TF1.parent)
    assert hookline.__version__ == _version.VERSION
    assert f"hookline=={hookline.__version__}" in own["dependencies"]
    for same in ("requires-python", "license", "classifiers"):
        assert own[same] == core[same]


def test_license_equals_hooklines():
    assert (TF1 / "LICENSE").read_bytes() == (TF1.parent / "LICENSE").read_bytes()


def test_other_hookline_version_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(hookline, "__version__", "9.9.9")
    with pytest.raises(ImportError, match=r"needs hookline .*, and found 9\.9\.9: .*pip install"):
        _version.check()
