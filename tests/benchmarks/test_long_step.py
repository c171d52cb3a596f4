"""For how long threads run in a benchmark."""

from __future__ import annotations

import importlib
import queue
import threading
from pathlib import Path

import pytest


@pytest.fixture
def long_step(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("long_step")


def test_device_is_idle_while_only_the_host_computes(long_step):
    if not long_step.tells_threads():
        pytest.skip("this system does not say for how long threads run")
    asked, answered = queue.SimpleQueue(), queue.SimpleQueue()

    def compute(steps):
        for _ in range(steps):
            sum(range(1000))

    def elsewhere(steps):
        asked.put(steps)
        answered.get(timeout=60)

    def device():
        while steps := asked.get():
            answered.put(compute(steps))

    threading.Thread(target=device, daemon=True).start()
    host_works, device_works = long_step.Watched(compute), long_step.Watched(elsewhere)
    try:
        host_works(10_000)
        device_works(10_000)
    finally:
        asked.put(0)
    assert device_works.idle[0] < 0.9 < host_works.idle[0]
    assert device_works.host[0] < host_works.host[0]
