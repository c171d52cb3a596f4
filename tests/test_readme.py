"""The README's example runs as it stands, and what it says about running it again is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_example_trains_resumes_and_knows_when_it_is_done(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)

    first = run(code, tmp_path)
    again = run(code, tmp_path)
    further = run(code.replace("last_step=300", "last_step=400"), tmp_path)

    assert first.returncode == again.returncode == further.returncode == 0, first.stderr + again.stderr + further.stderr
    assert first.stdout.splitlines()[-1] == "[ 1. -2.  3.]"
    assert "loss = " in first.stderr
    assert "loss = " not in again.stderr, "nothing is left to do"
    assert "loss = " in further.stderr
    assert (tmp_path / "runs" / "line" / "model.ckpt-400").is_dir()


def test_every_linked_document_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
