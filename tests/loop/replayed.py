"""Trainings whose steps are replayed: with dropout, averages, an evaluation that keeps the best and sets the rate.

Run as `python -m tests.loop.replayed FOLDER KIND [KILL_STEP]`, it trains up to the last step, or kills itself after a
step.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

LAST_STEP, SAVE_STEPS, POISONED = 90, 10, 34
KINDS = ("single", "several", "grain", "generators", "rollback", "rollback several")


def made(kind, *, rate=0.05, until=LAST_STEP, hooks=()):
    """Returns a loop and the arguments of its `run`."""
    import grain
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    x = np.random.default_rng(0).normal(size=(100 * 16, 4)).astype("float32")
    if kind.startswith("rollback"):
        x[16 * POISONED] = np.nan
    y = np.tanh(x).sum(axis=1)
    shuffle = None if kind.startswith("rollback") else 7
    arrays = hl.data.from_arrays((x, y), 16, shuffle_seed=shuffle, epochs=None)
    batches = {
        "grain": lambda: grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=3).repeat().batch(16),
        "generators": lambda: lambda: iter(hl.data.from_arrays((x, y), 16, shuffle_seed=5)),
    }.get(kind, lambda: arrays)()
    optimizer = optax.inject_hyperparams(optax.adam)(rate)

    def step(params, opt_state, batch, key):
        inputs, wanted = batch

        def loss_fn(params):
            hidden = jnp.tanh(inputs @ params["hidden"])
            kept = jax.random.bernoulli(key, 0.8, hidden.shape)
            return jnp.mean((jnp.where(kept, hidden / 0.8, 0.0) @ params["out"] - wanted) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    def eval_step(params, batch):
        return {"loss": jnp.mean((jnp.tanh(batch[0] @ params["hidden"]) @ params["out"] - batch[1]) ** 2)}

    def slow_down(result):
        if result.step % 20:
            result.state["learning_rate"] *= 0.9

    params = {
        "hidden": jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)), "float32"),
        "out": jnp.zeros(8),
    }
    loop = hl.train.Loop(
        step,
        {"params": params, "opt_state": optimizer.init(params)},
        batches,
        seed=3,
        ema={"params": 0.9},
        steps_per_run=16 if kind in ("several", "rollback several") else 1,
    )
    held_out = hl.data.from_arrays((np.nan_to_num(x[:64]), np.nan_to_num(y[:64])), 32)
    evaluate = hl.train.Evaluate(eval_step, held_out, every=15, keep_best="loss", on_result=slow_down)
    arguments = {
        "last_step": until,
        "hooks": [evaluate, hl.train.StopIfNoImprovement("loss", patience=50), *hooks],
        "log_steps": 7,
        "progress": False,
        "on_nan": "rollback" if kind.startswith("rollback") else "raise",
        "checkpoints": hl.train.CheckpointOptions(save_steps=SAVE_STEPS, saver=hl.train.Saver(max_to_keep=None)),
    }
    return loop, arguments


def fingerprint(folder):
    """Returns the names in a folder and below, with their times of change and the sums of their contents."""
    found = {}
    for path in [Path(folder), *Path(folder).rglob("*")]:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.stat().st_mtime_ns, path.stat().st_mode, content)
    return found


def main(folder, kind, kill_step=None):
    import hookline as hl

    class Kill(hl.train.SessionRunHook):
        trigger = hl.train.at_steps(int(kill_step or 10**6))

        def on_trigger(self, firing):
            os.kill(os.getpid(), signal.SIGKILL)

    loop, arguments = made(kind, hooks=[Kill()])
    loop.run(folder, **arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
