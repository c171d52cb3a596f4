"""The step of the benchmarks: an MLP 32-64-1 on a batch of 32, SGD. It is so short that what is around it shows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

TRANSFORMATION = optax.sgd(1e-2)

Params = dict[str, jax.Array]


def init() -> Params:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w1": jax.random.normal(keys[0], (32, 64)) / 6,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(keys[1], (64, 1)) / 8,
        "b2": jnp.zeros(1),
    }


def loss_fn(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Of features, or of sequences of them, whose hidden state goes from one to the next."""
    if x.ndim == 2:
        hidden = jnp.tanh(x @ p["w1"] + p["b1"])
    else:
        start = jnp.zeros((x.shape[1], p["b1"].size))
        hidden, _ = jax.lax.scan(lambda h, row: (jnp.tanh(row @ p["w1"] + p["b1"] + h), None), start, x)
    return jnp.mean((hidden @ p["w2"] + p["b2"] - y) ** 2)


def batch(examples: int = 32, length: int | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns a batch that is on the device; of sequences, if a length is given."""
    rng = np.random.default_rng(0)
    shape = (examples, 32) if length is None else (length, examples, 32)
    x, y = rng.normal(size=shape), rng.normal(size=(examples, 1))
    return jnp.asarray(x, "float32"), jnp.asarray(y, "float32")


def step(state, x, y):
    """One step of (params, opt_state); returns the new state and the loss."""
    params, opt_state = state
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
    changes, opt_state = TRANSFORMATION.update(gradients, opt_state, params)
    return (optax.apply_updates(params, changes), opt_state), loss


def state():
    params = init()
    return params, TRANSFORMATION.init(params)


def graph(x, y) -> tuple[hl.Tensor, hl.Operation]:
    """Builds the step in the default graph; returns its loss and its train op."""
    params = hl.Variable(init, name="params")
    loss = hl.op(loss_fn, name="loss")(params, x, y)
    hl.summary.scalar("loss", loss)
    return loss, hl.train.Optimizer(TRANSFORMATION).minimize(loss, hl.train.get_or_create_global_step())
