"""Starts with broken files: the checkpoint of a start, and the last save of a failed training."""

from __future__ import annotations

import errno
import json
import logging
import os
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import train

# A lease without a session, and a read that fails as no file of a test does.
from hookline.checkpoint import orbax_io
from hookline.checkpoint.directory import lease
from hookline.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossDuringTrainingError,
    ResourceExhaustedError,
    UnavailableError,
)
from hookline.train import (
    CheckpointSaverHook,
    ChiefSessionCreator,
    MonitoredSession,
    NanTensorHook,
    Scaffold,
    SessionRunHook,
)

pytestmark = [
    pytest.mark.usefixtures("failed_reads"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Model:
    """`train` counts, also into the weight; `fail_first` raises before anything is changed, `fail_last` afterwards."""

    def __init__(self):
        self.weight = hl.Variable(np.zeros(2000, np.float32), name="weight")
        step = train.get_or_create_global_step()
        self.step = step
        self.train = hl.group(step.assign_add(1), self.weight.assign_add(np.ones(2000, np.float32)))
        self.spoil = self.weight.assign(np.full(2000, np.nan, np.float32))
        self.half = self.weight.assign_add(np.full(2000, 100, np.float32))
        self.loss = hl.op(lambda weight: weight.sum())(self.weight)
        with hl.control_dependencies([hl.host_op(fail).node()]):
            self.fail_first = step.assign_add(1).op
        self.fail_last = hl.host_op(fail)(step.assign_add(1))

    def session(self, directory, *hooks, **arguments):
        saver = CheckpointSaverHook(str(directory), save_steps=10, scaffold=(scaffold := Scaffold()))
        creator = ChiefSessionCreator(scaffold, checkpoint_dir=str(directory), **arguments)
        return MonitoredSession(creator, [saver, *hooks])


def fail(*_):
    raise ValueError("bad record")


@pytest.fixture
def model():
    with hl.Graph().as_default():
        yield Model()


def trained(model, directory, steps=25):
    with model.session(directory) as session:
        for _ in range(steps):
            session.run(model.train)
    return sorted(path for path in pathlib.Path(directory).glob("model.ckpt-*"))


def errors_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def spoil(path):
    file = max((file for file in pathlib.Path(path).rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


# Where a start goes on from -------------------------------------------------------------------------------------------


def test_start_from_the_last_state_logs_nothing(model, tmp_path, caplog):
    trained(model, tmp_path)
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 25
    assert errors_in(caplog) == []


def test_missing_checkpoint_is_logged(model, tmp_path, caplog):
    trained(model, tmp_path)
    shutil.rmtree(tmp_path / "model.ckpt-25")
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 20
    (line,) = errors_in(caplog)
    gone = f"'{tmp_path}/model.ckpt-25', which its state file names, is gone"
    assert f"continues from '{tmp_path}/model.ckpt-20', because {gone}" in line


def test_all_checkpoints_missing_is_logged(model, tmp_path, caplog):
    for path in trained(model, tmp_path):
        shutil.rmtree(path)
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 0
    (line,) = errors_in(caplog)
    assert f"starts over, because '{tmp_path}/model.ckpt-25', which its state file names, is gone" in line


def test_damaged_state_file_is_logged(model, tmp_path, caplog):
    trained(model, tmp_path)
    (tmp_path / "checkpoint").write_bytes(b"\x00" * 100)
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 25
    (line,) = errors_in(caplog)
    assert "because its state file" in line
    assert "cannot be read" in line


@pytest.mark.parametrize(
    "damage", ["data", "manifest", pytest.param("manifest and state file", marks=pytest.mark.campaign)]
)
def test_broken_newest_checkpoint_is_an_error_or_moved_aside(model, tmp_path, caplog, damage):
    trained(model, tmp_path)
    broken = tmp_path / "model.ckpt-25"
    if damage == "data":
        spoil(broken)
    else:
        (broken / "hookline.json").write_text("{}")
    if "state" in damage:
        (tmp_path / "checkpoint").unlink()
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"model.ckpt-25' .*restore='latest-valid'"):
            model.session(tmp_path)
    assert broken.is_dir()
    with model.session(tmp_path, restore="latest-valid") as session:
        assert session.run(model.step) == 20
        np.testing.assert_array_equal(session.run(model.weight), np.full(2000, 20, np.float32))
    assert not (broken / "hookline.json").exists() or train.load_variable(str(broken), "global_step") == 25
    assert (tmp_path / "model.ckpt-25.hookline-broken" / "state").is_dir()
    (line,) = errors_in(caplog)
    moved = f"'{broken}' is skipped, and was moved to '{broken}.hookline-broken': "
    assert f"continues from '{tmp_path}/model.ckpt-20', because {moved}" in line
    caplog.clear()
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 20
    assert errors_in(caplog) == []


def without_manifest(path):
    (path / "hookline.json").unlink()


def emptied(path):
    shutil.rmtree(path)
    path.mkdir()


def made_a_file(path):
    shutil.rmtree(path)
    path.write_text("was a checkpoint")


DAMAGE = pytest.mark.parametrize(
    ("damage", "flaw"),
    [
        (without_manifest, "it has no hookline.json"),
        (emptied, "it is empty"),
        pytest.param(made_a_file, "it is a file, not a directory", marks=pytest.mark.campaign),
    ],
)


@DAMAGE
def test_remains_of_the_newest_checkpoint_are_broken_not_missing(model, tmp_path, caplog, damage, flaw):
    trained(model, tmp_path)
    newest = tmp_path / "model.ckpt-25"
    damage(newest)
    for _ in range(2):
        with pytest.raises(
            DataLossError,
            match=rf"'{newest}' is broken and cannot be read: {flaw}\. Restore .*restore='latest-valid'",
        ):
            model.session(tmp_path)
    with model.session(tmp_path, restore="latest-valid") as session:
        assert session.run(model.step) == 20
        for _ in range(5):
            session.run(model.train)
    (line,) = errors_in(caplog)
    assert f"continues from '{tmp_path}/model.ckpt-20', because '{newest}' is skipped, and was moved to " in line
    assert (tmp_path / "model.ckpt-25.hookline-broken").exists()
    train.verify(str(newest))
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 25


@DAMAGE
def test_remains_of_the_only_checkpoint_are_broken(model, tmp_path, damage, flaw):
    for path in trained(model, tmp_path)[:-1]:
        shutil.rmtree(path)
    damage(tmp_path / "model.ckpt-25")
    with pytest.raises(DataLossError, match=rf"model.ckpt-25' is broken .*{flaw}"):
        model.session(tmp_path)
    with pytest.raises(DataLossError, match=r"None of the checkpoints in .* can be read"):
        model.session(tmp_path, restore="latest-valid")


@pytest.mark.parametrize("damage", [without_manifest, pytest.param(emptied, marks=pytest.mark.campaign)])
def test_remains_of_newer_checkpoints_are_found_without_the_state_file(model, tmp_path, damage):
    trained(model, tmp_path)
    damage(tmp_path / "model.ckpt-25")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(DataLossError, match="model.ckpt-25' is broken"):
        model.session(tmp_path)
    with model.session(tmp_path, restore="latest-valid") as session:
        assert session.run(model.step) == 20


def test_remains_of_an_older_checkpoint_are_moved_aside_if_passed(model, tmp_path):
    trained(model, tmp_path)
    emptied(tmp_path / "model.ckpt-20")
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 25
    assert (tmp_path / "model.ckpt-20").exists()
    spoil(tmp_path / "model.ckpt-25")
    with model.session(tmp_path, restore="latest-valid") as session:
        assert session.run(model.step) == 10
        for _ in range(15):
            session.run(model.train)
    assert {path.name for path in tmp_path.glob("*.hookline-broken")} == {
        "model.ckpt-20.hookline-broken",
        "model.ckpt-25.hookline-broken",
    }
    train.verify(str(tmp_path / "model.ckpt-20"))


def test_without_a_readable_checkpoint_nothing_is_moved_or_started(model, tmp_path):
    paths = trained(model, tmp_path)
    for path in paths:
        spoil(path)
    with pytest.raises(DataLossError, match=r"None of the checkpoints in .* can be read; to start over, use another"):
        model.session(tmp_path, restore="latest-valid")
    assert sorted(tmp_path.glob("model.ckpt-*")) == paths


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (OSError(errno.ESTALE, "Stale file handle"), UnavailableError),
        pytest.param(OSError(errno.EIO, "Input/output error"), UnavailableError, marks=pytest.mark.campaign),
        (RuntimeError("can't start new thread"), ResourceExhaustedError),
        (MemoryError(), ResourceExhaustedError),
    ],
)
def test_transient_error_moves_nothing(model, tmp_path, monkeypatch, failure, error):
    paths = trained(model, tmp_path)

    def read(*_):
        raise failure

    monkeypatch.setattr(orbax_io, "read", read)
    creator = ChiefSessionCreator(checkpoint_dir=str(tmp_path), restore="latest-valid")
    with pytest.raises(error, match="model.ckpt-25' could not be read"):
        MonitoredSession(creator, [CheckpointSaverHook(str(tmp_path), save_steps=10)], recovery=None)
    assert sorted(tmp_path.glob("model.ckpt-*")) == paths


def test_checkpoint_of_a_later_version_is_not_skipped(model, tmp_path):
    trained(model, tmp_path)
    (tmp_path / "model.ckpt-25" / "hookline.json").write_text('{"format": 99}')
    with pytest.raises(FailedPreconditionError, match="upgrade hookline"):
        model.session(tmp_path, restore="latest-valid")
    assert (tmp_path / "model.ckpt-25").is_dir()


def test_foreign_checkpoints_in_the_directory_are_kept(model, tmp_path, caplog):
    trained(model, tmp_path)
    for name in ("exported-900", "best-99"):
        shutil.copytree(tmp_path / "model.ckpt-25", tmp_path / name)
    (tmp_path / "exported-900" / "hookline.json").write_text("{}")
    with model.session(tmp_path) as session:
        assert session.run(model.step) == 25
    assert errors_in(caplog) == []


def test_process_without_its_lease_changes_nothing(model, tmp_path):
    trained(model, tmp_path)
    spoil(tmp_path / "model.ckpt-25")
    give_back = lease.acquire_lease(str(tmp_path))
    owner = json.loads((tmp_path / ".hookline-owner").read_text())
    (tmp_path / ".hookline-owner").write_text(json.dumps(owner | {"token": "another", "pid": 1}))
    creator = ChiefSessionCreator(checkpoint_dir=str(tmp_path), restore="latest-valid")
    with pytest.raises(FailedPreconditionError, match="was taken over by process 1 on "):
        MonitoredSession(creator, recovery=None)
    give_back()
    assert (tmp_path / "model.ckpt-25").is_dir()
    assert json.loads((tmp_path / ".hookline-owner").read_text())["token"] == "another"


def test_reader_moves_nothing(model, tmp_path):
    trained(model, tmp_path)
    spoil(tmp_path / "model.ckpt-25")
    with MonitoredSession(ChiefSessionCreator(checkpoint_dir=str(tmp_path), restore="latest-valid")) as session:
        assert session.run(model.step) == 20
    assert (tmp_path / "model.ckpt-25").is_dir()


def test_invalid_restore_argument_or_directory_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"requires restore='latest' or 'latest-valid', got 'newest'"):
        ChiefSessionCreator(restore="newest")
    for make in (
        lambda: train.MonitoredTrainingSession(checkpoint_dir="gs://bucket/run"),
        lambda: train.latest_checkpoint("s3://bucket/run"),
        lambda: train.load_variable("gs://bucket/run/model.ckpt-1", "w"),
    ):
        with pytest.raises(
            InvalidArgumentError, match="requires a directory of a file system, got '(gs|s3)://bucket/run"
        ):
            make()
    assert not os.path.exists("gs:")


