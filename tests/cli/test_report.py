"""`hookline report`: the page is parsed as a browser would, and shows what is in the files of a run."""

from __future__ import annotations

import html.parser
import math
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import summaries
from tests.checkpoint import hostile

# Pictures of any points, and any text in the page.
from hookline.charts import line_chart
from hookline.charts.markup import element, table
from hookline.checkpoint.restoring import inspection
from hookline.cli import main
from hookline.log import escape_line
from hookline.summary import FileWriter, SessionLog


class Page(html.parser.HTMLParser):
    """Reads a page: its text, its elements with attributes, its tables and figures by title."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        body = re.search(r"<body>.*</body>", self.source, re.DOTALL)
        assert body is not None
        root = ElementTree.fromstring(body[0])
        self.figures = {figure.findtext("figcaption"): figure for figure in root.iter("figure")}
        self.tables = {
            each.get("aria-label"): [["".join(cell.itertext()) for cell in row] for row in each.iter("tr")]
            for each in root.iter("table")
        }
        self.notes = ["".join(item.itertext()) for each in root.findall("section/ul") for item in each]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def legend(self, title: str) -> list[str]:
        return ["".join(item.itertext()) for item in self.figures[title].findall("ul/li")]


def report(capsys, folder) -> Page:
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr() == (f"Wrote {folder}/report.html. Open it in a browser.\n", "")
    return Page(folder / "report.html")


@pytest.fixture
def run(resumed_run, tmp_path):
    return shutil.copytree(resumed_run, tmp_path / "run")


def test_page_shows_curves_restart_best_and_tables(run, capsys):
    page = report(capsys, run)
    assert "It has finished." in page.text
    assert page.figures.keys() == {"loss", "global_step/sec", "examples/sec"}
    training, evaluation, best, restart, *_ = page.legend("loss")
    assert (training, evaluation, restart) == ("training", "eval", "restart")
    assert re.fullmatch(r"best \S+ at 40", best)
    assert page.legend("global_step/sec") == ["training", "restart"]
    values = {tuple(row[:2]): row for row in page.tables["Last values"]}
    assert values["loss", "training"][3] == "40"
    assert values["loss", "eval"][-1] == "10"
    assert [row[2] for row in page.tables["Starts"]] == ["from step", "0", page.tables["Starts"][2][2]]
    assert page.tables["Starts"][2][2] in ("16", "20")
    names = [row[0] for row in page.tables["Checkpoints"][1:]]
    assert names[0] == "model.ckpt-40"
    assert [row[-1] for row in page.tables["Checkpoints"][1:2]] == ["best"]
    assert page.tables["Hyperparameters"][1:] == [["note", "<b>bold</b>"], ["rate", "0.05"]]
    rows = dict(page.tables["Devices and versions"][1:])
    assert rows.keys() == {"devices", "hookline", "python", "jax", "device", "flags", "processes"}
    assert (rows["devices"], rows["device"]) == ("1 device", "cpu")
    assert page.notes == []


def test_page_needs_no_network_and_no_script(run, capsys):
    page = report(capsys, run)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "b"}
    assert not re.search(r"url\(|@import|https?:", page.source)
    assert "default-src 'none'" in page.source
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_page_has_titles_for_readers(run, capsys):
    page = report(capsys, run)
    for figure in page.figures.values():
        picture = figure.find("svg")
        assert picture is not None
        assert picture.get("role") == "img"
        assert re.search(r"training: \S+ at the last step, \d+\.", picture.findtext("title") or "")
    assert ("html", {"lang": "en"}) in page.elements


def test_report_leaves_the_run_as_it_was(run, capsys):
    before = inspection.inspect_directory(str(run))
    report(capsys, run)
    assert inspection.inspect_directory(str(run)) == before
    assert main(["clean", str(run), "--keep", "9"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_killed_run_is_described(killed_run, tmp_path, capsys):
    page = report(capsys, shutil.copytree(killed_run, tmp_path / "run"))
    assert "It was killed; it continues from its newest checkpoint" in page.text
    assert "restart" not in page.legend("loss")


def test_broken_checkpoint_and_event_file_become_notes(run, capsys):
    (run / "model.ckpt-40" / "hookline.json").write_text("{")
    hostile.put(run / "events.out.tfevents.0000000001.host.1", "a FIFO")
    (run / "events.out.tfevents.0000000002.host.1").symlink_to(run / "gone")
    torn = max((run / "eval").iterdir())
    torn.write_bytes(torn.read_bytes()[:-3])
    page = report(capsys, run)
    broken, fifo, gone, half = page.notes
    assert broken.startswith("model.ckpt-40 is broken: its hookline.json is damaged: ")
    assert fifo.endswith("it is a FIFO, not a file, and left out.")
    assert gone.endswith("it cannot be read, and is left out: No such file or directory.")
    assert half.endswith("The record there is torn or damaged, or still being written.")
    assert "Its newest checkpoint is broken." in page.text


def test_unreadable_checkpoints_leave_the_curves(own_run, capsys):
    state = own_run / "checkpoint"
    state.write_text(state.read_text().replace('"model_checkpoint_path": "', '"model_checkpoint_path": "/'))
    page = report(capsys, own_run)
    assert len(page.notes) == 1
    assert "which is outside of" in page.notes[0]
    assert "loss" in page.figures


def test_run_without_events_and_one_without_evaluation_have_a_page(own_run, capsys):
    page = report(capsys, own_run)
    assert page.legend("loss") == []
    assert "Hyperparameters" not in page.tables
    for file in own_run.glob("events*"):
        file.unlink()
    page = report(capsys, own_run)
    assert page.notes == ["There are no event files, so there are no curves."]
    assert (page.figures, len(page.tables["Checkpoints"])) == ({}, 4)


def test_nan_is_marked_and_noted(tmp_path, capsys):
    with FileWriter(str(tmp_path)) as writer:
        for step, value in enumerate([3.0, math.nan, math.inf, 1.0]):
            writer.add_summary(summaries.scalar("loss", value), step)
    page = report(capsys, tmp_path)
    assert page.notes == ["loss (training): 2 values are NaN or infinite, the first at step 1."]
    assert page.legend("loss") == ["training", "NaN or infinite"]
    (line,) = (path.get("d", "") for path in page.figures["loss"].iter("path") if path.get("class") == "line c0")
    assert re.fullmatch(r"M[\d.]+,[\d.]+M[\d.]+,[\d.]+", line), "A gap, not a line over it."


def test_long_run_keeps_its_extremes_in_a_small_page(tmp_path, capsys):
    with FileWriter(str(tmp_path)) as writer:
        for step in range(100_000):
            value = {77_777: 50.0, 33_333: -50.0}.get(step, math.sin(step))
            writer.add_summary(summaries.scalar("loss", value), step)
    page = report(capsys, tmp_path)
    assert len(page.source) < 60_000
    (path,) = (path.get("d") or "" for path in page.figures["loss"].iter("path") if "line" in (path.get("class") or ""))
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[ML]([^ML]+)", path)]
    assert 1000 <= len(points) <= 1010
    heights = sorted(y for _, y in points)
    assert heights[1] - heights[0] > 50  # Of the greatest value alone.
    assert heights[-1] - heights[-2] > 50


def test_many_scalars_have_a_limited_number_of_charts(tmp_path, capsys):
    with FileWriter(str(tmp_path)) as writer:
        for number in range(70):
            writer.add_summary(summaries.scalar(f"norm/{number}", number), 1)
    page = report(capsys, tmp_path)
    assert (len(page.figures), len(page.tables["Last values"])) == (60, 71)
    assert "10 more scalars are in the table of last values only." in page.text


def test_events_of_a_run_below_are_not_of_this_one(shared_run, own_run, capsys):
    shutil.copytree(shared_run, own_run / "more")
    assert report(capsys, own_run).legend("loss") == []


def test_file_may_be_chosen_and_errors_say_so(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path / "mine.html")]) == 0
    assert not (run / "report.html").exists()
    Page(tmp_path / "mine.html")
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    for words, why in [
        ([run, "--out", tmp_path / "none" / "a.html"], "cannot be written: No such file or directory. Choose another"),
        ([tmp_path / "empty"], "is empty."),
        ([tmp_path / "none"], "does not exist."),
        ([tmp_path], "is not a run: it has no checkpoint and no event file of its own. Did you mean"),
        ([run / "model.ckpt-40"], "is a checkpoint. Give the folder of its run."),
    ]:
        assert main(["report", *map(str, words)]) == 1
        assert why in capsys.readouterr().err


NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;",
    "</title></svg><b>",
    "a\x1b[2J\u202eb\n",
]


@pytest.mark.parametrize("name", NASTY)
def test_names_of_strangers_are_text(tmp_path, capsys, name):
    folder = tmp_path / "run"
    with FileWriter(str(folder)) as writer:
        writer.add_session_log(SessionLog(status=SessionLog.START), 1)
        writer.add_summary(summaries.scalar(name, 1), 1)
    with FileWriter(str(folder / name.replace("/", "|"))) as writer:
        writer.add_summary(summaries.scalar(name, 2), 1)
    before = report(capsys, folder)
    shown = name.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\n", r"\n")
    assert before.figures.keys() == {shown}
    assert not {tag for tag, _ in before.elements} & {"script", "img", "b"}
    assert "\x1b" not in before.source


@given(st.text(), st.text())
def test_any_text_stays_text(content, attribute):
    made = element("p", content, title=attribute)
    found = ElementTree.fromstring(made)
    assert (len(found), found.tag, set(found.attrib)) == (0, "p", {"title"})
    assert (found.text or "") == escape_line(content)
    ElementTree.fromstring(table(content, ["a", ">b"], [[content, attribute]]))


ANY_FLOAT = st.floats(width=64) | st.sampled_from([0.0, -0.0, 5e-324, 1.7e308, math.nan, math.inf, -math.inf])


@example([(0, 1.0), (1, 1.0 + 1e-12)], [])
@example([(0, 1e6), (1, 1e6 + 100)], [])
@example([(0, 1e16), (1, 1e16 + 2e11)], [])
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), ANY_FLOAT), min_size=1, max_size=30),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)
def test_any_points_make_a_picture_with_few_ticks(points, restarts):
    figure = ElementTree.fromstring(line_chart.line_chart("a", [line_chart.Curve("b", points)], restarts))
    assert 1 <= len([line for line in figure.iter("path") if line.get("class") == "grid"]) <= 7
    for anchor in ("end", "middle"):
        on_axis = [text.text for text in figure.iter("text") if text.get("style") == f"text-anchor:{anchor}"]
        assert len(set(on_axis)) == len(on_axis)
    drawn = " ".join(path.get("d", "") for path in figure.iter("path") if path.get("class") != "bad")
    assert re.fullmatch(r"[MLHV\d., ]*", drawn)
    assert all(float(position) <= 421 for position in re.findall(r"[\d.]+", drawn))


@given(st.lists(ANY_FLOAT, max_size=200), st.integers(4, 50))
def test_thinned_curve_keeps_extremes_and_order(values, most):
    points = list(enumerate(values))
    kept = line_chart.thin(points, most)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert len(kept) <= 1.5 * most + 3
    finite = [value for value in values if line_chart.is_finite(value)]
    if finite:
        values_kept = [value for _, value in kept if line_chart.is_finite(value)]
        assert (min(values_kept), max(values_kept)) == (min(finite), max(finite))
    assert any(not line_chart.is_finite(value) for _, value in kept) == (len(finite) < len(values))


def test_report_of_the_current_folder_has_its_name(run, capsys, monkeypatch):
    monkeypatch.chdir(run)
    assert main(["report", "."]) == 0
    assert capsys.readouterr().out == f"Wrote {os.path.join('.', 'report.html')}. Open it in a browser.\n"
    assert "<h1>run</h1>" in (run / "report.html").read_text()
