"""Csv and JsonLines: their contents, also after a crash."""

from __future__ import annotations

import math
import os

import pytest

from hookline import errors
from hookline.sinks import Csv, Histogram, JsonLines, Point, RunInfo

from .conftest import read_csv, read_json, scalar


def start(folder, step=0, **hparams):
    return RunInfo(os.fspath(folder), step, hparams, is_new=step == 0)


@pytest.fixture(params=[Csv, JsonLines])
def sink(request, tmp_path):
    """A closed sink whose file has steps 1 to 4."""
    sink = request.param()
    sink.open(start(tmp_path))
    sink.write([scalar(step) for step in (1, 2, 3, 4)])
    sink.close(failed=False)
    return sink


def steps(sink, folder):
    if isinstance(sink, Csv):
        return [step for step, *_ in read_csv(folder / "scalars.csv")]
    return [line["step"] for line in read_json(folder / "points.jsonl") if "tag" in line]


def path_of(sink, folder):
    return folder / sink.name


def test_infinity_and_nan_are_written_as_valid_csv_and_json(tmp_path):
    for sink in (Csv(), JsonLines()):
        sink.open(start(tmp_path, rate=math.inf, sizes=[1, math.nan]))
        sink.write([scalar(1, math.nan), scalar(2, math.inf), scalar(None, -math.inf, 'a "tag", of\ntwo lines')])
        sink.close(failed=False)
    table = (tmp_path / "scalars.csv").read_text().splitlines()
    assert table[:3] == ["step,tag,value,time", "1,loss,nan,1.000000", "2,loss,inf,1.000000"]
    assert table[3:] == [',"a ""tag"", of two lines",-inf,1.000000']
    first, *lines = read_json(tmp_path / "points.jsonl")
    assert first["hparams"] == {"rate": "Infinity", "sizes": [1, "NaN"]}
    assert [(line["step"], line["value"]) for line in lines] == [(1, "NaN"), (2, "Infinity"), (None, "-Infinity")]


def test_json_lines_hold_text_and_histograms(tmp_path):
    sink = JsonLines(tmp_path / "own.jsonl")
    sink.open(RunInfo(None, 0, {}, is_new=True))
    sink.write(
        [Point("text", "note", 3, 1.0, "a\nb"), Point("histogram", "w", 3, 1.0, Histogram(0.5, [1.0, 2.0], [3, 4]))]
    )
    sink.close(failed=False)
    assert read_json(tmp_path / "own.jsonl") == [
        {"step": 3, "tag": "note", "value": "a\nb", "time": 1.0, "kind": "text"},
        {
            "step": 3,
            "tag": "w",
            "value": {"least": 0.5, "limits": [1.0, 2.0], "counts": [3, 4]},
            "time": 1.0,
            "kind": "histogram",
        },
    ]


def test_lines_after_the_restored_step_are_removed(sink, tmp_path, said):
    sink.open(start(tmp_path, 2))
    sink.write([scalar(3)])
    sink.close(failed=False)
    assert steps(sink, tmp_path) == [1, 2, 3]
    (line,) = said()
    assert f"{type(sink).__name__} resumes after step 2: dropped 2 lines" in line


def test_file_with_nothing_to_remove_is_not_rewritten(sink, tmp_path):
    before = os.stat(path_of(sink, tmp_path)).st_ino
    sink.open(start(tmp_path, 4))
    sink.close(failed=False)
    assert os.stat(path_of(sink, tmp_path)).st_ino == before
    assert steps(sink, tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("left", [1, 5, 12])
def test_torn_last_line_is_removed(sink, tmp_path, left):
    path = path_of(sink, tmp_path)
    os.truncate(path, path.stat().st_size - len(path.read_bytes().splitlines()[-1]) + left - 1)
    sink.open(start(tmp_path, 4))
    sink.write([scalar(5)])
    sink.close(failed=False)
    assert steps(sink, tmp_path) == [1, 2, 3, 5]


def test_torn_first_line_is_removed(sink, tmp_path):
    os.truncate(path_of(sink, tmp_path), 7)
    sink.open(start(tmp_path, 4))
    sink.write([scalar(5)])
    sink.close(failed=False)
    assert steps(sink, tmp_path) == [5]


def test_interrupted_rewrite_leaves_the_old_file_or_the_new_one(sink, tmp_path, monkeypatch):
    def killed(old, new):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            sink.open(start(tmp_path, 2))
    assert steps(sink, tmp_path) == [1, 2, 3, 4]
    sink.open(start(tmp_path, 2))
    assert steps(sink, tmp_path) == [1, 2]
    assert sorted(os.listdir(tmp_path)) == [sink.name]
    sink.close(failed=False)


def test_hyperparameters_of_a_start_at_the_same_step_are_replaced(tmp_path):
    for rate in (0.1, 0.2):
        sink = JsonLines()
        sink.open(start(tmp_path, 2, rate=rate))
        sink.close(failed=False)
    assert [line["hparams"] for line in read_json(tmp_path / "points.jsonl")] == [{"rate": 0.2}]


@pytest.mark.parametrize("kind", [Csv, JsonLines])
def test_foreign_file_is_left_alone(kind, tmp_path):
    sink = kind()
    path = path_of(sink, tmp_path)
    path.write_text("epoch;loss\n1;0.5\n")
    with pytest.raises(errors.FailedPreconditionError, match=r"did not write .*begins with b'epoch;loss"):
        sink.open(start(tmp_path))
    assert path.read_text() == "epoch;loss\n1;0.5\n"


@pytest.mark.parametrize("kind", [Csv, JsonLines])
def test_without_a_folder_a_path_is_required(kind):
    with pytest.raises(errors.InvalidArgumentError, match=rf"{kind.__name__} requires a path"):
        kind().open(RunInfo(None, 0, {}, is_new=True))
    with pytest.raises(TypeError, match=rf"{kind.__name__} requires a path"):
        kind(3)


def test_deleted_file_is_an_error_and_then_created_again(sink, tmp_path):
    sink.open(start(tmp_path, 4))
    path_of(sink, tmp_path).unlink()
    with pytest.raises(FileNotFoundError, match="deleted"):
        sink.write([scalar(5)])
    sink.write([scalar(6)])
    sink.close(failed=False)
    assert steps(sink, tmp_path) == [6]


@pytest.mark.parametrize("kind", [Csv, JsonLines])
def test_write_to_a_full_disk_leaves_all_of_its_lines_or_none(kind, small_disk):
    sink = kind(small_disk.path / "points")
    sink.open(start(small_disk.path))
    sink.write([scalar(1)])
    small_disk.fill()
    with pytest.raises(OSError, match="No space left"):
        sink.write([scalar(step) for step in range(2, 1000)])
    small_disk.free()
    sink.write([scalar(1000)])
    sink.close(failed=False)
    lines = (small_disk.path / "points").read_text().splitlines()
    assert len(lines) == 2 + (kind is Csv)
    assert "1000" in lines[-1]
