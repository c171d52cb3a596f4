"""`hookline diff`."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tests import python
from tests.cli.conftest import trained_in
from tests.terminal import Terminal

import hookline as hl
from hookline import train
from hookline.cli import main


def saved(folder, **values):
    with hl.Graph().as_default(), hl.Session() as session:
        for name, value in values.items():
            hl.Variable(value, name=name)
        session.run(hl.global_variables_initializer())
        return train.Saver().save(session, str(folder / "model.ckpt"), 1)


def changes(capsys, *words):
    assert main(["diff", "--json", *map(str, words)]) == 0
    return {change["name"]: change for change in json.loads(capsys.readouterr().out)["variables"]}


@pytest.fixture
def two(tmp_path):
    row, more = np.array([3, 4, 0], np.float32), np.zeros((2, 2), np.float32)
    nan = np.array([np.nan, np.inf, 1], np.float32)
    a = saved(tmp_path / "a", row=row, gone=more, shape=more, cast=row, nan=nan, zero=more, equal=more, lost=row)
    b = saved(
        tmp_path / "b",
        row=row + np.array([0, 0.5, 0], np.float32),
        added=more,
        shape=np.zeros(4, np.float32),
        cast=row.astype(np.float16),
        nan=nan,
        zero=more + 1,
        equal=more,
        lost=row * np.float32(np.nan),
    )
    return a, b


def test_diff_gives_the_change_of_each_variable(two, capsys):
    found = changes(capsys, *two)
    kinds = {name: change["kind"] for name, change in found.items()}
    assert kinds == {
        "row": "changed", "gone": "gone", "added": "added", "shape": "reshaped", "cast": "changed", "nan": "same",
        "zero": "changed", "equal": "same", "lost": "changed",
    }  # fmt: skip
    assert found["row"]["by"] == {"largest": 0.5, "relative": pytest.approx(0.1), "elements": 1, "total": 3}
    assert found["zero"]["by"] == {"largest": 1.0, "relative": "Infinity", "elements": 4, "total": 4}
    assert found["lost"]["by"] == {"largest": "NaN", "relative": "NaN", "elements": 3, "total": 3}
    assert (found["cast"]["a"], found["cast"]["b"]) == ("float32 (3,)", "float16 (3,)")
    assert (found["shape"]["a"], found["shape"]["b"]) == ("float32 (2, 2)", "float32 (4,)")


def test_table_lists_the_differences(two, capsys):
    assert main(["diff", *two]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"A: {two[0]}, step 1", f"B: {two[1]}, step 1"]
    assert [line.split()[:2] for line in lines[4:7]] == [["added", "added"], ["gone", "gone"], ["reshaped", "shape"]]
    row = next(line for line in lines if line.startswith("changed   row"))
    assert row.split()[-5:] == ["0.5", "0.1", "1", "of", "3"]
    assert lines[-1] == "2 variables are the same in both."


def test_states_of_hooks_are_counted_and_listed_on_request(shared_run, capsys):
    words = ["diff", str(shared_run / "model.ckpt-4"), str(shared_run)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[4:6]] == ["global_step", "table"]
    told = r"No value of hooks differs, only (\d+) of their triggers, such as clocks; --all shows all\."
    (count,) = re.fullmatch(told, lines[7]).groups()
    assert lines[8:] == ["2 variables are the same in both."]
    assert main([*words, "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[1].startswith("hooks/") for line in lines[4:-2]) == int(count)


def test_clocks_of_a_resumed_run_are_told_apart_from_values_of_hooks(tmp_path, capsys):
    def run(folder, last_step):
        evaluate = train.Evaluate(lambda w: {"loss": w}, None, every=2, name="some/trigger")
        loop = train.Loop(lambda w, batch: (w + batch.sum(), {}), 0.0, hl.data.from_arrays(np.ones(9), 1))
        loop.run(str(tmp_path / folder), last_step, hooks=[evaluate], progress=False)

    for folder, last_step in (("whole", 4), ("resumed", 2), ("resumed", 4), ("longer", 6)):
        run(folder, last_step)
    texts = []
    for other in ("resumed", "longer"):
        assert main(["diff", str(tmp_path / "whole"), str(tmp_path / other)]) == 0
        texts.append(capsys.readouterr().out)
    assert re.search(r"^No value of hooks differs, only \d+ of their triggers", texts[0], re.MULTILINE)
    assert re.search(r"^[1-9]\d* values of hooks differ, and \d+ of their triggers", texts[1], re.MULTILINE)


def test_table_fits_the_terminal(tmp_path, environment):
    name = "decoder/" * 12 + "kernel"
    a, b = (saved(tmp_path / str(value), **{name: np.full((3000, 4), value, np.float32)}) for value in (1, 2))
    terminal = Terminal(columns=100)
    variables = {name: value for name, value in environment().items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with python.Python("-m", "hookline.cli", "diff", a, b, stdout=terminal.file.fileno(), env=variables) as process:
        assert process.wait(60) == 0
    lines = [line.rstrip() for line in terminal.screen]
    head = next(number for number, line in enumerate(lines) if line.startswith("change "))
    first, *more = lines[head + 1 : lines.index("", head)]
    assert max(map(len, [first, *more])) <= 100
    assert first.split()[2:] == ["float32", "(3000,", "4)", "1", "1", "12,000", "of", "12,000"]
    assert first.split()[1] + "".join(map(str.strip, more)) == name


def test_run_means_its_newest_checkpoint(shared_run, capsys):
    found = changes(capsys, shared_run / "model.ckpt-4", shared_run)
    assert found["global_step"]["by"]["largest"] == found["table"]["by"]["largest"] == 2.0
    assert found["params/kernel"]["kind"] == "same"
    looked = found["hooks/hookline.CheckpointSaverHook[model.ckpt]/trigger/base_step"]
    assert (looked["kind"], looked["a"], looked["b"]) == ("changed", "4", "6")


def test_runs_with_other_shapes_are_compared(shared_run, tmp_path, capsys):
    trained_in(tmp_path / "b", 2, width=3)
    found = changes(capsys, shared_run, tmp_path / "b")
    assert (found["table"]["kind"], found["table"]["b"]) == ("reshaped", "float32 (64, 3)")


@pytest.mark.usefixtures("failed_reads")
def test_readable_rest_of_a_broken_checkpoint_is_compared(own_run, shared_run, capsys):
    for file in (own_run / "model.ckpt-6").rglob("d/*"):
        file.unlink()
    assert main(["diff", str(own_run), str(shared_run)]) == 1
    out, err = capsys.readouterr()
    unread = [line for line in out.splitlines() if "could not be compared" in line]
    assert re.fullmatch(r"\d+ variables could not be compared: A is broken: its file state/d/\w+ is missing\.", *unread)
    assert err == ""


def test_broken_newer_checkpoint_is_skipped_and_named(own_run, shared_run, capsys):
    (own_run / "model.ckpt-6" / "hookline.json").unlink()
    assert main(["diff", str(shared_run), str(own_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        f"B: {own_run / 'model.ckpt-4'}, step 4",
        "B: model.ckpt-6 is skipped, because it is broken: it has no hookline.json.",
    ]


def test_missing_checkpoint_is_an_error(shared_run, own_run, tmp_path, capsys):
    (own_run / "model.ckpt-6" / "hookline.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for path, why in [
        (tmp_path / "empty", "is empty."),
        (tmp_path / "none", "does not exist."),
        (shared_run / "model.ckpt-5", "does not exist. There are model.ckpt-2, model.ckpt-4, model.ckpt-6.\n"),
        (own_run / "model.ckpt-6", "is broken: its hookline.json is damaged"),
    ]:
        assert main(["diff", str(shared_run), str(path)]) == 1
        out, err = capsys.readouterr()
        assert (out, why in err) == ("", True), err
