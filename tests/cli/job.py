"""Processes whose checkpoints the tests read: `job.py FOLDER KIND`."""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train


def save(folder: str, **values) -> None:
    """Saves variables as step 1."""
    with hl.Graph().as_default(), hl.Session() as session:
        for name, value in values.items():
            hl.Variable(value, name=name)
        session.run(hl.global_variables_initializer())
        train.Saver().save(session, f"{folder}/model.ckpt", 1)


def on_devices(folder: str) -> None:
    """Saves from as many devices as there are, in all processes."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.jit(lambda: jnp.arange(512.0).reshape(16, 32), out_shardings=jax.NamedSharding(mesh, jax.P("x")))()
    save(folder, rows=rows)


def wide(folder: str) -> None:
    """Saves numbers of 64 bits, which 32 cannot hold."""
    jax.config.update("jax_enable_x64", True)
    save(folder, whole=jnp.array([2**40 + 1, 0]), real=jnp.array(1 + 2**-40), odd=jnp.array([1.0, np.nan, np.inf]))


def large(folder: str) -> None:
    """Saves sixteen variables of 8 MiB."""
    save(folder, **{f"w{number}": np.full((2, 2**20), number, np.float32) for number in range(16)})


def going(folder: str) -> None:
    """Trains until it is asked to end."""
    step = train.get_or_create_global_step()
    train_op = step.assign_add(1)
    hl.summary.scalar("step", step)
    scaffold = train.Scaffold(saver=train.Saver(max_to_keep=3))
    with train.MonitoredTrainingSession(
        checkpoint_dir=folder, scaffold=scaffold, save_checkpoint_steps=5, save_summaries_steps=1
    ) as session:
        while not session.should_stop():
            print(session.run(train_op), flush=True)
            time.sleep(0.01)


class Kill(train.SessionRunHook):
    """Kills the process after a step."""

    def __init__(self, step: int) -> None:
        self.trigger = hl.train.at_steps(step)

    def on_trigger(self, firing: train.Firing) -> None:
        """Kills the process."""
        os.kill(os.getpid(), signal.SIGKILL)


def looped(folder: str, *hooks: train.SessionRunHook) -> None:
    """Trains a loop to step 40, with evaluations and hyperparameters."""
    rows = np.linspace(-1, 1, 64, dtype=np.float32)

    def train_step(params, batch):
        loss, grad = jax.value_and_grad(lambda w: ((w * batch - batch) ** 2).mean())(params["w"])
        return {"w": params["w"] - 0.05 * grad}, {"loss": loss}

    def eval_step(params, batch):
        return {"loss": ((params["w"] * batch - batch) ** 2).mean()}

    loop = train.Loop(train_step, {"w": 0.0}, hl.data.from_arrays(rows, 8, epochs=None))
    loop.run(
        folder,
        40,
        hooks=[train.Evaluate(eval_step, hl.data.from_arrays(rows, 32), every=4, keep_best="loss"), *hooks],
        progress=False,
        checkpoints=train.CheckpointOptions(save_steps=8),
        logging=train.LoggingOptions(summary_steps=1, rate_steps=5, hparams={"rate": 0.05, "note": "<b>bold</b>"}),
    )


def killed(folder: str) -> None:
    """Does the same, and is killed after step 21."""
    looped(folder, Kill(21))


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
