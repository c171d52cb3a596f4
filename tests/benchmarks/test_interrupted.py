"""The benchmark of interruptions: its schedule is the stated one, its driver counts right, and its table is current."""

from __future__ import annotations

import collections
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def interrupted(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("interrupted")


def test_schedule_is_the_same_each_time_and_mixes_signals_and_places(interrupted):
    planned = interrupted.schedule()
    assert planned == interrupted.schedule()
    assert planned != interrupted.schedule(seed=1)
    assert collections.Counter((each.place, each.signal) for each in planned) == {
        ("work", "SIGTERM"): 6,
        ("work", "SIGKILL"): 6,
        ("save", "SIGTERM"): 2,
        ("save", "SIGKILL"): 2,
        ("restore", "SIGTERM"): 2,
        ("restore", "SIGKILL"): 2,
    }
    assert planned[0].place != "restore"
    assert [each.at for each in planned] == sorted(each.at for each in planned)


@pytest.mark.campaign
def test_interrupted_program_ends_with_the_bits_of_one_left_alone_and_its_steps_are_counted(interrupted, tmp_path):
    planned = [interrupted.Interruption("SIGKILL", "work", 0.3), interrupted.Interruption("SIGTERM", "restore", 0.3)]
    alone = interrupted.run("hookline", sys.executable, tmp_path / "alone", 100, 20, [])
    hit = interrupted.run("hookline", sys.executable, tmp_path / "hit", 100, 20, planned, alone.save_secs)
    assert (alone.starts, alone.executed, alone.gave_up) == (1, 100, None)
    assert (hit.starts, hit.delivered, hit.gave_up) == (3, 2, None)
    assert hit.digest == alone.digest
    # The second start goes on from step 0 or 20, as far as the save of step 20 was when the kill came.
    assert 110 <= hit.executed < 200
    assert hit.points == alone.points == dict.fromkeys([1, *range(11, 100, 10)], 1)


def test_program_that_always_fails_is_given_up(interrupted, tmp_path):
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    found = interrupted.run("hookline", str(failing), tmp_path / "run", 100, 20, interrupted.schedule())
    assert (found.digest, found.delivered) == (None, 0)
    assert found.gave_up == "gave up after 4 starts, at step 0"


def test_table_has_the_lines_that_the_programs_have(interrupted):
    found = json.loads((ROOT / "docs" / "bench" / "interrupted.json").read_text())
    assert {name: row["lines"] for name, row in found["rows"].items()} == {
        name: interrupted.lines_of(name) for name in found["rows"]
    }
    assert (ROOT / "docs" / "bench" / "interrupted.md").read_text() == interrupted.page(found)