# The last save of a failed training -----------------------------------------------------------------------------------


def leaves_with(error, session, body):
    with pytest.raises(error), session:
        body(session)


def run_into(model, directory, what, steps=13, **arguments):
    """Trains, fails as given, and returns the step of the newest checkpoint."""

    class Failing(SessionRunHook):
        def before_run(self, run_context):
            if what == "before_run":
                fail()

        def after_run(self, run_context, run_values):
            if what == "after_run":
                fail()

    def body(session):
        start = session.run(model.step)
        for _ in range(steps):
            session.run(model.train)
        assert session.run(model.step) == start + steps
        if what == "body":
            fail()
        if what.endswith("_run"):
            session.add_hook(Failing())
            session.run(model.train)
        if "step" in what:
            session.run_step_fn(lambda step_context: step(step_context, "half" in what))
        if "nan" in what:
            session.run(model.spoil)
            session.run(model.step)
            fail()
        session.run(getattr(model, what))

    def step(step_context, half):
        if half:
            step_context.session.run(model.half)
        fail()

    nan_hook = NanTensorHook(model.loss, fail_on_nan_loss="stops" not in what)
    leaves_with((ValueError, NanLossDuringTrainingError), model.session(directory, nan_hook), body)
    return int(train.latest_checkpoint(str(directory)).rpartition("-")[2])


