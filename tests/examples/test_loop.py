"""The example of a plain train step trains, goes on where it stopped, and ends with its best model."""

from __future__ import annotations

from pathlib import Path

from tests import python

import hookline as hl

SCRIPT = Path(__file__).parents[2] / "examples" / "loop.py"

# In one process, for its imports take longer than its steps.
TWICE = """
import runpy, sys
script, logdir, *counts = sys.argv[1:]
sys.path[0] = script.rpartition("/")[0]
for steps in counts:
    sys.argv = [script, "--logdir", logdir, "--steps", steps]
    runpy.run_path(script, run_name="__main__")
    print("ended at", steps, file=sys.stderr)
"""


def test_example_trains_and_resumes(tmp_path, environment):
    done = python.run("-c", TWICE, SCRIPT, tmp_path, 20, 60, env=environment(), check=True)
    _, again = done.stderr.split("ended at 20\n")
    assert "model.ckpt-20" in again
    assert hl.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-60")
    assert float(done.stdout.rpartition(":")[2]) > 0.8
