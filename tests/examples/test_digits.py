"""The main job, as a user runs it: train, kill, resume, run again when done."""

from __future__ import annotations

import os
import pty
import re
import signal
from pathlib import Path
from subprocess import PIPE

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.python import Python

import hookline as hl

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
STEPS = 120  # As few as reach the accuracy.


def digits(folder: Path, steps: int, env: dict[str, str], stdout: int = PIPE) -> Python:
    return Python("-u", SCRIPT, "--logdir", folder, "--steps", steps, env=env, stdout=stdout)


def finish(process: Python) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def kill_when_it_trains(folder: Path, steps: int, env: dict[str, str]) -> None:
    """Watches the progress on a terminal, where it is drawn often, and kills the job in the middle."""
    terminal, its_end = pty.openpty()
    process = digits(folder, steps, env, stdout=its_end)
    os.close(its_end)
    seen = ""
    while not any(int(step) > 10 for step in re.findall(rf"step (\d+)/{steps}", seen)):
        seen += os.read(terminal, 4096).decode(errors="replace")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    os.close(terminal)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, environment):
    """Killed in the middle, then run again to its end."""
    folder = tmp_path_factory.mktemp("digits")
    kill_when_it_trains(folder, STEPS, environment(writes=False))
    return folder, finish(digits(folder, STEPS, environment()))


def test_killed_job_resumes_and_reaches_the_accuracy(trained):
    _, out = trained
    lines = out.splitlines()
    assert re.fullmatch(r"test accuracy: (0\.9[789]|1\.00)", lines[-1])
    assert lines[-2].startswith("Curves: tensorboard --logdir ")
    shown = [line for line in lines if line.startswith("step ")]
    assert shown[-1].startswith(f"step {STEPS}/{STEPS}  100%  loss 0.")
    assert len(shown) < 10, "a file gets a line each ten seconds"
    assert "\r" not in out


@pytest.mark.campaign
def test_finished_job_trains_nothing(trained, environment):
    folder, _ = trained
    before = hl.train.latest_checkpoint(folder)
    done = finish(digits(folder, STEPS, environment()))
    assert f"Already trained to step {STEPS}: nothing to do." in done
    assert "step 1" not in done.replace(f"to step {STEPS}", "")
    assert hl.train.latest_checkpoint(folder) == before


@pytest.mark.campaign
def test_finished_job_continues_with_more_steps(trained, environment):
    folder, _ = trained
    more = finish(digits(folder, STEPS + 30, environment()))
    assert f"Training from step {STEPS}." in more
    assert hl.train.latest_checkpoint(folder).endswith(f"model.ckpt-{STEPS + 30}")


def test_tensorboard_shows_the_curves(trained):
    folder, _ = trained
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    assert {"loss", "accuracy", "learning_rate", "global_step/sec"} <= set(events.Tags()["scalars"])
    assert events.Tags()["histograms"] == ["gradients"]
    steps = [scalar.step for scalar in events.Scalars("loss")]
    assert steps == sorted(set(steps)), "no step is shown twice after a resume"


def test_the_example_is_short():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 120
