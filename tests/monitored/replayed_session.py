"""A monitored training whose steps are replayed: with feeds, dropout, an iterator, a run in between, hooks that count.

Run as `python -m tests.monitored.replayed_session FOLDER KIND [KILL_STEP]`.
"""

from __future__ import annotations

import os
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

LAST_STEP, SAVE_STEPS, POISONED = 60, 10, 37
KINDS = ("fed", "iterator", "several")
DATA = np.random.default_rng(0).normal(size=(LAST_STEP * 8, 4)).astype("float32")


class Kill(hl.train.SessionRunHook):
    """Kills the process after a step."""

    def __init__(self, step):
        self.trigger = hl.train.at_steps(step)

    def on_trigger(self, firing):
        os.kill(os.getpid(), signal.SIGKILL)


def train(folder, kind, *, hooks=(), rate=0.05, width=6, poisoned=False, after=lambda: None):
    """Trains in a folder."""
    with hl.Graph().as_default():
        data = DATA.copy()
        if poisoned:
            data[8 * POISONED] = np.nan
        if kind == "fed":
            x = hl.placeholder("float32", [8, 4], name="x")
        else:
            x = hl.data.iterator(hl.data.from_arrays(data, 8, shuffle_seed=2, epochs=None), name="batches")
        initial = np.random.default_rng(1).normal(size=(4, width)).astype("float32")
        weights = hl.Variable({"hidden": initial, "out": jnp.zeros(width)}, name="weights")
        key = hl.random_key(3)

        def loss_fn(weights, x, key):
            hidden = jnp.tanh(x @ weights["hidden"])
            kept = jax.random.bernoulli(key, 0.8, hidden.shape)
            return jnp.mean((jnp.where(kept, hidden / 0.8, 0.0) @ weights["out"] - x.sum(axis=1)) ** 2)

        loss = hl.op(loss_fn, name="loss")(weights, x, key)
        step = hl.train.get_or_create_global_step()
        train_op = hl.train.Optimizer(optax.adam(rate)).minimize(loss, global_step=step)
        hl.summary.scalar("loss", loss)
        with hl.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=SAVE_STEPS,
            save_checkpoint_secs=None,
            save_summaries_steps=7,
            log_step_count_steps=9,
            scaffold=hl.train.Scaffold(saver=hl.train.Saver(max_to_keep=None)),
            hooks=[
                hl.train.StopAtStepHook(last_step=LAST_STEP),
                hl.train.NanTensorHook(loss),
                hl.train.LoggingTensorHook({"loss": loss}, every_n_iter=5),
                *hooks,
            ],
            steps_per_run=8 if kind == "several" else 1,
        ) as sess:
            while not sess.should_stop():
                if kind == "fed":
                    at = int(sess.raw_session().global_step) * 8
                    batch = {x: data[at : at + 8]}
                    if at % 64 == 0:
                        sess.run(loss, batch)  # A run that does not count.
                    sess.run([train_op, loss], batch)
                else:
                    sess.run(train_op)
        after()


def main(folder, kind, kill_step=None):
    train(folder, kind, hooks=[Kill(int(kill_step))] if kill_step else [])


if __name__ == "__main__":
    main(*sys.argv[1:])
