"""The figures in the docs for many SPMD processes: messages are counted, and seconds simulated."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spmd.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("spmd_scale", ROOT / "benchmarks" / "spmd_scale.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows():
    """Returns the rows of the table: the action, the number of processes, and the figures."""
    name, found = "", []
    for line in re.findall(r"^\|(.*\|.*\|.*\|.*\|.*)\|$", PAGE, re.MULTILINE):
        first, *numbers = [cell.strip().replace(",", "") for cell in line.split("|")]
        if len(numbers) == 5 and numbers[0].isdecimal():
            name = first or name
            found.append((name.split()[1], int(numbers[0]), *map(float, numbers[1:])))
    return found


@pytest.mark.parametrize(
    ("what", "count", "messages", "received", "sent", "secs"), [row for row in rows() if row[1] <= 100]
)
def test_table_agrees_with_the_simulation(scale, what, count, messages, received, sent, secs):
    network = scale.Network(0.5e-3, 0.3e-3, 30e-6, 1.25e9)
    took = network.run(getattr(scale, what)(network, count))
    assert network.messages == messages
    assert [network.bytes_in / 1e6, network.bytes_out / 1e6] == pytest.approx([received, sent], rel=0.3)
    assert took == pytest.approx(secs, rel=0.3)


def test_table_covers_a_thousand_processes():
    assert [row[0] for row in rows() if row[1] == 1000] == ["agreement", "comparison", "save"]
