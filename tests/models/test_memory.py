"""A large model is initialised, trained, saved and restored with at most one extra copy of it at any moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "large_model.py"
# A restore needs a saved checkpoint: the phases run in this order, each in a process of its own.
PHASES = ["initialise", "step", "save", "restore"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are measured on Linux")


@pytest.mark.campaign
@pytest.mark.parametrize("model", ["tables", "dense"])
def test_no_phase_holds_more_than_one_extra_copy_of_the_model(model):
    command = [sys.executable, str(SCRIPT), "--millions", "40", "--model", model, "--json", "--phases", *PHASES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {phase: figures[phase]["extra"] for phase in PHASES if figures[phase]["extra"] >= 1.2} == {}
    held = {phase: figures[phase]["held"] for phase in PHASES}
    assert held == pytest.approx({"initialise": 1, "step": 0, "save": 0, "restore": 1}, abs=0.2)
