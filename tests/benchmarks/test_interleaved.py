"""The error bars of the benchmarks."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def interleaved(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("interleaved")


def test_ratio_has_the_error_of_its_median(interleaved, monkeypatch):
    rng = np.random.default_rng(0)
    now = 0.0
    monkeypatch.setattr(interleaved, "time", SimpleNamespace(perf_counter=lambda: now))

    def contestant(mean):
        def run(steps):
            nonlocal now
            now += steps * mean * (1 + 0.05 * rng.normal())

        return run

    def measured(rounds):
        runs = {"bare": contestant(1.0), "hooked": contestant(1.1)}
        return interleaved.measure(runs, rounds=rounds, steps=100, references=("bare",))["hooked"]

    medians = [measured(100).ratios["bare"] for _ in range(400)]
    said = measured(4000).errors["bare"] * 40**0.5
    assert said == pytest.approx(np.std(medians), rel=0.15)
    assert np.mean(medians) == pytest.approx(1.1, abs=0.002)


def test_errors_are_shown_on_request(interleaved):
    row = interleaved.Row(1500.0, 20.0, {"bare": 1.0031}, {"bare": 4.6}, {"bare": 0.0024})
    assert "| 1.003 ± 0.002 |" in interleaved.table({"hooked": row}, errors=True)
    assert "| 1.00 |" in interleaved.table({"hooked": row})