@pytest.mark.parametrize(
    ("what", "newest"),
    [
        ("fail_first", 13),
        pytest.param("body", 13, marks=pytest.mark.campaign),
        ("fail_last", 10),
        pytest.param("before_run", 10, marks=pytest.mark.campaign),
        ("after_run", 10),
        ("nan", 10),
        pytest.param("nan that stops", 10, marks=pytest.mark.campaign),
        ("step", 13),
        ("half a step", 10),
    ],
)
def test_state_of_the_last_completed_run_is_saved_if_it_is_valid(model, tmp_path, what, newest, caplog):
    assert run_into(model, tmp_path, what) == newest
    saved = [record for record in caplog.records if "ends the training" in record.getMessage()]
    assert len(saved) == (newest == 13)
    if newest == 13:
        np.testing.assert_array_equal(
            train.load_variable(f"{tmp_path}/model.ckpt-13", "weight"), np.full(2000, 13, np.float32)
        )


def test_at_most_one_final_checkpoint_is_kept_beside_the_others(model, tmp_path):
    for _ in range(8):
        run_into(model, tmp_path, "body", steps=3)
    state = train.get_checkpoint_state(str(tmp_path))
    steps = [int(path.rpartition("-")[2]) for path in state.all_model_checkpoint_paths]
    assert steps == sorted(steps)
    assert steps[-1] == 24
    assert len(steps) <= 6
    extra = [
        step for step in steps if json.loads((tmp_path / f"model.ckpt-{step}" / "hookline.json").read_text())["extra"]
    ]
    assert extra == [24]
    assert {f"model.ckpt-{step}" for step in steps} == {path.name for path in tmp_path.glob("model.ckpt-*")}


def test_failed_final_save_does_not_replace_the_first_error(model, tmp_path, caplog):
    def body(session):
        session.run(model.train)
        while not (tmp_path / "checkpoint").exists():  # The save of the start goes on in the background.
            pass
        shutil.rmtree(tmp_path)
        tmp_path.write_text("a file in the way")
        fail()

    leaves_with(ValueError, model.session(tmp_path), body)
    assert "After ValueError no last checkpoint was saved" in errors_in(caplog)[-1] + errors_in(caplog)[0]
    tmp_path.unlink()


def test_interrupted_training_saves_its_state(model, tmp_path):
    def body(session):
        for _ in range(3):
            session.run(model.train)
        raise KeyboardInterrupt

    leaves_with(KeyboardInterrupt, model.session(tmp_path), body)
    assert train.latest_checkpoint(str(tmp_path)).endswith("-3")
    assert jnp.all(train.load_variable(str(tmp_path), "weight") == 3)
