from __future__ import annotations

import json
import os
import pathlib
import shutil

import jax.numpy as jnp
import pytest

import hookline as hl
from hookline import clock, errors, train
from hookline.testing import FakeClock
from hookline.train import Saver, get_checkpoint_state, latest_checkpoint


def names_in(directory) -> list[str]:
    """Returns all names but the owner file's."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".hookline-"))


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with checkpoints of steps 1, 2, 3, written by one saver."""
    return saved(tmp_path / "logs", 1, 2, 3)


def saved(directory: pathlib.Path, *steps: int) -> pathlib.Path:
    with hl.Graph().as_default():
        hl.Variable({"x": 1.0, "y": jnp.ones((2, 3))}, name="w")
        saver = Saver()
        with hl.Session() as sess, FakeClock(start=1000.0 * steps[0]) as fake:
            sess.run(hl.global_variables_initializer())
            for step in steps:
                fake.advance(1)
                saver.save(sess, str(directory / "model.ckpt"), step)
    return directory


def test_state_lists_all_checkpoints_in_order(directory):
    state = get_checkpoint_state(str(directory))
    assert state == train.CheckpointState(
        str(directory / "model.ckpt-3"),
        tuple(str(directory / f"model.ckpt-{step}") for step in (1, 2, 3)),
        (1001.0, 1002.0, 1003.0),
        last_preserved_timestamp=1001.0,
        max_to_keep=5,
        keep_checkpoint_every_n_hours=10000.0,
    )


@pytest.mark.parametrize("text", [None, "", "not json", "[]", '{"model_checkpoint_path": "model.ckpt-9"}'])
def test_missing_or_broken_state_file_is_no_problem(directory, text):
    (directory / "checkpoint").unlink()
    if text is not None:
        (directory / "checkpoint").write_text(text)
    state = get_checkpoint_state(str(directory))
    assert state is not None
    assert state.model_checkpoint_path == str(directory / "model.ckpt-3")
    assert len(state.all_model_checkpoint_paths) == 3


@pytest.mark.parametrize("content", [b'model_checkpoint_path: "model.ckpt-100"\n', b"\xff\xfe", b"[1, 2]", b""])
def test_directory_of_another_program_is_refused_unchanged(tmp_path, content):
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(
        errors.FailedPreconditionError, match=r"/checkpoint' is (not a state file|Tensor).*nother directory"
    ):
        latest_checkpoint(str(tmp_path))
    with pytest.raises(errors.FailedPreconditionError, match="is (not a state file|TensorFlow's)"):
        saved(tmp_path, 1)
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert (tmp_path / "checkpoint").read_bytes() == content


def test_checkpoint_missing_in_the_state_file_counts(directory):
    before = (directory / "checkpoint").read_text()
    saved(directory, 40)
    (directory / "checkpoint").write_text(before)
    state = get_checkpoint_state(str(directory))
    assert state is not None
    assert state.model_checkpoint_path == str(directory / "model.ckpt-40")
    # Saved by another session from the beginning: the others are not its own, so they are kept.
    assert state.all_model_checkpoint_paths == (str(directory / "model.ckpt-40"),)


def test_older_checkpoint_left_out_of_the_state_file_does_not_count(directory):
    saved(directory, 40)
    state = get_checkpoint_state(str(directory))
    assert state is not None
    assert state.all_model_checkpoint_paths == (str(directory / "model.ckpt-40"),)


def test_a_checkpoint_deleted_by_hand_is_not_the_latest(directory):
    shutil.rmtree(directory / "model.ckpt-3")
    assert latest_checkpoint(str(directory)) == str(directory / "model.ckpt-2")
    for step in (1, 2):
        shutil.rmtree(directory / f"model.ckpt-{step}")
    assert latest_checkpoint(str(directory)) is None
    assert latest_checkpoint(str(directory / "absent")) is None


def test_the_state_file_may_choose_an_older_one(directory):
    fields = json.loads((directory / "checkpoint").read_text())
    (directory / "checkpoint").write_text(json.dumps(fields | {"model_checkpoint_path": "model.ckpt-2"}))
    assert latest_checkpoint(str(directory)) == str(directory / "model.ckpt-2")


