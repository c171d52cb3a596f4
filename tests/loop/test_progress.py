"""How a loop shows how far it has come: unasked, by a hook of one's own, not at all, on a terminal, and from tasks."""

from __future__ import annotations

import importlib
import logging
import re
import sys

import jax.numpy as jnp
import pytest
from tests.terminal import Terminal

import hookline as hl
from hookline.cli import main
from hookline.testing import FakeClock

from .steps import batches, train

launch = importlib.import_module("hookline.cli.launch")


def train_step(state, batch):
    n = state["n"] + 1
    return {"n": n}, {"loss": 1.0 / n, "top": {"1": n}}


def counting():
    return hl.train.Loop(train_step, {"n": jnp.zeros((), int)}, batches())


class Tick(hl.train.SessionRunHook):
    """Lets a second pass in each run."""

    def __init__(self, clock):
        self._clock = clock

    def after_run(self, run_context, run_values):
        self._clock.advance(1)


def steps(text):
    """Returns the progress lines."""
    return [line for line in text.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize("by_hand", [False, True])
def test_step_and_metrics_are_shown_on_stderr_by_default(by_hand, capsys):
    with FakeClock() as clock:
        train(counting(), by_hand, last_step=25, hooks=[Tick(clock)])
    out, err = capsys.readouterr()
    assert out == "", "what a program prints is its own"
    assert steps(err) == [
        "step 1/25  4%  epoch 1/4  loss 1.000  top/1 1",
        "step 11/25  44%  epoch 2/4  loss 0.09091  top/1 11  1 steps/s  32 examples/s  0:14 left",
        "step 21/25  84%  epoch 3/4  loss 0.04762  top/1 21  1 steps/s  32 examples/s  0:04 left",
        "step 25/25  100%  epoch 4/4  loss 0.04000  top/1 25  1 steps/s  32 examples/s",
    ]


@pytest.mark.parametrize("by_hand", [False, True])
def test_progress_false_shows_nothing(by_hand, capsys):
    train(counting(), by_hand, last_step=5, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("bound", [False, True])
def test_user_hook_replaces_the_progress_line(bound, capsys):
    loop = counting()
    hook = hl.train.ProgressHook([loop.metrics["loss"]], every_secs=100)
    loop.run(last_step=3, hooks=(each for each in [hl.train.only_for(loop.train_op, hook) if bound else hook]))
    out, err = capsys.readouterr()
    assert steps(err) == []
    assert [line.split("  ")[0] for line in out.splitlines()] == ["step 1/3", "step 3/3"]
    assert "top/1" not in out


def test_step_without_metrics_shows_only_the_step(capsys):
    hl.train.Loop(lambda state, batch: (state, {}), {"n": jnp.zeros(())}, batches()).run(last_step=2)
    assert [line.split("  ")[0] for line in steps(capsys.readouterr().err)] == ["step 1/2", "step 2/2"]


def test_progress_continues_from_the_checkpoint_and_shows_no_finished_run(tmp_path, capsys):
    for last_step in (2, 4, 4):
        counting().run(str(tmp_path), last_step)
    shown = [line.split("  ")[0] for line in steps(capsys.readouterr().err)]
    assert shown == ["step 1/2", "step 2/2", "step 3/4", "step 4/4"]


def test_terminal_shows_one_line_below_the_log(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal.file)
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.getMessage().startswith("step "))
    logger = logging.getLogger("hookline")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with FakeClock() as clock:
            counting().run(last_step=25, log_steps=10, hooks=[Tick(clock)])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    start, *log, line, end, rest = terminal.screen
    assert (start.split(" ")[0], end.split(" ")[0]) == ("starts", "stopped")
    assert [re.match(r"step (\d+): loss = ", text)[1] for text in log] == ["1", "11", "21"]
    assert re.fullmatch(r"step 25/25 +━+ +100%  epoch 4/4  loss 0.04000  top/1 25  1 steps/s  32 examples/s", line)
    assert rest == ""


TASK = """
import os
import jax.numpy as jnp, numpy as np
import hookline as hl

steps = 3 if os.environ["HOOKLINE_TASK_TYPE"] == "chief" else 4
loop = hl.train.Loop(
    lambda state, batch: ({"n": state["n"] + 1}, {"loss": state["n"]}),
    {"n": jnp.zeros((), int)},
    hl.data.from_arrays(np.ones(8), 1),
)
loop.run(last_step=steps)
print("done")
"""


class NoRay:
    """Replaces a local Ray cluster, which loops do not use: each task trains for itself."""

    def start(self, cancelled):
        return self

    def stop(self):
        pass

    def environment(self):
        return {"HOOKLINE_ADDRESS": "127.0.0.1:7"}


def test_each_task_of_a_launch_shows_lines_with_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "require_ray", lambda: None)
    monkeypatch.setattr(launch, "LocalRayCluster", NoRay)
    script = tmp_path / "script.py"
    script.write_text(TASK)
    assert main(["launch", "--workers", "2", str(script)]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["chief    | done", "worker 0 | done"]
    shown = sorted(re.sub(r"  \S+ steps/s.*", "", line) for line in err.splitlines() if "| step " in line)
    assert shown == [
        "chief    | step 1/3  33%  loss 0",
        "chief    | step 3/3  100%  loss 2",
        "worker 0 | step 1/4  25%  loss 0",
        "worker 0 | step 4/4  100%  loss 3",
    ]
