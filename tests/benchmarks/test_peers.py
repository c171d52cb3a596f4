"""The comparison with other libraries: the lines of code on its page are right, and hookline's program trains."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_shows_the_lines_of_code_of_each_library(peers):
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    row = re.search(r"^\| lines of the training \|(.*)\|$", page, re.MULTILINE)[1]
    assert [int(cell) for cell in row.split("|")] == [peers.lines_of(name) for name in peers.NAMES]


def test_without_the_environment_the_benchmark_is_skipped(tmp_path):
    command = [sys.executable, str(SCRIPT), "--python", str(tmp_path / "python")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("Skipped: the peers have no environment")


@pytest.mark.campaign
def test_hookline_program_trains(peers):
    accuracy, secs, cpu_secs = peers.measure(sys.executable, "hookline", 256)
    assert 0.5 < accuracy < 1
    assert secs > 0
    assert cpu_secs > 0
