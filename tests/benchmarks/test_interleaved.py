"""What the benchmarks say of their own noise, and of a device without work."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """The benchmarks import each other by their names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def test_a_ratio_comes_with_the_error_of_its_median(benchmarks, monkeypatch):
    import interleaved

    rng = np.random.default_rng(0)
    now = 0.0
    monkeypatch.setattr(interleaved.time, "perf_counter", lambda: now)

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


def test_three_decimals_are_shown_with_their_error(benchmarks):
    import interleaved

    row = interleaved.Row(1500.0, 20.0, {"bare": 1.0031}, {"bare": 4.6}, {"bare": 0.0024})
    assert "| 1.003 ± 0.002 |" in interleaved.table({"hooked": row}, decimals=3)
    assert "| 1.00 |" in interleaved.table({"hooked": row})


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not say what threads do")
def test_the_device_is_idle_while_only_the_host_computes(benchmarks):
    import long_step

    asked, answered = queue.SimpleQueue(), queue.SimpleQueue()

    def compute(steps):
        for _ in range(steps):
            sum(range(1000))

    def elsewhere(steps):
        asked.put(steps)
        answered.get()

    def device():
        while steps := asked.get():
            answered.put(compute(steps))

    thread = threading.Thread(target=device)
    thread.start()
    host_works, device_works = long_step.Watched(compute), long_step.Watched(elsewhere)
    for _ in range(3):
        host_works(20_000)
        device_works(20_000)
    asked.put(0)
    thread.join()
    assert device_works.idle < 0.9 < host_works.idle
