from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_a_job_that_is_killed_anywhere_comes_to_the_end_it_would_have_come_to():
    run = subprocess.run(
        [sys.executable, "-m", "reliability.crash", "--kills", "60", "--each", "1"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    kills, aimed = map(int, re.findall(r"(\d+)  kills, (\d+) of them aimed", run.stdout)[0])
    assert kills >= 60
    assert aimed >= 49
