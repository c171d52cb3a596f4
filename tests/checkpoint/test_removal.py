"""A training, a restart and `hookline clean` remove checkpoints and leftovers of their own folder, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hookline as hl
from hookline import train
from hookline.cli import main
from hookline.errors import DataLossError

FORGED = {
    "a folder beside": "../precious",
    "an absolute path": "{outside}",
    "a file of the run": "graph.txt",
    "a file": "notes",
    "a folder that is no checkpoint": "results",
    "a link to a checkpoint elsewhere": "model.ckpt-77",
    "a way through a link": "link/model.ckpt-1",
    "a way back": "model.ckpt-1/../results",
    "nothing": "",
    "the folder itself": ".",
    "a folder below": "below/model.ckpt-1",
    "the state file": "checkpoint",
    "a name with a line break": "model\n.ckpt-1",
    "no text": 7,
    "a zero byte": "model\0.ckpt",
}


def trained(folder: Path, last_step: int, **options: object) -> None:
    with hl.Graph().as_default():
        count = train.get_or_create_global_step().assign_add(1)
        hooks = [train.StopAtStepHook(last_step=last_step)]
        saver = train.Saver(max_to_keep=2)
        scaffold = train.Scaffold(saver=saver)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), scaffold=scaffold, hooks=hooks, save_checkpoint_steps=1, **options
        ) as sess:
            while not sess.should_stop():
                sess.run(count)


def contents(folder: Path) -> dict[str, bytes | str]:
    """Returns all files below a folder but accounts with their contents, and links with their targets."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.readlink(path)
        elif path.is_file() and not path.name.startswith("account-"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Makes a run with two checkpoints, another run beside it, and a user's files in both folders."""
    trained(tmp_path / "run", 2)
    trained(tmp_path / "other", 2)
    for folder in (tmp_path / "precious", tmp_path / "outside", tmp_path / "run" / "results"):
        folder.mkdir()
        (folder / "thesis.txt").write_text("years of work")
    shutil.copytree(tmp_path / "other" / "model.ckpt-1", tmp_path / "outside" / "model.ckpt-1")
    (tmp_path / "run" / "notes").write_text("mine")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "run" / "model.ckpt-77").symlink_to(tmp_path / "other" / "model.ckpt-1")
    below = tmp_path / "run" / "below"
    shutil.copytree(tmp_path / "other", below)
    return tmp_path


OF_A_RUN = ("checkpoint", "model.ckpt-1", "model.ckpt-2", "model.ckpt-3", "model.ckpt-4", "events", ".hookline")


def of_others(world: Path) -> dict[str, bytes | str]:
    """Returns all that is not a checkpoint or a record of the run."""
    return {
        name: held
        for name, held in contents(world).items()
        if not name.removeprefix("run/").startswith(OF_A_RUN) or not name.startswith("run/")
    }


def change_state(folder: Path, **fields: object) -> None:
    path = folder / "checkpoint"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("field", ["pending_removals", "all_model_checkpoint_paths"])
@pytest.mark.parametrize("what", FORGED)
def test_forged_state_file_removes_no_foreign_files(world, what, field):
    forged = FORGED[what]
    forged = forged.format(outside=world / "outside" / "model.ckpt-1") if isinstance(forged, str) else forged
    before = json.loads((world / "run" / "checkpoint").read_text())
    change_state(world / "run", **{field: [forged, *before[field]]}, timestamps=[0.0, *before["timestamps"]])
    held = of_others(world)
    trained(world / "run", 4)
    assert main(["clean", str(world / "run"), "--keep", "1"]) == 0
    assert of_others(world) == held
    named = json.loads((world / "run" / "checkpoint").read_text())
    assert all(
        os.path.basename(path) == path for path in named["all_model_checkpoint_paths"] + named["pending_removals"]
    )
    assert train.latest_checkpoint(str(world / "run")) == str(world / "run" / "model.ckpt-4")


def test_a_newest_checkpoint_outside_the_folder_is_refused(world):
    change_state(world / "run", model_checkpoint_path="../other/model.ckpt-2")
    held = contents(world)
    with pytest.raises(DataLossError, match=r"model_checkpoint_path.*'\.\./other/model\.ckpt-2'.*outside"):
        trained(world / "run", 4)
    assert {name: kept for name, kept in contents(world).items() if "events" not in name} == {
        name: kept for name, kept in held.items() if "events" not in name
    }


def test_outside_path_is_logged_once(world, caplog):
    change_state(world / "run", pending_removals=["../precious"])
    trained(world / "run", 4)
    trained(world / "run", 5)
    said = [record.message for record in caplog.records if "../precious" in record.message]
    assert len(said) == 1
    assert "ignores it" in said[0]


