"""The distribution is of hookline's version, and needs that very one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import hookline

TF1 = Path(__file__).parents[1]


def project(folder: Path):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_its_version_is_hooklines_and_it_needs_that_very_one():
    own, core = project(TF1), project(TF1.parent)
    assert own["version"] == hookline.__version__
    assert own["dependencies"] == [f"hookline=={hookline.__version__}"]
    for same in ("requires-python", "license", "classifiers"):
        assert own[same] == core[same]


def test_its_license_is_hooklines():
    assert (TF1 / "LICENSE").read_bytes() == (TF1.parent / "LICENSE").read_bytes()
