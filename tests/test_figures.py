"""The figures in the README and the docs are those that were measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from tests import record

ROOT = Path(__file__).resolve().parents[1]


def test_readme_has_the_recorded_table():
    found = json.loads(record.RESULTS.read_text())
    assert record.table(found) in (ROOT / "README.md").read_text()


REPORT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/><testcase classname="a" name="skips"><skipped/></testcase>
<testcase classname="a" name="fails"><failure/></testcase><testcase classname="a" name="fails"><error/></testcase>
</testsuite></testsuites>"""


def test_report_of_a_test_run_becomes_a_row_that_shows_failures(tmp_path, monkeypatch):
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "README.md").write_text("Before.\n<!-- tested -->\n<!-- /tested -->\nAfter.\n")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "tested.json")
    record.main("test", str(tmp_path / "report.xml"))
    record.main("test-all", str(tmp_path / "report.xml"))
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("Before.\n<!-- tested -->\n| Python |")
    assert page.endswith("<!-- /tested -->\nAfter.\n")
    assert page.count("1 passed, **1 failed**") == 2
    assert record.row().partition(",")[0] in page


def test_readme_and_page_have_the_results_of_make_bench():
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
    assert (results / "bench.md").read_text().partition("\n\n")[0].strip() in page
    assert f"{found['rows']['Session.run']['micros']:.1f}" in page
    assert publish.of_interruptions() in (ROOT / "docs" / "reliability.md").read_text()
