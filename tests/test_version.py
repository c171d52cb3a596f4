"""The version of the package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import hookline as hl

ROOT = Path(__file__).parents[1]


def test_package_and_checkpoints_have_the_version(tmp_path):
    assert [int(part) for part in hl.__version__.split(".")] >= [0, 1, 0]
    with hl.Session() as sess:
        sess.run(hl.Variable(1.0).initializer)
        path = hl.train.Saver().save(sess, str(tmp_path / "model.ckpt"))
    assert json.loads(Path(path, "hookline.json").read_text())["environment"]["hookline"] == hl.__version__


def test_installed_package_has_the_version_of_the_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert f'__version__ = "{hl.__version__}"' in source
