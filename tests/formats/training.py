"""The training whose runs are kept in this folder, as format 2 wrote them; the tests resume them.

`python training.py LOGDIR LAST_STEP KIND` with commit 608a0aa made them: `single` (one hook of each class), `double`
(two of each, with runs of up to four steps), and, under `hookline launch --in-step --processes 2`, `in_step`.
"""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train

_X = np.random.default_rng(0).normal(size=(240, 3)).astype("float32")
_Y = _X @ np.array([1.0, -2.0, 3.0], "float32")


def train_step(state: Any, batch: Any) -> Any:
    x, y = batch
    error = x @ state["w"] - y
    weights = state["w"] - 0.02 * (x.T @ error) / len(y)
    return {"w": weights, "seen": state["seen"] + len(y)}, {"loss": (error**2).mean()}


def eval_step(state: Any, batch: Any) -> Any:
    x, y = batch
    return {"loss": ((x @ state["w"] - y) ** 2).mean()}


class Firings(train.SessionRunHook):
    """Keeps the steps at which it fired."""

    def __init__(self, every: int = 10) -> None:
        self.trigger, self.steps = train.every(every), []

    def on_trigger(self, firing: train.Firing) -> None:
        self.steps.append(firing.global_step)

    def get_state(self) -> Any:
        return {"steps": list(self.steps)}

    def set_state(self, state: Any) -> None:
        self.steps = list(state["steps"])


def hooks_of(kind: str) -> list[Any]:
    held_out = hl.data.arrays((_X[:40], _Y[:40]), 40)
    found = [
        train.Evaluate(eval_step, held_out, every=10, keep_best="loss"),
        train.StopIfNoImprovement("loss", patience=50),
        Firings(),
    ]
    if kind == "double":
        found.append(train.Evaluate(eval_step, hl.data.arrays((_X[40:80], _Y[40:80]), 40), every=5, name="other"))
        found.append(train.StopIfNoImprovement("loss", patience=60, name="other"))
        found.append(Firings(15))
    return found


def loop_of(kind: str, batch_size: int = 8) -> train.Loop:
    batches = hl.data.arrays((_X, _Y), batch_size, shuffle_seed=3, epochs=None)
    state = {"w": jnp.zeros(3), "seen": 0}
    return train.Loop(train_step, state, batches, steps_per_run=4 if kind == "double" else 1)


if __name__ == "__main__":
    _, logdir, last_step, kind = sys.argv
    result = loop_of(kind).run(
        logdir,
        last_step=int(last_step),
        hooks=hooks_of(kind),
        progress=False,
        checkpoints=train.CheckpointOptions(save_steps=10),
    )
    print(repr(np.asarray(result["w"]).tolist()), int(result["seen"]))
