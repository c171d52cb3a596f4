from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("kills", "each", "least_aimed", "at_once"), [(2, 0, 1, 1), pytest.param(60, 1, 47, 2, marks=pytest.mark.campaign)]
)
def test_job_killed_anywhere_ends_like_an_uninterrupted_one(kills, each, least_aimed, at_once):
    words = ["--kills", str(kills), "--each", str(each), "--at-once", str(at_once)]
    run = subprocess.run(
        [sys.executable, "-m", "reliability.crash", *words],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    killed, aimed = map(int, re.findall(r"(\d+)  kills, (\d+) of them aimed", run.stdout)[0])
    assert killed >= kills
    assert aimed >= least_aimed
