"""Whole scripts: the players and the comparison. `make conformance-scripts` plays all of them on both systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tf1.conformance.whole_scripts import compare, runs, stream

HAS_TENSORFLOW = Path(runs.python_of("tensorflow")).exists()


@pytest.mark.parametrize(
    "script",
    [
        "before_1_0",
        *[pytest.param(name, marks=pytest.mark.campaign) for name in ("linear_regression", "generator_data")],
    ],
)
def test_script_runs_on_hookline_with_a_changed_import(script, monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "BUILD", tmp_path)
    record = runs.play("hookline", runs.SCRIPTS / f"{script}.py")

    assert record["error"] is None, record["said"]
    losses = [run[0] for run in record["runs"]]
    assert losses[-1] < losses[0]


@pytest.mark.campaign  # As `make conformance-scripts`, which plays all scripts.
@pytest.mark.skipif(not HAS_TENSORFLOW, reason="needs TensorFlow: make conformance-scripts sets it up")
def test_script_acts_the_same_on_both(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "BUILD", tmp_path)
    result = compare.played(runs.SCRIPTS / "vae.py", timed=False)

    assert result.faults == []


def record(folder: Path, **changes):
    folder.joinpath("work").mkdir(parents=True, exist_ok=True)
    given = {"runs": [[1.0], [0.5, 2.0]], "variables": {"w": [2]}, "trainable": ["w"], "error": None, "folder": folder}
    return given | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"runs": [[1.0], [0.5001, 2.0]]}, None),
        ({"runs": [[1.0], [0.51, 2.0]]}, "value 1 of 3 is 0.5 on tensorflow, 0.51 on hookline"),
        ({"runs": [[1.0], [float("nan"), 2.0]]}, "value 1 of 3 is 0.5 on tensorflow, nan on hookline"),
        ({"runs": [[1.0]]}, "2 runs returned numbers on tensorflow, 1 on hookline"),
        ({"variables": {"w": [3]}}, "variables: only tensorflow has ['w [2]'], only hookline ['w [3]']"),
        ({"trainable": []}, "trainable: only tensorflow has ['w'], only hookline []"),
        ({"error": "Traceback\nKeyError: 3\n"}, "hookline: KeyError: 3"),
    ],
)
def test_differences_are_reported(changes, fault, tmp_path):
    _, _, faults = compare.compared(record(tmp_path / "one"), record(tmp_path / "other", **changes))

    assert faults == ([] if fault is None else [fault])


def test_stream_is_the_same_for_the_same_seed():
    first = stream.drawn("truncated", 3, 1, (1000,))

    np.testing.assert_array_equal(first, stream.drawn("truncated", 3, 1, (1000,)))
    assert np.abs(first).max() <= 2
    assert not np.array_equal(first, stream.drawn("truncated", 3, 2, (1000,)))
    assert sorted(stream.drawn("permutation", 0, 0, (5,))) == [0, 1, 2, 3, 4]


def test_at_least_twenty_scripts_are_played():
    assert len(list(runs.SCRIPTS.glob("*.py"))) >= 20
    assert not any("hookline" in path.read_text(encoding="utf-8") for path in runs.SCRIPTS.glob("*.py"))
