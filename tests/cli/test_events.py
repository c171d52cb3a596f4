"""`hookline events`."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import shutil

import pytest
from google.protobuf import json_format
from tests import python, summaries
from tests.checkpoint import hostile
from tests.terminal import Terminal

from hookline.cli import main

# A curve of any points, and a record with a wrong length.
from hookline.cli.output import sparkline
from hookline.extend import frame, read_records
from hookline.summary import FileWriter, SessionLog, Summary
from hookline.summary.records import masked_checksum
from hookline.testing import read_events


def points(capsys, *words):
    assert main(["events", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("what", ["a FIFO", "a socket", "a device", "a huge file"])
def test_other_file_is_named_and_skipped(tmp_path, capsys, what):
    written(tmp_path, values=[1, 2])
    place = tmp_path / "events.out.tfevents.0000000001.host.1"
    hostile.put(place, what)
    assert main(["events", "--json", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [point["value"] for point in json.loads(out)] == [1, 2]
    assert f"{place}: {'read 0 of' if what == 'a huge file' else f'it is {what}, not a file, and left out.'}" in err
    if what != "a huge file":
        with pytest.raises(ValueError, match=rf"read_events cannot read '.*': it is {what}"):
            read_events(str(tmp_path))


def test_changed_event_files_give_points_or_a_note(tmp_path, capsys):
    chance, folder = random.Random(5), tmp_path / "a"
    tensor = {"dtype": "DT_DOUBLE", "tensor_shape": {}, "double_val": [1e308]}
    scalars = {"plugin_data": {"plugin_name": "scalars"}}
    with FileWriter(str(folder)) as writer:
        for step in range(4):
            value = {"tag": "loss", "metadata": scalars, "tensor": tensor}
            writer.add_summary(json_format.ParseDict({"value": [value]}, Summary()), step)
    (path,) = folder.iterdir()
    records = list(read_records(io.BytesIO(path.read_bytes())))
    lies = (2**60).to_bytes(8, "little")
    assert len(points(capsys, folder)) == 4
    for turn in range(200):
        changed = bytearray(records[1 + turn % 4])
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(b"".join(map(frame, [*records, bytes(changed), records[-1]])))
        if turn == 0:
            path.write_bytes(frame(records[0]) + lies + masked_checksum(lies) + b"short")
        assert main(["events", str(folder)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_file_of_the_far_future_does_not_block_a_writers_name(tmp_path):
    (tmp_path / "events.out.tfevents.9999999999_999999.host.1").touch()
    for value in (1, 2):
        written(tmp_path, values=[value])
    assert len(os.listdir(tmp_path)) == 3


def written(folder, tag="loss", values=(), steps=None):
    with FileWriter(str(folder)) as writer:
        for step, value in zip(steps or range(len(values)), values, strict=True):
            writer.add_summary(summaries.scalar(tag, value), step)
    return folder


def test_table_has_a_line_for_each_scalar_and_run(shared_run, own_run, capsys):
    assert main(["events", str(shared_run), str(own_run)]) == 0
    out, err = capsys.readouterr()
    above = os.path.commonpath([shared_run, own_run])
    folder, _, head, *lines = [line.split() for line in out.splitlines()]
    assert folder == [f"{above}:"]
    assert head == ["scalar", "run", "points", "steps", "last", "least", "greatest", "curve"]
    rest = ["3", "1-5", "0.2", "0.2", "1", "█▂▁"]
    assert lines == [["loss", os.path.relpath(run, above), *rest] for run in (shared_run, own_run)]
    assert err == ""


def test_table_of_one_folder_has_its_path_once(shared_run, capsys, monkeypatch):
    monkeypatch.chdir(shared_run.parent)
    assert main(["events", shared_run.name]) == 0
    folder, _, head, line = capsys.readouterr().out.splitlines()
    assert folder == f"{shared_run.name}:"
    assert (head.split()[:2], line.split()[0]) == (["scalar", "points"], "loss")


def test_table_fits_the_terminal(shared_run, tmp_path, environment):
    written(tmp_path / "a-long-name-of-a-run", "gradients/of/the/decoder/norm", [12345.678, 0.0000123456])
    shutil.copytree(shared_run, tmp_path / "b")
    terminal = Terminal(columns=100)
    variables = {name: value for name, value in environment().items() if name != "COLUMNS"} | {"TERM": "xterm"}
    words = ["events", tmp_path / "a-long-name-of-a-run", tmp_path / "b"]
    with python.Python("-m", "hookline.cli", *words, stdout=terminal.file.fileno(), env=variables) as process:
        assert process.wait(60) == 0
    folder, head, *lines = [line.rstrip() for line in terminal.screen if line.strip()]
    assert folder == f"{tmp_path}:"
    assert max(map(len, [head, *lines])) <= 100
    assert "".join(line.split()[0] for line in lines[:-1]) == "gradients/of/the/decoder/norm"
    assert lines[-1].split()[:2] == ["loss", "b"]


def test_csv_and_json_have_every_point(shared_run, capsys):
    found = points(capsys, shared_run)
    assert [(point["step"], point["value"]) for point in found] == [
        (1, 1.0),
        (3, pytest.approx(1 / 3)),
        (5, pytest.approx(0.2)),
    ]
    assert main(["events", str(shared_run), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows == [{name: str(value) for name, value in point.items()} for point in found]


def test_subfolders_are_runs_and_patterns_filter(tmp_path, capsys):
    written(tmp_path, "loss", [1, 2])
    written(tmp_path / "eval", "eval/loss", [3])
    assert {(point["run"], point["tag"]) for point in points(capsys, tmp_path)} == {
        (str(tmp_path), "loss"), (str(tmp_path / "eval"), "eval/loss"),
    }  # fmt: skip
    assert {point["tag"] for point in points(capsys, tmp_path, "--tag", "eval/*")} == {"eval/loss"}
    assert len(points(capsys, tmp_path, "--tag", "eval/*", "--tag", "loss")) == 3
    assert main(["events", str(tmp_path), "--tag", "accuracy"]) == 1
    assert capsys.readouterr().err == "hookline events: no scalar is called accuracy. Found: eval/loss, loss.\n"


def test_repeated_steps_count_once(tmp_path, capsys):
    with FileWriter(str(tmp_path)) as writer:
        for step in range(5):
            writer.add_summary(summaries.scalar("loss", step), step)
    with FileWriter(str(tmp_path), filename_suffix=".z") as writer:
        writer.add_session_log(SessionLog(status=SessionLog.START), 3)
        writer.add_summary(summaries.scalar("loss", 30), 3)
    assert [(point["step"], point["value"]) for point in points(capsys, tmp_path)] == [(0, 0), (1, 1), (2, 2), (3, 30)]


def test_nan_and_infinities_are_shown(tmp_path, capsys):
    written(tmp_path, values=[1, math.nan, -math.inf, 2])
    assert [point["value"] for point in points(capsys, tmp_path)] == [1.0, "NaN", "-Infinity", 2.0]
    assert main(["events", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[-4:] == ["2", "1", "2", "▁xx█"]


@pytest.mark.parametrize("harm", ["torn", "damaged"])
def test_broken_file_is_shown_up_to_its_defect(own_run, capsys, harm):
    file = next(own_run.glob("events*"))
    data = file.read_bytes()
    if harm == "torn":
        file.write_bytes(data[:-5])
    else:
        place = data.rindex(b"loss")  # Of the last point.
        file.write_bytes(data[:place] + b"lost" + data[place + 4 :])
    assert main(["events", str(own_run), "--csv"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + {"torn": 3, "damaged": 2}[harm]
    assert err.startswith(f"hookline events: {file}: read ")
    assert "torn or damaged, or still being written.\n" in err


def test_no_scalars_is_an_error(tmp_path, capsys):
    written(tmp_path / "new")
    assert main(["events", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new'}: no scalars yet.\n"
    (tmp_path / "empty").mkdir()
    assert main(["events", str(tmp_path / "new"), str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().err == f"hookline events: '{tmp_path / 'empty'}' is empty.\n"


def test_sparkline_has_the_means_of_its_sections():
    rising = [(step, float(step)) for step in range(1000)]
    assert len(sparkline(rising)) == 20
    assert sorted(sparkline(rising)) == list(sparkline(rising))
    assert (sparkline(rising)[0], sparkline(rising)[-1]) == ("▁", "█")
    assert sparkline([(5, 1.0), (6, 1.0)]) == "▁▁"
    assert sparkline([(5, 1.0), (5, 3.0)]) == "▁"
    assert sparkline([]) == ""
