"""The example of a plain train step trains, goes on where it stopped, and ends with its best model."""

from __future__ import annotations

from pathlib import Path

from tests import python

import hookline as hl

SCRIPT = Path(__file__).parents[2] / "examples" / "loop.py"


def run(logdir, steps, env):
    return python.run(SCRIPT, "--logdir", logdir, "--steps", steps, env=env, check=True)


def test_it_trains_and_goes_on(tmp_path, environment):
    run(tmp_path, 20, environment())
    again = run(tmp_path, 60, environment())
    assert "model.ckpt-20" in again.stderr
    assert hl.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-60")
    assert float(again.stdout.rpartition(":")[2]) > 0.8
