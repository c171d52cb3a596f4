"""A job that is interrupted, in whatever way, ends as the one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.errors import AbortedError, Preempted

from .events import shown
from .plan import aims_of, steps_of
from .sources import LAST_STEP, ONE_SHOT, SOURCES
from .training import Model

RARE = [1, 2, 3, 6, 7, 10, 14, 18, 21, 28, 32, 35]
STEPS = {
    "loss": [*range(1, LAST_STEP + 1)],
    "rate": RARE,
    "average": RARE,
    "best": [*range(5, LAST_STEP + 1, 5)],
    "global_step/sec": [*range(4, LAST_STEP + 1, 3)],
}
"""Which steps each cadence has: each once, no gap."""


def check_events(directory, expected):
    found = shown(directory)
    assert {tag: [step for step, _ in points] for tag, points in found.items()} == STEPS
    assert found == expected


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The results of uninterrupted jobs, which do not depend on the kind of source."""
    directory = str(tmp_path_factory.mktemp("whole"))
    outcome = Model("list").train(directory)
    return outcome, shown(directory)


@pytest.mark.parametrize(
    ("steps_each", "kinds"),
    [
        (1, ("state_dict",)),  # The other kinds are interrupted below.
        pytest.param(8, tuple(kind for kind in SOURCES if kind != ONE_SHOT), marks=pytest.mark.campaign),
    ],
)
def test_killed_training_resumes_exactly(steps_each, kinds, tmp_path):
    command = [sys.executable, "-m", "resume.kills", str(tmp_path), str(steps_each), *kinds]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, *jobs = [json.loads(line) for line in done.stdout.splitlines()]
    expected = shown(str(tmp_path / whole["kind"]))
    assert {job["kind"] for job in jobs} == set(kinds)
    for job in jobs:
        assert job["killed_at"] == aims_of(job["kind"], steps_each)
        assert job["outcome"] == whole["outcome"], job
        check_events(str(tmp_path / job["kind"]), expected)


def quick(each_time, kinds=tuple(SOURCES)):
    """One of all kinds is tried each time: one that seeks to its position, or one that reads up to it."""
    return [pytest.param(kind, marks=() if kind == each_time else pytest.mark.campaign) for kind in kinds]


class Interrupted(Exception):
    """The error of the body of a session."""


@pytest.mark.parametrize("kind", quick("generator function"))
def test_training_left_by_an_exception_resumes_exactly(kind, tmp_path, uninterrupted):
    at, sessions = steps_of(kind, "exception"), 0
    model = Model(kind)

    def body(step):
        if step in at:
            at.remove(step)
            raise Interrupted(step)

    while True:
        try:
            outcome = model.train(str(tmp_path), body=body)
            break
        except Interrupted:
            sessions += 1
            if kind != ONE_SHOT and sessions % 3 == 0:
                model = Model(kind)  # As another process would.
    assert not at
    assert sessions >= 5
    assert outcome == uninterrupted[0]
    check_events(str(tmp_path), uninterrupted[1])


@pytest.mark.parametrize("kind", quick("arrays", [kind for kind in SOURCES if kind != ONE_SHOT]))
def test_training_left_on_a_signal_resumes_exactly(kind, tmp_path, uninterrupted):
    at, sessions = steps_of(kind, "signal"), 0

    def body(step):
        if step in at:
            at.remove(step)
            os.kill(os.getpid(), signal.SIGTERM)

    while True:
        try:
            outcome = Model(kind).train(str(tmp_path), body=body)
            break
        except Preempted:
            sessions += 1
    assert sessions >= 5
    assert outcome == uninterrupted[0]
    check_events(str(tmp_path), uninterrupted[1])


@pytest.mark.parametrize("kind", quick("generator function"))
def test_training_recovered_in_the_process_continues_exactly(kind, tmp_path, uninterrupted):
    chance = random.Random(kind)
    at = {(step, chance.random() < 0.5) for step in steps_of(kind, "recovery")}

    def fault(step, applied):
        if (step, applied) in at:
            at.remove((step, applied))
            raise AbortedError(None, None, f"lost at {step}")

    outcome = Model(kind, fault).train(str(tmp_path))
    assert not at
    assert outcome == uninterrupted[0]
    check_events(str(tmp_path), uninterrupted[1])
