"""The benchmarks of saves and restores run, and write their pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("checkpoint", ["4"]),
        ("save_steps", ["hookline", "Orbax", "a copy to pinned memory", "a copy on the device"]),
    ],
)
def test_page_has_all_rows(tmp_path, name, rows):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--megabytes", "4", "--leaves", "4", "--rounds", "2"]
    subprocess.run([*command, "--results", str(tmp_path)], check=True, timeout=300, capture_output=True)
    page = (tmp_path / f"{name}.md").read_text()
    assert all(f"| {row} |" in page for row in rows)
