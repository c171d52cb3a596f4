"""SPMD jobs that are killed repeatedly; `make test-in-step-all` has twenty, and ten mishaps in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOBS, KILLS = os.environ.get("HOOKLINE_KILLED_JOBS", "2"), os.environ.get("HOOKLINE_KILLS", "4")


@pytest.mark.campaign
def test_often_killed_job_ends_with_the_bits_of_an_uninterrupted_one(tmp_path):
    command = ["-m", "tests.distributed.spmd_campaign", "--jobs", JOBS, "--kills", KILLS, "--keep", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("job ")]
    assert done.returncode == 0, f"{told}\n{done.stderr[-5000:]}"
    assert len(told) == int(JOBS)
    print(done.stdout[-2000:])
