"""The README's examples run as they stand, and what it says about running them again is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests import python

ROOT = Path(__file__).parents[1]


def run(code: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return python.run("-c", code, cwd=folder, env=env)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("number", "folder", "shown_on"), [(0, "step", "stderr"), (1, "line", "stdout")])
def test_an_example_trains_resumes_and_knows_when_it_is_done(number, folder, shown_on, tmp_path, environment):
    code = blocks()[number]
    first = run(code, tmp_path, environment())
    again = run(code, tmp_path, environment())
    further = run(code.replace("last_step=300", "last_step=400"), tmp_path, environment())

    assert first.returncode == again.returncode == further.returncode == 0, first.stderr + again.stderr + further.stderr
    assert first.stdout.splitlines()[-1] == "[ 1. -2.  3.]"
    shown = [re.findall(r"^step (\d+)/", getattr(each, shown_on), re.MULTILINE) for each in (first, again, further)]
    assert (shown[0][0], shown[0][-1]) == ("1", "300")
    assert shown[1] == [], "nothing is left to do"
    assert (shown[2][0], shown[2][-1]) == ("301", "400")
    assert (tmp_path / "runs" / folder / "model.ckpt-400").is_dir()


def test_the_three_lines_come_first():
    step, graph = blocks()
    added = step.partition("# Three lines of hookline:\n")[2].partition("\n\n")[0]
    assert len(added.splitlines()) == 3
    assert "MonitoredTrainingSession" in graph


def test_every_linked_document_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
