"""The best checkpoint stays over a resume with another list of evaluations."""

from __future__ import annotations

import logging
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline import train

# Accuracies by step: on held-out data step 4 has the best, on the training data it rises.
VAL = jnp.asarray([0.0, 0.1, 0.2, 0.3, 0.9, 0.5, 0.4, 0.6, 0.5, 0.7, 0.6, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4])
TRAIN = jnp.linspace(0.0, 0.99, 17)


def step(state: Any, batch: Any) -> Any:
    return {"n": state["n"] + 1}, {"loss": 0.0 * batch.mean()}


def evaluating(name: str, accuracies: Any, **arguments: Any) -> train.Evaluate:
    def eval_step(state: Any, batch: Any) -> Any:
        return {"accuracy": accuracies[state["n"]] + 0.0 * batch.mean()}

    return train.Evaluate(eval_step, hl.data.from_arrays(np.arange(2.0), 2), every=1, name=name, **arguments)


def val(name: str = "val", **arguments: Any) -> train.Evaluate:
    return evaluating(name, VAL, **({"keep_best": "accuracy"} | arguments))


def on_train(name: str = "train") -> train.Evaluate:
    return evaluating(name, TRAIN)


def trained(logdir: Any, last_step: int, *hooks: Any) -> list[int]:
    """Trains on to a step; returns the steps of the checkpoints that are there."""
    loop = train.Loop(step, {"n": jnp.zeros((), int)}, hl.data.from_arrays(np.arange(32.0), 2))
    loop.run(
        str(logdir),
        last_step,
        hooks=hooks,
        checkpoints=train.CheckpointOptions(save_steps=1, saver=train.Saver(max_to_keep=2)),
        progress=False,
        log_steps=None,
    )
    return sorted(int(name.rpartition("-")[2]) for name in os.listdir(logdir) if name.startswith("model.ckpt-"))


def best_of(logdir: Any) -> str:
    return os.path.basename(train.get_checkpoint_state(str(logdir)).best or "")


@pytest.mark.parametrize(
    "hooks",
    [
        lambda: [val(), on_train()],
        lambda: [on_train(), val()],
        lambda: [on_train()],
        lambda: [val()],
        lambda: [on_train("first"), on_train(), val()],
        list,
    ],
    ids=["the same", "another order", "one less", "another one less", "one more", "none"],
)
def test_best_checkpoint_survives_a_change_of_evaluations(tmp_path, hooks):
    assert trained(tmp_path, 6, val(), on_train()) == [4, 5, 6]
    again = hooks()
    assert trained(tmp_path, 9, *again) == [4, 8, 9]
    assert best_of(tmp_path) == "model.ckpt-4"
    bests = {hook.name: hook.best["accuracy"] for hook in again}
    assert bests.get("val", (pytest.approx(0.9), 4)) == (pytest.approx(0.9), 4)
    assert bests.get("train", (0, 9)).step == 9 if "train" in bests else True
    assert trained(tmp_path, 12, on_train(), val()) == [4, 11, 12], "the state came back, after sessions without it"
    assert best_of(tmp_path) == "model.ckpt-4"


@pytest.mark.parametrize(
    ("hook", "new_best"), [(lambda: val("renamed"), 9), (lambda: val(mode="min"), 12)], ids=["a new name", "a new mode"]
)
def test_reset_evaluation_keeps_the_earlier_best_checkpoint_with_a_warning(tmp_path, caplog, hook, new_best):
    trained(tmp_path, 6, val())
    assert {4, new_best, 11, 12} <= set(trained(tmp_path, 12, hook()))
    (told,) = [record for record in caplog.records if "is never removed" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert "model.ckpt-4', the best checkpoint so far, is never removed: its value is unknown" in told.getMessage()
    assert best_of(tmp_path) == f"model.ckpt-{new_best}"
    caplog.clear()
    assert trained(tmp_path, 16, hook()) == sorted({4, new_best, 15, 16})
    assert not [record for record in caplog.records if "is never removed" in record.getMessage()]


def test_two_evaluations_with_keep_best_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'val' and 'other' both have keep_best.*Leave it out of one"):
        trained(tmp_path, 6, val(), val("other"))
