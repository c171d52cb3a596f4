"""`make demo-workers`, as a user runs it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "digits_workers.py"


@pytest.mark.slow_distributed
def test_workers_start_one_after_the_other_and_reach_the_accuracy(tmp_path):
    command = [sys.executable, "-m", "hookline.cli", "launch", "--workers", "4", "--servers", "2"]
    command += [str(SCRIPT), "--logdir", str(tmp_path), "--steps", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    starts = {
        int(worker): int(step) for worker, step in re.findall(r"worker (\d) \| starts at .* step (\d+)", done.stdout)
    }
    for worker, step in starts.items():
        assert int(200 * math.log(worker + 2)) <= step <= 500
    assert sorted(starts) == [0, 1, 2]
    assert re.search(r"^chief    \| test accuracy: (0\.9[6789]|1\.00)$", done.stdout, re.MULTILINE)
    assert re.search(r"^chief    \| step 500/500  100%", done.stdout, re.MULTILINE)
    assert set(re.findall(r"^(.*)step \d+/500  ", done.stdout, re.MULTILINE)) <= {
        f"{task:8} | " for task in ("chief", "worker 0", "worker 1", "worker 2")
    }
    assert (tmp_path / "checkpoint").exists()
