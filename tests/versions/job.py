"""A training that goes on where it stopped, and prints what it restored and what it came to, bit by bit.

`python -m tests.versions.job FOLDER LAST_STEP`: dropout, Adam with a schedule, an average, an evaluation that keeps the
best, shuffled batches and two steps a run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl
from hookline import train

optimizer = optax.adam(optax.cosine_decay_schedule(0.01, 60))


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def loss_fn(params, batch, key):
    x, y = batch
    kept = jax.random.bernoulli(key, 0.8, x.shape)
    return jnp.mean((predict(params, jnp.where(kept, x / 0.8, 0)) - y) ** 2)


def train_step(state, batch, key):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, key)
    updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}


def eval_step(state, batch):
    x, y = batch
    return {"loss": jnp.mean((predict(state["params"], x) - y) ** 2)}


def start():
    random = np.random.default_rng(0)
    sizes = [16, 64, 64, 1]
    layers = itertools.pairwise(sizes)
    params = [(random.normal(0, n**-0.5, (n, m)).astype("float32"), np.zeros(m, "float32")) for n, m in layers]
    return {"params": params, "opt_state": optimizer.init(params)}


def digest(values):
    return {
        jax.tree_util.keystr(path): hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()
        for path, leaf in jax.tree_util.tree_leaves_with_path(values)
    }


class Restored(train.SessionRunHook):
    """Records the first step of the session."""

    def __init__(self, loop):
        self._state = loop.state

    def after_create_session(self, session, coord):
        self.found = digest(session.run(self._state))


def main(folder, last_step):
    random = np.random.default_rng(1)
    x = random.normal(size=(500, 16)).astype("float32")
    y = np.sin(x.sum(1, keepdims=True))
    batches = hl.data.from_arrays((x[:400], y[:400]), 32, shuffle_seed=0, epochs=None)
    loop = train.Loop(train_step, start(), batches, seed=3, steps_per_run=2, ema=0.9)
    restored = Restored(loop)
    evaluate = train.Evaluate(eval_step, hl.data.from_arrays((x[400:], y[400:]), 50), every=10, keep_best="loss")
    state = loop.run(folder, last_step=int(last_step), hooks=[restored, evaluate], progress=False)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state["params"])])
    print(
        json.dumps(
            {"jax": jax.__version__, "restored": restored.found, "state": digest(state), "params": numbers.tolist()}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
