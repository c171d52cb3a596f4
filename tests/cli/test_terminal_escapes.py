"""Names from a folder that somebody else has made reach no terminal as they are."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shutil

import numpy as np
import pytest
from tests.checkpoint import hostile

import hookline as hl
from hookline import errors, log, summary, train

# Names that only another writer gives, and any text.
from hookline.checkpoint.directory import lease
from hookline.checkpoint.directory import owner_file as owner
from hookline.cli import main
from hookline.log import escape_line, escape_text

EVIL = "\x1b]0;x\x07\x1b[2J\r\x9b31m\x7f\u202e\u2066"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def evil_run(own_run):
    """A run with terminal codes in every name: of folder, checkpoints, variables, dtypes, devices, tags, hosts."""
    folder = own_run.rename(own_run.with_name(f"run{EVIL}\nall is well"))
    for step in (4, 6):
        path = folder / f"model.ckpt-{step}"
        fields = json.loads((path / "hookline.json").read_text())
        fields["devices"] = [f"gpu{EVIL}:0", f"cpu{EVIL}\n:1"]
        (leaf,) = fields["variables"]["table"]["leaves"]
        leaf["name"] = leaf["path"] = f"table{EVIL}\nnorm"
        fields["variables"][f"text{EVIL}"] = {
            "leaves": [
                leaf | {"name": f"text{EVIL}", "kind": "str", "dtype": f"str{EVIL}", "value": EVIL, "pieces": []}
                | {"shape": []}
            ],
            "structure": None,
        }  # fmt: skip
        (path / "hookline.json").write_text(hostile.signed(fields))
    shutil.copytree(folder / "model.ckpt-6", folder / f"evil{EVIL}\nall is well-7")
    (folder / f"evil{EVIL}-8").mkdir()
    (folder / f"evil{EVIL}-8" / "state").mkdir()
    state = json.loads((folder / "checkpoint").read_text())
    state["best"] = state["all_model_checkpoint_paths"][0] = f"model.ckpt{EVIL}-2"
    (folder / "checkpoint").write_text(json.dumps(state))
    owner.write(str(folder / lease.OWNER_NAME), owner.Owner("t", f"host{EVIL}", "b", 12, "n", "s", 9.0))
    below = folder / f"eval{EVIL}"
    with summary.FileWriter(str(below)) as writer:
        writer.add_summary(hl.summary.protos.Summary(value=[{"tag": f"loss{EVIL}\nx", "simple_value": 1.0}]), 1)
    return folder


def shown(capsys, *words):
    try:
        status = main([str(word) for word in words])
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert not RAW.search(out + err), (words, RAW.search(out + err))
    return status, out, err


def test_no_command_prints_terminal_codes_of_a_name(evil_run, capsys):
    run = evil_run
    for words in (["inspect"], ["inspect", "--all"], ["inspect", "--verify"], ["inspect", "--json"], ["clean"]):
        _, out, _ = shown(capsys, *words, run, *(["--keep", "1"] if words == ["clean"] else []))
        assert r"\x1b" in out or "\\u001b" in out
        assert "all is well" not in {line.strip() for line in out.splitlines()}
    assert shown(capsys, "inspect", run / f"evil{EVIL}\nall is well-7")[0] == 0
    assert r"table\x1b" in shown(capsys, "diff", run / "model.ckpt-2", run / "model.ckpt-6")[1]
    for words in ([], ["--csv"], ["--json"], ["--tag", "loss*"], ["--tag", f"none{EVIL}"]):
        shown(capsys, "events", run, *words)
    rows = list(csv.reader(io.StringIO(shown(capsys, "events", run, "--csv")[1])))
    assert escape_line(f"loss{EVIL}\nx") in {row[1] for row in rows}
    for words in (["inspect"], ["diff", run], ["events"], ["clean"], [f"--{EVIL}"], [EVIL]):
        status, out, err = shown(capsys, *words, run / f"none{EVIL}")
        assert status
        assert out == ""
        assert r"\x1b" in err


def test_no_error_or_log_line_has_terminal_codes(evil_run, caplog, capsys):
    path = str(evil_run / f"evil{EVIL}-8")
    for look in (train.list_variables, train.verify, train.load):
        with pytest.raises(errors.OpError) as caught:
            look(path)
        assert not RAW.search(str(caught.value)), str(caught.value)
    with hl.Graph().as_default():
        hl.Variable(np.zeros(3), name="w")
        with hl.Session() as session, pytest.raises(errors.OpError) as caught:
            train.Saver().restore(session, str(evil_run / "model.ckpt-6"))
        assert r"text\x1b" in str(caught.value)
        assert not RAW.search(str(caught.value))
    (evil_run / "checkpoint").write_text(EVIL)
    with caplog.at_level(logging.DEBUG):
        train.latest_checkpoint(str(evil_run))
        log.get_logger("hookline.checkpoint").warning("of %s: %d", EVIL, 3)
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.get_logger("hookline.checkpoint").exception("failed")
    assert r"\x1b" in caplog.text
    assert not RAW.search(caplog.text)


def test_ordinary_text_is_unchanged():
    text = "Größe 模型 مرحبا 👩\u200d💻 naïve\n\tmodel.ckpt-7"
    assert escape_text(text) == text
    assert escape_line(text) == text.replace("\n", r"\n").replace("\t", r"\t")
    assert escape_text("a\ud800\udcff") == r"a\ud800\udcff"
    assert os.fsencode(escape_text(os.fsdecode(b"a\xff"))) == rb"a\udcff"