def test_a_directory_may_be_moved(directory, tmp_path):
    moved = tmp_path / "elsewhere"
    directory.rename(moved)
    assert latest_checkpoint(str(moved)) == str(moved / "model.ckpt-3")
    assert train.load_variable(str(moved), "w/x") == 1.0


def test_half_written_files_are_no_checkpoints_and_are_removed(directory):
    for name in (
        "model.ckpt-4.hookline-writing-ab12",
        "model.ckpt-5.hookline-saving",
        "model.ckpt-0.hookline-removed",
        "model.ckpt-1.hookline-replaced",
    ):
        shutil.copytree(directory / "model.ckpt-3", directory / name)
    (directory / "model.ckpt-5.hookline-saving" / "hookline.json").unlink()
    (directory / "model.ckpt-other.hookline-saving").mkdir()
    assert latest_checkpoint(str(directory)) == str(directory / "model.ckpt-3")
    saved(directory, 6)
    assert names_in(directory) == [
        "checkpoint", "model.ckpt-1", "model.ckpt-2", "model.ckpt-3", "model.ckpt-6", "model.ckpt-other.hookline-saving"
    ]  # fmt: skip


def test_checkpoint_of_a_process_killed_before_the_rename_is_found(directory):
    (directory / "model.ckpt-3").rename(directory / "model.ckpt-3.hookline-saving")
    path = str(directory / "model.ckpt-3")
    assert latest_checkpoint(str(directory)) == path
    assert train.checkpoint_exists(path)
    assert train.load_variable(path, "w/x") == 1.0
    saved(directory, 4)
    assert os.path.isdir(path)
    assert train.load_variable(path, "w/x") == 1.0


def test_state_file_may_have_another_name(tmp_path):
    hl.Variable(1.0, name="w")
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        path = Saver().save(sess, str(tmp_path / "best"), 1, latest_filename="best_state")
    assert names_in(tmp_path) == ["best-1", "best_state"]
    assert latest_checkpoint(str(tmp_path), "best_state") == path


def test_variables_are_listed_and_loaded(directory):
    assert train.list_variables(str(directory)) == [("w/x", ()), ("w/y", (2, 3))]
    assert train.load_variable(str(directory / "model.ckpt-1"), "w/y").shape == (2, 3)
    assert set(train.load_variable(str(directory), "w")) == {"x", "y"}
    with pytest.raises(errors.NotFoundError, match=r"has no 'v'. It has: w/x, w/y"):
        train.load_variable(str(directory), "v")


@pytest.mark.parametrize("look", [train.list_variables, lambda path: train.load_variable(path, "w")])
def test_missing_checkpoint_is_an_error(tmp_path, look):
    (tmp_path / "empty").mkdir()
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "events.out.tfevents.1").write_bytes(b"")
    for folder, said in (
        ("empty", r"empty' is empty, and no checkpoint has been saved in it"),
        ("events", r"events' is no checkpoint of hookline .*, and no checkpoint has been saved in it"),
        ("absent", r"no checkpoint '.*absent', and no directory of checkpoints by that name. Checkpoints in .*: none"),
        ("absent/model.ckpt-1", r"Its directory '.*absent' does not exist either"),
    ):
        with pytest.raises(errors.NotFoundError, match=said):
            look(str(tmp_path / folder))


def test_the_iterator_yields_each_new_checkpoint_and_stops_at_the_timeout(directory):
    with FakeClock() as fake:
        found = train.checkpoints_iterator(str(directory), min_interval_secs=60, timeout=5)
        assert next(found) == str(directory / "model.ckpt-3")
        began = fake.monotonic()
    saved(directory, 40)
    with FakeClock(start=began):
        assert next(found) == str(directory / "model.ckpt-40")
        assert clock.monotonic() == began + 60
        assert list(found) == []


def test_iterator_calls_the_timeout_function(tmp_path):
    answers = iter([False, False, True])
    with FakeClock() as fake:
        began = fake.monotonic()
        found = train.checkpoints_iterator(str(tmp_path), timeout=3, timeout_fn=lambda: next(answers))
        assert list(found) == []
        assert fake.monotonic() == began + 9
