"""The figures in the README and the docs are those that were measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_readme_and_the_page_say_what_make_bench_has_found():
    spec = importlib.util.spec_from_file_location("publish", ROOT / "benchmarks" / "publish.py")
    assert spec is not None
    assert spec.loader is not None
    publish = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(publish)
    results = ROOT / "docs" / "bench"
    found = json.loads((results / "bench.json").read_text())
    assert publish.range_of_machines(found) in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "performance.md").read_text()
    assert publish.of_this_machine(found) in page
    for name in ("bench.md", "growth.md", "several_steps.md"):
        assert (results / name).read_text().strip() in page
    assert f"{found['rows']['Session.run']['micros']:.1f}" in page
