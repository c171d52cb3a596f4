"""Fetches of hooks do not change the training, also when one operation returns all of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import train

pytestmark = pytest.mark.rounding

FEATURES, CLASSES, BATCH, STEPS = 32, 10, 64, 30
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, BATCH, FEATURES)).astype("float32")
Y = RNG.integers(0, CLASSES, (STEPS, BATCH))


def params():
    """Elementwise work, which XLA fuses with whatever reads it."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "w": jax.random.normal(first, (FEATURES,)),
        "scale": jnp.ones(FEATURES),
        "v": jax.random.normal(second, (FEATURES, CLASSES)) / 6,
    }


def loss_fn(params, x, y):
    hidden = jnp.sin(x * params["w"] + params["scale"]) * params["scale"]
    logits = jnp.sum(hidden[:, :, None] * params["v"], axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return losses.mean(), {"hidden": hidden, "losses": losses}


def histograms(*values):
    return [jnp.histogram(leaf, 20) for leaf in jax.tree.leaves(values)]


def one_operation(x, y):
    """Returns the training operation, and tensors to fetch: all are results of one function."""
    optimizer = optax.adam(3e-3)

    def step(params, opt_state, x, y):
        (loss, seen), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return {"params": params, "opt_state": opt_state, "loss": loss, "grads": grads, "seen": seen}

    variable = hl.Variable(params, name="params")
    opt_state = hl.Variable(lambda: optimizer.init(params()), name="opt_state")
    out = hl.op(step)(variable, opt_state, x, y)
    updates = [variable.assign(out["params"]), opt_state.assign(out["opt_state"])]
    train_op = hl.group(*updates, train.get_or_create_global_step().assign_add(1))
    shown = {name: out[name] for name in ("loss", "grads", "seen", "params")}
    return train_op, variable, {**shown, "histograms": hl.op(histograms)(out["grads"], out["seen"])}


def gradients(x, y):
    """Returns the same for gradients in the graph."""
    variable = hl.Variable(params, name="params")
    loss = hl.op(lambda params, x, y: loss_fn(params, x, y)[0])(variable, x, y)
    optimizer = train.Optimizer(optax.adam(3e-3))
    pairs = optimizer.compute_gradients(loss, [variable])
    grads = pairs[0][0]
    train_op = optimizer.apply_gradients(pairs, global_step=train.get_or_create_global_step())
    return train_op, variable, {"loss": loss, "grads": grads, "seen": hl.op(optax.tree.norm)(grads)}


class Fetch(train.SessionRunHook):
    trigger = train.every(3)

    def __init__(self, fetches):
        self.fetches = fetches


def trained(build, names):
    with hl.Graph().as_default():
        x, y = hl.placeholder("float32", [BATCH, FEATURES]), hl.placeholder("int32", [BATCH])
        train_op, variable, tensors = build(x, y)
        hooks = [Fetch(tensors[name]) for name in names if name in tensors]
        with train.MonitoredSession(hooks=hooks) as session:
            for number in range(STEPS):
                session.run(train_op, {x: X[number], y: Y[number]})
            return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(session.raw_session().run(variable))]


@pytest.mark.parametrize("build", [one_operation, gradients])
def test_hooks_do_not_change_the_bits_of_a_users_graph(build):
    lean = trained(build, [])
    assert trained(build, ["loss", "grads", "seen", "params", "histograms"]) == lean