def test_a_saver_of_two_folders_lists_only_the_present_one(tmp_path):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        saver = train.Saver(max_to_keep=2)
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            saver.save(sess, str(tmp_path / "phase1" / "model.ckpt"), 5)
            saver.save(sess, str(tmp_path / "phase2" / "model.ckpt"), 6)
            state = json.loads((tmp_path / "phase2" / "checkpoint").read_text())
            assert state["all_model_checkpoint_paths"] == ["model.ckpt-6"]
            shutil.copytree(tmp_path / "phase1", tmp_path / "copies" / "phase1")
            shutil.copytree(tmp_path / "phase2", tmp_path / "copies" / "phase2")
            # It may still remove its own files of this process.
            saver.save(sess, str(tmp_path / "phase2" / "model.ckpt"), 7)
            assert not (tmp_path / "phase1" / "model.ckpt-5").exists()
    trained(tmp_path / "copies" / "phase2", 12)
    assert (tmp_path / "copies" / "phase1" / "model.ckpt-5").exists()


def test_checkpoints_recovered_from_another_folder_are_kept(tmp_path, caplog):
    trained(tmp_path / "old", 2)
    held = contents(tmp_path / "old")
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        saver = train.Saver(max_to_keep=1)
        saver.recover_last_checkpoints([str(tmp_path / "old" / "model.ckpt-1"), str(tmp_path / "old" / "model.ckpt-2")])
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            saver.save(sess, str(tmp_path / "new" / "model.ckpt"), 1)
    assert contents(tmp_path / "old") == held


@pytest.mark.parametrize("suffix", ["removed", "replaced", "saving"])
def test_user_folder_named_like_a_leftover_is_kept(world, suffix):
    folder = world / "run" / f"model.ckpt-1.hookline-{suffix}"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    trained(world / "run", 4)
    assert (folder / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("suffix", ["removed", "replaced", "saving", "writing-0badcafe"])
def test_leftovers_of_killed_processes_are_removed(world, suffix):
    folder = world / "run" / f"model.ckpt-1.hookline-{suffix}"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "d").write_text("half")
    trained(world / "run", 4)
    assert not folder.exists()


def test_link_among_old_checkpoints_is_kept_without_leftovers(world, caplog):
    shutil.move(world / "run" / "model.ckpt-1", world / "elsewhere")
    (world / "run" / "model.ckpt-1").symlink_to(world / "elsewhere")
    (world / "run" / "model.ckpt-77").unlink()  # As a checkpoint of another run it would be the newest.
    held = contents(world / "elsewhere")
    trained(world / "run", 6)
    assert contents(world / "elsewhere") == held
    assert (world / "run" / "model.ckpt-1").is_symlink()
    assert not [name for name in os.listdir(world / "run") if "hookline-removed" in name]
    assert len([record for record in caplog.records if "model.ckpt-1': it is a link" in record.message]) == 1


def test_run_folder_that_is_a_link_is_cleaned(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    trained(tmp_path / "run", 5)
    assert sorted(name for name in os.listdir(tmp_path / "disk") if "ckpt" in name) == ["model.ckpt-4", "model.ckpt-5"]


def test_clean_lists_exactly_what_it_removes(world):
    run = world / "run"
    for suffix in ("removed", "writing-0badcafe"):
        (run / f"model.ckpt-1.hookline-{suffix}" / "state").mkdir(parents=True)
    (run / "model.ckpt-1.hookline-replaced").mkdir()
    (run / "model.ckpt-1.hookline-replaced" / "thesis.txt").write_text("years of work")
    (run / "model.ckpt-77").unlink()  # As a checkpoint it would be the newest.
    change_state(run, pending_removals=["../precious", "results"])
    command = [sys.executable, "-m", "hookline.cli", "clean", str(run), "--keep", "1"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    before = set(os.listdir(run))
    subprocess.run([*command, "--yes"], check=True, capture_output=True, text=True)
    gone = before - set(os.listdir(run))
    assert gone == {"model.ckpt-1", "model.ckpt-1.hookline-removed", "model.ckpt-1.hookline-writing-0badcafe"}
    shown = {word for line in listed.stdout.splitlines() for word in line.split()[:1] if "ckpt" in word}
    assert shown == gone


@pytest.mark.parametrize("name", ["checkpoint.tmp", "graph.txt.tmp", ".hookline-owner.mine", ".hookline-owner.d"])
def test_user_file_beside_a_hookline_file_is_kept(world, name):
    path = world / "run" / name
    if name.endswith(".d"):
        path.mkdir()
        path /= "thesis.txt"
    path.write_text("years of work")
    trained(world / "run", 4)
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("name", ["checkpoint", "graph.txt"])
def test_temporary_file_of_a_killed_process_is_removed(world, name):
    left = world / "run" / f"{name}.hookline-writing-0badcafe"
    left.write_text("{")
    trained(world / "run", 4)
    assert not left.exists()
