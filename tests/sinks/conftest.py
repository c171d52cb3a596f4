"""The model and the reader of these tests: a loss that depends on the step, and the lines of files."""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline.sinks import Point


def train_step(state: Any, batch: Any) -> Any:
    return {"n": state["n"] + 1}, {"loss": 1.0 / (state["n"] + 1) + 0.0 * batch.mean()}


def eval_step(state: Any, batch: Any) -> Any:
    return {"loss": 10.0 * state["n"] + 0.0 * batch.mean()}


def train(folder: Any, last_step: int, sinks: Any, hooks: Any = (), **written: Any) -> Any:
    """Trains with summaries each 2 steps, an evaluation each 4 and a checkpoint each 6."""
    batches = hl.data.from_arrays(np.ones(4, np.float32), batch_size=1, epochs=None)
    loop = hl.train.Loop(train_step, {"n": jnp.zeros((), int)}, batches)
    evaluate = hl.train.Evaluate(eval_step, hl.data.from_arrays(np.ones(2, np.float32), batch_size=2), every=4)
    written: Any = {"summary_steps": 2, "rate_steps": None, "sinks": sinks, **written}
    return loop.run(
        None if folder is None else os.fspath(folder),
        last_step,
        hooks=[evaluate, *hooks],
        progress=False,
        checkpoints=hl.train.CheckpointOptions(save_steps=6),
        logging=hl.train.LoggingOptions(**written),
    )


def losses(last_step: int) -> list[tuple[int, str, float]]:
    """Returns the points of such a training."""
    found = [(step, "loss", float(np.float32(1) / np.float32(step))) for step in range(1, last_step + 1, 2)]
    evaluations = {*range(4, last_step + 1, 4), last_step}
    return sorted(found + [(step, "eval/loss", 10.0 * step) for step in evaluations])


def read_csv(path: Path) -> list[tuple[int, str, float]]:
    """The scalars of a CSV file."""
    with open(path, newline="") as file:
        return sorted((int(row["step"]), row["tag"], float(np.float32(row["value"]))) for row in csv.DictReader(file))


def read_json(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON lines file, each of which is valid."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def scalar(step: int | None, value: float = 0.5, tag: str = "loss") -> Point:
    return Point("scalar", tag, step, 1.0, value)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Returns the sinks' log lines, by level and text."""
    with caplog.at_level(logging.INFO, "hookline"):
        yield lambda: [
            f"{record.levelname}: {record.getMessage()}"
            for record in caplog.records
            if record.name.startswith(("hookline.sinks", "hookline.summary"))
        ]
