"""The measured table agrees with the model of docs/distributed.md, and the sentences there with the table."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "distributed.md").read_text(encoding="utf-8").split())
TABLE = (ROOT / "docs" / "bench" / "parameter_server.md").read_text(encoding="utf-8")


class Row(NamedTuple):
    size: str
    servers: int
    workers: int
    raw: float
    ours: float
    theirs: float
    says: float


def rows():
    found = []
    for line in re.findall(r"^\| (4 .B \|.*) \|$", TABLE, re.MULTILINE):
        size, servers, workers, raw, _, ours, theirs, *_, says = line.split(" | ")
        found.append(Row(size, int(servers), int(workers), float(raw), float(ours), float(theirs), float(says)))
    return found


def test_model_agrees_with_the_docs():
    spec = importlib.util.spec_from_file_location("parameter_server", ROOT / "benchmarks" / "parameter_server.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    median = {f"raw|{row.size}|0|{row.workers}": row.raw for row in rows()}
    for milliseconds, size in re.findall(
        r"([\d.]+) ms with (4 .B)", TABLE.split("A step whose server runs in the worker's process")[1]
    ):
        median[f"inside|{size}|0|1"] = 1000 / float(milliseconds)

    assert len(rows()) == 18
    for row in rows():
        # As the section on cost has it.
        c, values = 1 / median[f"raw|4 KB|0|{row.workers}"], 1 / row.raw
        a, trip = 1 / median["raw|4 KB|0|1"], 1 / median[f"raw|{row.size}|0|1"]
        inside = 1 / median[f"inside|{row.size}|0|1"]
        t = row.servers * c + (values - c) / row.servers
        R = (1 if row.servers == 1 else 2) * a + (trip - a) / row.servers
        expected = min(row.workers / (inside + R), 1 / (t + inside))
        assert benchmark.predicted(median, row.size, row.servers, row.workers) == pytest.approx(expected)
        assert row.says == pytest.approx(expected, rel=0.01)


def test_sentences_agree_with_the_table():
    ratios = [row.ours / row.theirs for row in rows()]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as TensorFlow's in every row" in PAGE
    two = [row.ours / row.theirs for row in rows() if row.servers == 2]
    assert f"with two servers, {min(two):.1f} to {max(two):.1f} times" in PAGE
    several = max(row.says / row.ours for row in rows() if row.size == "4 MB" and row.servers > 1)
    small = max(row.says / row.ours for row in rows() if row.size == "4 KB")
    assert f"optimistic by up to {several:.1f} times with several" in PAGE
    assert f"with 4 KB by up to {small:.0f} times" in PAGE
