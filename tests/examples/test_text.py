"""The language model, in a short version: killed and started again it ends with the bits of one that was left alone."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path
from subprocess import PIPE

import jax
import numpy as np
import pytest
from tests.python import Python

import hookline as hl
from hookline.testing import read_events

pytest.importorskip("grain")
pytestmark = pytest.mark.campaign  # The digits are killed and started again in `make test`.

SCRIPT = Path(__file__).parents[2] / "examples" / "text.py"
STEPS = 16  # evaluated and saved each 2 steps


def start(folder: Path, env: dict[str, str], stderr: int = PIPE) -> Python:
    return Python(SCRIPT, "--logdir", folder, "--steps", STEPS, env=env, stderr=stderr)


def kill_when_it_trains(folder: Path, env: dict[str, str]) -> None:
    """Watches the progress on a terminal, where it is drawn often, and kills the job between two checkpoints."""
    terminal, its_end = pty.openpty()
    process = start(folder, env, stderr=its_end)
    os.close(its_end)
    seen = ""
    while not any(int(step) > 6 for step in re.findall(rf"step (\d+)/{STEPS}", seen)):
        seen += os.read(terminal, 4096).decode(errors="replace")
    process.kill()
    process.communicate()
    os.close(terminal)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, environment):
    """Two jobs: their folders, and the output of the last process of each."""
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    said_whole = start(whole, environment()).communicate(timeout=280)
    kill_when_it_trains(killed, environment(writes=False))
    return whole, killed, said_whole, start(killed, environment()).communicate(timeout=280)


def test_killed_and_restarted_training_ends_with_the_same_bits(jobs):
    whole, killed, said_whole, said_killed = jobs
    assert int(re.search(r"step (\d+)/16", said_killed[1])[1]) > 3, "it went on"
    one, other = (hl.train.load(str(folder), step=STEPS) for folder in (whole, killed))
    assert one["1"]["step"] == STEPS
    same = jax.tree.map(np.array_equal, one, other)
    assert all(jax.tree.leaves(same)), same
    assert said_whole[0].replace(str(whole), "") == said_killed[0].replace(str(killed), "")


def test_training_fails_unless_clearly_better_than_a_bigram_model(jobs):
    _, _, (out, err), _ = jobs
    bits, bigram = re.search(r"held-out text: (\S+) bits a character; a bigram model: (\S+)", out).groups()
    assert float(bigram) == pytest.approx(3.35, abs=0.2)
    assert float(bits) > float(bigram) - 0.4, "so few steps are not enough"
    assert err.splitlines()[-1] == "The model is to be better by 0.4 bits."


@pytest.mark.parametrize("number", [0, 1])
def test_samples_and_both_curves_are_in_the_summaries(jobs, number):
    folder = jobs[number]

    def shown(folder):
        return {(value.tag, event.step) for event in read_events(folder) for value in event.summary.value}

    assert {("sample", 1), ("sample", 15), ("loss", 1)} <= shown(folder)
    assert shown(folder / "eval") == {("loss", step) for step in range(2, 17, 2)}
    (*_, sample) = [
        value.tensor.string_val[0].decode()
        for event in read_events(folder)
        for value in event.summary.value
        if value.tag == "sample"
    ]
    assert len(sample) == 300


def test_the_example_is_short():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 120
