"""`hookline clean`: which checkpoints are removed, which are kept, and when none may be removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hookline as hl
from hookline import train
from hookline.cli import main
from hookline.testing import FakeClock
from hookline.train import get_checkpoint_state


def checkpoints(folder):
    return sorted((path.name for path in folder.glob("model*")), key=lambda name: int(name.partition("-")[2]))


def saved(folder, *steps, hours=0.0, best=None, **options):
    """Saves these steps, some hours apart, and keeps all."""
    with hl.Graph().as_default(), FakeClock() as clock, hl.Session() as session:
        hl.Variable(1.0, name="w")
        session.run(hl.global_variables_initializer())
        saver = train.Saver(max_to_keep=0, **options)
        for step in steps:
            saver.save(session, str(folder / "model.ckpt"), step)
            clock.advance(hours * 3600 + 1)
            if step == best:
                saver.mark_best(step)
    return folder


def test_clean_lists_and_removes_only_with_yes(shared_run, own_run, capsys):
    assert main(["clean", str(shared_run), "--keep", "1"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["model.ckpt-2", "model.ckpt-4"]
    assert "Nothing was removed; --yes would free " in out
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "are free again. Kept: model.ckpt-6." in out
    assert checkpoints(own_run) == ["model.ckpt-6"]
    state = get_checkpoint_state(str(own_run))
    assert state is not None
    assert state.all_model_checkpoint_paths == (str(own_run / "model.ckpt-6"),)
    assert state.max_to_keep == 3, "that of the training"
    assert not list(own_run.glob(".hookline*"))


def test_state_file_gives_the_default_number_to_keep(own_run, capsys):
    state = json.loads((own_run / "checkpoint").read_text())
    (own_run / "checkpoint").write_text(json.dumps({**state, "max_to_keep": 2}))
    assert main(["clean", str(own_run), "--yes"]) == 0
    assert checkpoints(own_run) == ["model.ckpt-4", "model.ckpt-6"]
    assert main(["clean", str(own_run), "--yes"]) == 0
    assert "the newest 2 are kept, and there are no others." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recorded", "why"), [(0, "keeps all (max_to_keep=0)"), (None, "does not give the number to keep")]
)
def test_unknown_number_to_keep_is_an_error(own_run, capsys, recorded, why):
    state = json.loads((own_run / "checkpoint").read_text())
    (own_run / "checkpoint").write_text(json.dumps({**state, "max_to_keep": recorded}))
    assert main(["clean", str(own_run)]) == 2
    assert why in (err := capsys.readouterr().err)
    assert err.endswith("Give it with --keep N.\n")


def test_best_checkpoint_is_kept(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, best=2)
    assert main(["clean", str(tmp_path), "--keep", "1", "--yes"]) == 0
    assert checkpoints(tmp_path) == ["model.ckpt-2", "model.ckpt-4"]


def test_one_checkpoint_of_each_period_is_kept(tmp_path):
    saved(tmp_path, *range(1, 8), hours=1, keep_checkpoint_every_n_hours=2)
    assert main(["clean", str(tmp_path), "--keep", "1", "--yes"]) == 0
    assert checkpoints(tmp_path) == ["model.ckpt-3", "model.ckpt-5", "model.ckpt-7"]
    assert main(["clean", str(tmp_path), "--keep", "1", "--yes"]) == 0
    assert checkpoints(tmp_path) == ["model.ckpt-3", "model.ckpt-5", "model.ckpt-7"], "for good"


def test_leftovers_of_killed_processes_are_removed(own_run, capsys):
    (own_run / "model.ckpt-8.hookline-writing-ab12").mkdir()
    (own_run / "model.ckpt-4.hookline-broken").mkdir()
    (own_run / "other.ckpt-4.hookline-removed").mkdir()
    assert main(["clean", str(own_run), "--keep", "3", "--yes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:2]] == [
        "model.ckpt-8.hookline-writing-ab12"
    ]
    assert not (own_run / "model.ckpt-8.hookline-writing-ab12").exists()
    assert (own_run / "model.ckpt-4.hookline-broken").exists()
    assert (own_run / "other.ckpt-4.hookline-removed").exists()


def test_broken_checkpoints_neither_count_nor_are_removed(own_run, capsys):
    (own_run / "model.ckpt-4" / "hookline.json").unlink()
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 0
    assert "Kept: model.ckpt-6, model.ckpt-4 (broken).\n" in capsys.readouterr().out
    assert checkpoints(own_run) == ["model.ckpt-4", "model.ckpt-6"]


@pytest.mark.parametrize("harm", [lambda manifest: manifest.unlink(), lambda manifest: manifest.write_text("{")])
def test_nothing_is_removed_while_the_newest_has_no_manifest(own_run, capsys, harm):
    harm(own_run / "model.ckpt-6" / "hookline.json")
    assert main(["clean", str(own_run), "--keep", "1"]) == 0
    out = capsys.readouterr().out
    assert "--yes would free" not in out
    assert out.endswith("--yes is refused until you move it away.\n")
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 1
    assert "Nothing was removed, because the newest checkpoint" in capsys.readouterr().err
    assert checkpoints(own_run) == ["model.ckpt-2", "model.ckpt-4", "model.ckpt-6"]


def test_checkpoint_missing_in_the_state_file_is_named(own_run, capsys):
    state = own_run / "checkpoint"
    state.write_text(state.read_text().replace('"model.ckpt-2"', '"model.ckpt-r"'))
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "Note: its state file does not list model.ckpt-2, so no training removes it.\n" in out
    assert "Kept: model.ckpt-6, model.ckpt-2.\n" in out


@pytest.mark.usefixtures("failed_reads")
def test_nothing_is_removed_while_the_newest_cannot_be_read(own_run, capsys):
    for file in (own_run / "model.ckpt-6").rglob("d/*"):
        file.unlink()
    assert main(["clean", str(own_run), "--keep", "1", "--yes"]) == 1
    err = capsys.readouterr().err
    assert "Nothing was removed, because the newest checkpoint" in err
    assert "is missing. Move it away first.\n" in err
    assert checkpoints(own_run) == ["model.ckpt-2", "model.ckpt-4", "model.ckpt-6"]


def test_run_without_state_file_is_cleaned_with_a_note(own_run, capsys):
    for break_it, why in ((Path.unlink, "it has no state file"), (Path.touch, "its state file cannot be read")):
        break_it(own_run / "checkpoint")
        assert main(["clean", str(own_run)]) == 1
        said = f"hookline clean: '{own_run}': {why}, so the number to keep is unknown. Give it with --keep N.\n"
        assert capsys.readouterr().err == said
    assert main(["clean", str(own_run), "--keep", "2", "--yes"]) == 0
    assert "it is not known which checkpoints to keep permanently." in capsys.readouterr().out
    assert checkpoints(own_run) == ["model.ckpt-4", "model.ckpt-6"]
    state = get_checkpoint_state(str(own_run))
    assert state is not None
    assert state.max_to_keep is None


def test_missing_run_is_an_error(shared_run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-100"\n')
    for path, why in [
        (tmp_path / "none", "does not exist."),
        (tmp_path / "empty", "is empty."),
        (tmp_path / "tensorflow", "is TensorFlow's"),
        (shared_run / "model.ckpt-6", "is a checkpoint. Give the folder of its run."),
    ]:
        assert main(["clean", str(path), "--keep", "1", "--yes"]) == 1
        out, err = capsys.readouterr()
        assert (out, why in err) == ("", True), err
    assert [path.name for path in (tmp_path / "tensorflow").iterdir()] == ["checkpoint"]
