"""Runs for the commands to read: made once, copied by tests that break one."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from tests import python

import hookline as hl
from hookline import train

JOB = Path(__file__).with_name("job.py")


def trained_in(folder: Path, last_step: int, width: int = 40) -> Path:
    """Trains to a step, with a checkpoint and a point of each scalar at every second one."""
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        table = hl.Variable(np.arange(64 * width, dtype=np.float32).reshape(64, width), name="table")
        hl.Variable({"kernel": np.ones((3, 2), np.float16), "bias": 0.5}, name="params")
        loss = hl.op(lambda step: 1 / (step + 1))(step)
        hl.summary.scalar("loss", loss)
        with hl.control_dependencies([table.assign_add(np.ones((64, width), np.float32))]):
            train_op = step.assign_add(1)
        saver = train.Saver(max_to_keep=3)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(folder),
            scaffold=train.Scaffold(saver=saver),
            hooks=[train.StopAtStepHook(last_step=last_step)],
            save_checkpoint_steps=2,
            save_summaries_steps=2,
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    return folder


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory):
    """A run of 6 steps. Nothing may change it."""
    folder = trained_in(tmp_path_factory.mktemp("runs") / "a", 6)
    files = sorted(folder.rglob("*"))
    before = {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in files}
    yield folder
    assert before == {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in before}
    assert sorted(folder.rglob("*")) == files
    assert not os.path.exists(folder / ".hookline-lock")


@pytest.fixture(scope="session")
def killed_run(tmp_path_factory):
    """A run of a loop that was killed after step 21, whose newest checkpoint is of step 16. Nothing may change it."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    assert python.run(JOB, folder, "killed").returncode == -signal.SIGKILL
    return folder


@pytest.fixture(scope="session")
def resumed_run(killed_run, tmp_path_factory):
    """A copy of it that was resumed, and has finished at step 40. Nothing may change it."""
    folder = shutil.copytree(killed_run, tmp_path_factory.mktemp("resumed") / "run")
    python.run(JOB, folder, "looped", check=True)
    return folder


@pytest.fixture
def own_run(shared_run, tmp_path):
    """A copy of it, to break."""
    return shutil.copytree(shared_run, tmp_path / "own")
