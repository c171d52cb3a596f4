"""One training on TensorFlow and on hookline: both run, and train alike.

`mnist.json` has the output of the one on TensorFlow 2.21; `make test-all` reports where it is out of date.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import python

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "conformance" / "scripts"
TF_PYTHON = Path(os.environ.get("TF_PYTHON") or ROOT / ".venv-tf" / "bin" / "python")
RECORDED = json.loads((Path(__file__).parent / "mnist.json").read_text(encoding="utf-8"))


def on_hookline(logdir: Path, steps: int, env: dict[str, str]) -> dict[str, Any]:
    """Returns the losses and the accuracy that the script prints."""
    script = SCRIPTS / "mnist_hookline.py"
    return json.loads(python.run(script, "--logdir", logdir, "--steps", steps, env=env, check=True).stdout)


def on_tensorflow(logdir: Path, steps: int) -> dict[str, Any]:
    """Returns the losses and the accuracy that the other script prints."""
    command = [str(TF_PYTHON), str(SCRIPTS / "mnist_tf1.py"), "--logdir", str(logdir), "--steps", str(steps)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.campaign
def test_hookline_script_trains_evaluates_and_resumes(tmp_path, environment):
    first = on_hookline(tmp_path, 150, environment())
    further = on_hookline(tmp_path, 160, environment())

    assert len(first["losses"]) == 150
    assert np.mean(first["losses"][-10:]) < 0.5 < 2.0 < first["losses"][0]
    assert first["accuracy"] > 0.8
    assert len(further["losses"]) == 10
    assert max(further["losses"]) < 1.0


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert len(theirs["losses"]) == len(ours["losses"])
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=0, atol=1e-5)
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-5)


def test_hookline_script_gives_the_recorded_losses_of_tensorflow(tmp_path, environment):
    assert_same(on_hookline(tmp_path, len(RECORDED["losses"]), environment()), RECORDED)


@pytest.mark.campaign
@pytest.mark.skipif(not TF_PYTHON.exists(), reason="needs TensorFlow: make conformance sets it up")
def test_both_scripts_give_the_same_losses(tmp_path, environment):
    theirs = on_tensorflow(tmp_path / "tf", 200)

    assert len(theirs["losses"]) == 200
    assert_same(on_hookline(tmp_path / "hl", 200, environment()), theirs)
    np.testing.assert_allclose(theirs["losses"][: len(RECORDED["losses"])], RECORDED["losses"], rtol=0, atol=1e-5)
