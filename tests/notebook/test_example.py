"""The example notebook runs from its first cell to its last one, also where its training is interrupted and goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbclient: pip install nbclient ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "loop.ipynb"


def cells():
    found = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(found)
    return [cell for cell in found.cells if cell.cell_type == "code"]


def test_example_is_stored_without_outputs():
    assert all(not cell.outputs and cell.execution_count is None for cell in cells())


def test_example_learns_and_may_be_interrupted(notebook):
    *before, training, test = [cell.source for cell in cells()]
    for source in before:
        notebook.does(source)
    cell = notebook.run(training.replace("STEPS = 1000", "STEPS = 10**6"), interrupts=("step ",))
    assert cell.error == "Interrupted: The training was left in order."
    reached = int(re.search(r"stopped at step (\d+)>", notebook.does("loop").result)[1])
    notebook.does(training.replace("STEPS = 1000", f"STEPS = {reached + 1000}"))
    assert float(notebook.does(test).text.rpartition(" ")[2]) < 0.5
    notebook.does("del loop, params, optimizer")


@pytest.mark.campaign
def test_example_runs_unchanged(jupyter, tmp_path):
    with jupyter(tmp_path) as notebook:
        printed = [notebook.does(cell.source).text for cell in cells()]
    assert re.fullmatch(r"test error: 0\.\d{3}\n", printed[-1])
