"""Network, loss and step in plain JAX and Optax, for the programs that take a step as it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from task import CLASSES, DROPOUT, INPUTS, RATE, WIDTH

optimizer = optax.adam(RATE)


def init():
    sizes = (INPUTS, WIDTH, WIDTH, CLASSES)
    keys = jax.random.split(jax.random.key(0), 3)
    params = [
        {"w": jax.random.normal(key, (rows, columns)) * (2 / rows) ** 0.5, "b": jnp.zeros(columns)}
        for key, rows, columns in zip(keys, sizes, sizes[1:], strict=False)
    ]
    return params, optimizer.init(params)


def loss_of(params, batch, key):
    x, y = batch
    for layer, dropout_key in zip(params[:-1], jax.random.split(key), strict=True):
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
        x = jnp.where(jax.random.bernoulli(dropout_key, 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0)
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def train_step(params, opt_state, batch, key):
    loss, grads = jax.value_and_grad(loss_of)(params, batch, key)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss
