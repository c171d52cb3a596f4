"""One small problem, and usual train steps for it: each makes a state, a step, and the learnt weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState

import hookline as hl

FEATURES, BATCH = 4, 32
X = np.random.default_rng(0).normal(size=(256, FEATURES)).astype("float32")
Y = np.tanh(X).sum(axis=1)


def batches(epochs: int | None = None) -> Any:
    return hl.data.from_arrays((X, Y), BATCH, shuffle_seed=1, epochs=epochs)


def mse(predicted: Any, wanted: Any) -> Any:
    return jnp.mean((predicted - wanted) ** 2)


@dataclasses.dataclass
class Written:
    """A train step as it was written, its state, and a function that reads the weights of such a state."""

    step: Callable[..., Any]
    state: Any
    weights: Callable[[Any], Any]
    alone: bool = False
    """Whether it returns metrics alone."""


# Flax NNX ----------------------------------------------------------------------------------------------------------


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(FEATURES, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))[:, 0]


def nnx_step(model, optimizer, batch):
    x, y = batch
    loss, gradients = nnx.value_and_grad(lambda model: mse(model(x), y))(model)
    optimizer.update(model, gradients)
    return {"loss": loss}


def nnx_objects(jit: bool) -> Written:
    model = NnxNet(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = nnx.jit(nnx_step) if jit else nnx_step
    return Written(step, (model, optimizer), lambda state: nnx.state(state[0], nnx.Param), alone=True)


def nnx_functional() -> Written:
    model = NnxNet(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    graphdef, state = nnx.split((model, optimizer))

    @jax.jit
    def step(state, batch):
        model, optimizer = nnx.merge(graphdef, state)
        metrics = nnx_step(model, optimizer, batch)
        return nnx.state((model, optimizer)), metrics

    return Written(step, state, lambda state: nnx.filter_state(state, nnx.Param))


# Flax Linen --------------------------------------------------------------------------------------------------------


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(16)(x)))[:, 0]


def linen_step(state, batch):
    x, y = batch

    def loss_fn(params):
        return mse(state.apply_fn({"params": params}, x), y)

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), {"loss": loss, "norm": optax.tree.norm(gradients)}


def linen(jit: Callable[[Any], Any]) -> Written:
    net = LinenNet()
    params = net.init(jax.random.key(0), X[:1])["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2))
    return Written(jit(linen_step), state, lambda state: state.params)


# Equinox -----------------------------------------------------------------------------------------------------------


def equinox(jit: Callable[[Any], Any]) -> Written:
    model = eqx.nn.Sequential(
        [
            eqx.nn.MLP(FEATURES, 1, 16, 1, key=jax.random.key(0)),
            eqx.nn.Dropout(0.1, inference=True),  # A number and a flag, which stay outside.
            eqx.nn.Lambda(lambda y: y[0]),
        ]
    )
    optimizer = optax.adam(1e-2)

    def step(state, batch):
        (model, opt_state), (x, y) = state, batch
        loss, gradients = eqx.filter_value_and_grad(lambda model: mse(jax.vmap(model)(x), y))(model)
        updates, opt_state = optimizer.update(gradients, opt_state, model)
        return (eqx.apply_updates(model, updates), opt_state), {"loss": loss}

    state = model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    return Written(jit(step), state, lambda state: eqx.filter(state[0], eqx.is_inexact_array))


# Plain JAX ---------------------------------------------------------------------------------------------------------


def plain(jit: Callable[[Any], Any]) -> Written:
    first, second = jax.random.split(jax.random.key(0))
    state = {
        "params": {"w": jax.random.normal(first, (FEATURES, 16)) / 2, "v": jax.random.normal(second, (16,)) / 4},
        "seen": np.zeros((), "int32"),
    }

    def step(state, batch):
        x, y = batch

        def loss_fn(params):
            return mse(jnp.tanh(x @ params["w"]) @ params["v"], y)

        loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradients)
        return {"params": params, "seen": state["seen"] + len(x)}, loss

    return Written(jit(step), state, lambda state: state["params"])


def as_it_is(step: Any) -> Any:
    return step


donating = functools.partial(jax.jit, donate_argnums=0)

WRITTEN: dict[str, Callable[[], Written]] = {
    "nnx": lambda: nnx_objects(jit=False),
    "nnx, jitted": lambda: nnx_objects(jit=True),
    "nnx, functional": nnx_functional,
    "linen": lambda: linen(as_it_is),
    "linen, jitted": lambda: linen(jax.jit),
    "linen, donating": lambda: linen(donating),
    "equinox": lambda: equinox(as_it_is),
    "equinox, filter_jit": lambda: equinox(eqx.filter_jit),
    "equinox, donating": lambda: equinox(eqx.filter_jit(donate="all")),
    "plain": lambda: plain(as_it_is),
    "plain, donating": lambda: plain(donating),
}


def train(loop: Any, by_hand: bool, **arguments: Any) -> None:
    """Runs a loop, or the loop that people write around its session."""
    if not by_hand:
        loop.run(**arguments)
        return
    with loop.session(**arguments) as session:
        while not session.should_stop():
            session.run(loop.train_op)


def by_hand(written: Written, steps: int) -> tuple[Any, list[float]]:
    """Returns the result of a manual loop: the state, and the losses."""
    state, losses = written.state, []
    step = nnx.jit(written.step) if written.alone else eqx.filter_jit(written.step)
    for _, batch in zip(range(steps), batches(), strict=False):
        if written.alone:
            metrics = step(*state, batch)
        else:
            state, metrics = step(state, batch)
        losses.append(float(metrics["loss"] if isinstance(metrics, dict) else metrics))
    return state, losses
