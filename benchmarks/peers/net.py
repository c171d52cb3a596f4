"""Network and step in Flax NNX, for the programs that take a step as it is."""

from __future__ import annotations

import jax.numpy as jnp
import optax
from flax import nnx
from task import RATE, WIDTH


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, WIDTH, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, x):
        return self.logits(nnx.relu(self.hidden(x)))


def optimizer_of(model):
    return nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)


def step_of(model, optimizer, batch):
    x, y = batch

    def loss_fn(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return {"loss": loss}


def accuracy_of(model, batch):
    x, y = batch
    return {"accuracy": jnp.mean(model(x).argmax(-1) == y)}
