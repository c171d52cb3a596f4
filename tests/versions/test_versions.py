"""A run that was saved on the oldest packages goes on on the newest, and back: `make test-versions`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHER = os.environ.get("HOOKLINE_OTHER_PYTHON")

pytestmark = pytest.mark.skipif(OTHER is None, reason="make test-versions has the interpreters of two environments")


def train(python, folder, last_step):
    """Trains in an interpreter of its own, as users do: with all that its XLA optimizes."""
    env = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    command = [python, "-m", "tests.versions.job", folder, str(last_step)]
    done = subprocess.run(command, cwd=ROOT, env=env | {"PYTHONPATH": "src"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_resumes_on_the_other_version_with_the_same_result(tmp_path):
    assert OTHER is not None
    here, there = train(sys.executable, tmp_path / "here", 60), train(OTHER, tmp_path / "there", 60)
    if here["jax"] == there["jax"]:
        pytest.skip(f"both environments have JAX {here['jax']}")
    before = None
    for last_step, python in ((20, OTHER), (40, sys.executable), (60, OTHER)):
        relayed = train(python, tmp_path / "relayed", last_step)
        if before is not None:
            assert relayed["restored"] == before["state"]
        before = relayed
    if here["state"] == there["state"]:
        assert relayed["state"] == here["state"]
        told = "the bits are equal"
    else:
        apart = max(np.abs(np.subtract(other["params"], relayed["params"])).max() for other in (here, there))
        assert apart < 1e-5
        told = f"the parameters differ by {apart:.1e} at most: this XLA rounds otherwise"
    print(f"JAX {there['jax']}, {here['jax']} and {there['jax']} after one another, or one of them alone: {told}.")
