"""The real client of Weights & Biases, offline; its file is read with its own messages."""

from __future__ import annotations

import io
import json
import math
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hookline.sinks import Histogram, Point, RunInfo, Wandb

from .conftest import losses, scalar, train

wandb: Any = pytest.importorskip("wandb", reason="no client: pip install wandb", exc_type=ImportError)

_BLOCK, _HEADER = 32768, struct.Struct("<IHB")
_FULL, _LAST = 1, 4


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def records(path: Path):
    """The records of a run's file: a log of blocks, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + _HEADER.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        at += _HEADER.size + length
        if at > len(data):
            return
        whole += data[at - length : at]
        if kind in (_FULL, _LAST):
            yield Record.FromString(whole)
            whole = b""


def kind_of(record):
    return record.WhichOneof("record_type")


class Read:
    """Returns the contents of all files below a folder: ids, hyperparameters, exit codes and points."""

    def __init__(self, folder):
        # Its process may be at the end of a file when `finish` has returned.
        paths, deadline = sorted(folder.glob("wandb/offline-run-*/*.wandb")), time.monotonic() + 20
        while not all("exit" in map(kind_of, records(path)) for path in paths) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.ids, self.hparams, self.exits, self.points = set(), {}, [], []
        for path in paths:
            for record in records(path):
                kind = kind_of(record)
                config = record.run.config if kind == "run" else record.config
                if kind == "run":
                    self.ids.add(record.run.run_id)
                if kind in ("run", "config"):
                    self.hparams |= {item.key: json.loads(item.value_json) for item in config.update}
                if kind == "exit":
                    self.exits.append(record.exit.exit_code)
                if kind == "history":
                    self._history(record.history.item)

    def _history(self, found):
        items = {}
        for item in found:
            first, *rest = item.nested_key or [item.key]
            value = json.loads(item.value_json)
            items.setdefault(first, {}).update({rest[0]: value}) if rest else items.update({first: value})
        step = items.pop("global_step", None)
        self.points += [(step, tag, value) for tag, value in items.items() if not tag.startswith("_")]


def test_resumed_run_is_one_run_without_duplicates(tmp_path):
    train(tmp_path, 8, [Wandb(project="p")], hparams={"rate": 0.1, "sizes": [3, 4]})
    train(tmp_path, 12, [Wandb(project="p")], hparams={"rate": 0.2, "sizes": [3, 4]})
    read = Read(tmp_path)
    assert len(read.ids) == 1
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    assert read.exits == [0, 0]
    assert (read.hparams["rate"], read.hparams["sizes"]) == (0.2, [3, 4])
    assert sorted((step, tag, float(np.float32(value))) for step, tag, value in read.points) == losses(12)


def test_text_images_and_histograms_are_sent_once(tmp_path):
    png = io.BytesIO()
    Image.new("RGB", (2, 3)).save(png, "png")
    wide = Histogram(-1.0, [float(limit) for limit in range(2001)], [0.0] + [1.0] * 2000)
    sink = Wandb(project="p")
    sink.open(RunInfo(str(tmp_path), 0, {}, is_new=True))
    sink.write(
        [
            scalar(1, float("nan")),
            scalar(1, 0.25),
            Point("text", "note", 1, 1.0, "<b>"),
            Point("image", "seen", 1, 1.0, png.getvalue()),
            Point("histogram", "weights", 1, 1.0, wide),
        ]
    )
    sink.open(RunInfo(str(tmp_path), 0, {}, is_new=False))  # After a recovery.
    sink.write([scalar(1, 0.75), scalar(2, 0.125)])
    sink.close(failed=True)
    read = Read(tmp_path)
    found = {(step, tag): value for step, tag, value in read.points if tag != "loss"}
    first, *others = (value for _, tag, value in read.points if tag == "loss")
    assert math.isnan(first)
    assert others == [0.25, 0.125]
    image = found[1, "seen"]
    assert (image["_type"], image["width"], image["height"]) == ("image-file", 2, 3)
    assert found[1, "note"]["_type"] == "html-file"
    weights = found[1, "weights"]
    assert (len(weights["values"]), sum(weights["values"])) == (500, 2000)
    assert len(weights["bins"]) == 501
    assert (weights["bins"][0], weights["bins"][-1]) == (0.0, 2000.0)
    assert read.exits == [1]


def test_new_training_is_a_new_run(tmp_path):
    for _ in range(2):
        sink = Wandb(project="p")
        sink.open(RunInfo(str(tmp_path), 0, {}, is_new=True))
        sink.write([scalar(1)])
        sink.close(failed=False)
    read = Read(tmp_path)
    assert len(read.ids) == 2
    assert len(read.points) == 2


def test_active_run_is_used_and_not_finished(tmp_path):
    with wandb.init(project="p", dir=str(tmp_path)) as run:
        sink = Wandb()
        sink.open(RunInfo(str(tmp_path), 0, {"rate": 0.1}, is_new=True))
        sink.write([scalar(1)])
        sink.close(failed=False)
        assert wandb.run is run
        assert run.config["rate"] == 0.1
    assert Read(tmp_path).points == [(1, "loss", 0.5)]
