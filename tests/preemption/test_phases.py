"""A signal in each phase of a training: it ends in order, with its work saved, and the process can be used further."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.python import Python

from hookline.checkpoint.directory import lease

START, RUN = ["after_create_session"], ["before_run", "after_run"]
# The phase; whether it waits for the test; the callbacks; the step that is saved at the end.
PHASES = [
    ("restore", True, [*START, "end", 5], 5),
    ("after_create_session", True, [*START, "end", 0], 0),
    ("compile", False, [*START, *RUN, "end", 0], 0),
    ("before_run", True, [*START, *RUN, "end", 1], 1),
    ("step", True, [*START, *RUN, *RUN, "end", 2], 2),
    ("after_run", True, [*START, *RUN, "end", 1], 1),
    ("evaluation", True, [*START, *RUN, "end", 1], 1),
    ("save", True, [*START, *RUN, *RUN, "end", 2], 2),
    ("body", True, [*START, *RUN, *RUN, "end", 2], 2),
    ("settle", True, [*START, *RUN, *RUN, "end", 2], 2),
    ("end", True, [*START, *RUN * 5, "end", 5], 5),
    ("waiter", False, [*START, "before_run", "end", 0], 0),
    ("recovery", False, [*START, *RUN, "before_run", "on_exception"], 0),
    ("lease", False, [], None),
    ("chief", False, [], None),
]


class Trainer:
    def __init__(self):
        self.process = Python(Path(__file__).with_name("phases.py"), stdin=PIPE, stderr=None)

    def tell(self, *words):
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def trainers():
    """One for all tests, unless one of them has lost it."""
    started = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def trainer(trainers):
    if not trainers or trainers[-1].process.poll() is not None:
        trainers.append(Trainer())
    return trainers[-1]


def answer(trainer):
    """Returns the report of the process on its training, after its lines while it waits."""
    while not (said := trainer.hear()).startswith("{"):
        assert said, "The process has ended."
    return json.loads(said)


@pytest.mark.parametrize(("phase", "waits", "events", "saved"), PHASES, ids=lambda cell: str(cell)[:20])
def test_signal_in_this_phase_ends_the_training_cleanly(trainer, tmp_path, phase, waits, events, saved):
    number = signal.SIGINT if PHASES.index((phase, waits, events, saved)) % 2 else signal.SIGTERM
    if phase == "restore":
        trainer.tell("none", tmp_path)
        assert answer(trainer)["saved"] == 5
    other = lease.acquire_lease(str(tmp_path)) if phase == "lease" else None
    with contextlib.ExitStack() as stack:
        if other is not None:
            stack.callback(other)
        trainer.tell(phase, tmp_path)
        assert trainer.hear() == ("waiting" if phase in ("waiter", "recovery", "lease", "chief") else phase)
        trainer.process.send_signal(number)
        if waits:
            trainer.tell("go on")
        found = answer(trainer)
    (ends,) = found.pop("ends")  # At once, or after what is under way.
    assert ends == ("at" if phase == "lease" else "after") or phase in ("recovery", "chief")
    assert found == {"status": 128 + number, "events": events, "saved": saved, "threads": []}


def test_without_a_signal_the_training_reaches_its_end(trainer, tmp_path):
    trainer.tell("none", tmp_path)
    assert answer(trainer) == {
        "status": 0,
        "ends": [],
        "events": [*START, *RUN * 5, "end", 5],
        "saved": 5,
        "threads": [],
    }


def test_signal_to_a_forked_process_does_not_affect_the_parent(trainer, tmp_path):
    trainer.tell("fork", tmp_path)
    assert answer(trainer)["status"] == 0
