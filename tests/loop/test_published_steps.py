"""Steps of the forms that public projects have, under a loop and by hand: the table in docs/use-your-model.md.

None is theirs. Each is the smallest step that takes and returns things as theirs does.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.training.train_state import TrainState

import hookline as hl

STEPS, BATCH = 3, 8
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
Y = X.sum(axis=1)
OPTIMIZER = optax.sgd(0.1)


def error_of(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def parts():
    return [(X[BATCH * n : BATCH * n + BATCH], Y[BATCH * n : BATCH * n + BATCH]) for n in range(STEPS)]


def assert_same(one: Any, other: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if eqx.is_array(theirs):
            np.testing.assert_allclose(jax.device_get(ours), jax.device_get(theirs), rtol=1e-5, atol=1e-6)


def updated(w, opt_state, grads):
    change, opt_state = OPTIMIZER.update(grads, opt_state, w)
    return optax.apply_updates(w, change), opt_state


# Equinox -----------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def equinox_mnist(model, opt_state, x, y):
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2))(model)
    change, opt_state = OPTIMIZER.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, change), opt_state, loss


def equinox_rnn(model, x, y, opt_state):
    model, opt_state, loss = equinox_mnist(model, opt_state, x, y)
    return loss, model, opt_state


def equinox_stateful(model, state, opt_state, xs, ys):
    model, opt_state, _ = equinox_mnist(model, opt_state, xs, ys)
    return model, state + 1, opt_state


# Optax -------------------------------------------------------------------------------------------------------------


@jax.jit
def optax_getting_started(params, opt_state, batch, labels):
    loss, grads = jax.value_and_grad(error_of)(params, batch, labels)
    return *updated(params, opt_state, grads), loss


@nnx.jit
def optax_mlp(model, optimizer, batch):
    x, y = batch

    def loss_fn(model):
        predicted = model(x)[:, 0]
        return jnp.mean((predicted - y) ** 2), jnp.mean(jnp.abs(predicted - y) < 0.5)

    (loss, accuracy), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, {"accuracy": accuracy}


# big_vision, EasyLM, scenic, brax ----------------------------------------------------------------------------------


@functools.partial(jax.jit, donate_argnums=0)
def big_vision(train_state, rng, batch):
    del rng
    loss, grads = jax.value_and_grad(error_of)(train_state["params"], *batch)
    params, opt_state = updated(train_state["params"], train_state["opt"], grads)
    return {"params": params, "opt": opt_state}, {"training_loss": loss, "l2_grads": jnp.linalg.norm(grads)}


def easylm(train_state, rng, batch):
    rng, used = jax.random.split(rng)
    noise = 0.01 * jax.random.normal(used, batch["x"].shape)
    loss, grads = jax.value_and_grad(lambda p: error_of(p["w"], batch["x"] + noise, batch["y"]))(train_state.params)
    return train_state.apply_gradients(grads=grads), rng, {"loss": loss}


@struct.dataclass
class ScenicState:
    global_step: int
    params: Any
    rng: Any


def scenic(train_state, batch, *, lr_fn):
    rng, _ = jax.random.split(train_state.rng)
    loss, grads = jax.value_and_grad(error_of)(train_state.params, *batch)
    params = train_state.params - lr_fn(train_state.global_step) * grads
    state = train_state.replace(global_step=train_state.global_step + 1, params=params, rng=rng)
    return state, {"loss": (loss * len(batch[0]), len(batch[0]))}, {"learning_rate": lr_fn(train_state.global_step)}


def brax(carry, data, normalizer_params):
    opt_state, params, key = carry
    key, _ = jax.random.split(key)
    (_, metrics), grads = jax.value_and_grad(
        lambda params: (error_of(params, *data) / normalizer_params, {"total_loss": error_of(params, *data)}),
        has_aux=True,
    )(params)
    params, opt_state = updated(params, opt_state, grads)
    return (opt_state, params, key), metrics


# PureJaxRL, CleanRL, jaxrl -----------------------------------------------------------------------------------------


def purejaxrl(train_state, batch_info):
    def loss_fn(params):
        loss = error_of(params["w"], *batch_info)
        return loss, (2 * loss, 3 * loss)

    total_loss, grads = jax.value_and_grad(loss_fn, has_aux=True)(train_state.params)
    return train_state.apply_gradients(grads=grads), total_loss


@jax.jit
def cleanrl(q_state, observations, rewards):
    def loss_fn(params):
        predicted = observations @ params["w"]
        return jnp.mean((predicted - rewards) ** 2), predicted

    (loss, predicted), grads = jax.value_and_grad(loss_fn, has_aux=True)(q_state.params)
    return loss, predicted, q_state.apply_gradients(grads=grads)


@functools.partial(jax.jit, static_argnames="update_target")
def jaxrl(rng, actor, target, batch, tau, update_target):
    rng, _ = jax.random.split(rng)
    loss, grads = jax.value_and_grad(lambda params: error_of(params["w"], batch.x, batch.y))(actor.params)
    actor = actor.apply_gradients(grads=grads)
    if update_target:
        target = optax.incremental_update(actor.params["w"], target, tau)
    return rng, actor, target, {"actor_loss": loss}


class Batch(NamedTuple):
    x: Any
    y: Any


# All of them -------------------------------------------------------------------------------------------------------


def train_state():
    return TrainState.create(apply_fn=None, params={"w": jnp.zeros(4)}, tx=OPTIMIZER)


def linear():
    model = eqx.nn.Linear(4, 1, key=jax.random.key(0))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))


def by_hand(case):
    """Runs the loop that the project writes; returns the state and the metrics of the last step."""
    state, returned = case.state, None
    for batch in parts():
        state, returned = case.hand(state, batch)
    return state, returned


class Case(NamedTuple):
    """A step, its state, one turn of the loop around it, and the names of its metrics."""

    step: Any
    state: Any
    hand: Any
    metrics: list[str]
    batch: Any = lambda x, y: (x, y)


def cases() -> dict[str, Case]:
    model, opt_state = linear()
    start = optax.sgd(0.1).init(jnp.zeros(4))
    key = jax.random.key(1)

    def rnn(state, batch):
        loss, model, opt_state = equinox_rnn(state["model"], *batch, state["opt_state"])
        return {"model": model, "opt_state": opt_state}, (loss,)

    def lm(state, batch):
        train_state, rng, metrics = easylm(state["train_state"], state["rng"], {"x": batch[0], "y": batch[1]})
        return {"train_state": train_state, "rng": rng}, metrics.values()

    def sac(state, batch):
        rng, actor, target, metrics = jaxrl(*state.values(), Batch(*batch), tau=0.1, update_target=True)
        return {"rng": rng, "actor": actor, "target": target}, metrics.values()

    def stateful(state, batch):
        model, count, opt_state = equinox_stateful(*state.values(), *batch)
        return {"model": model, "state": count, "opt_state": opt_state}, ()

    def apart(count):
        return lambda returned: (returned[:count], returned[count:])

    def pair(returned):
        return returned[0], jax.tree.leaves(returned[1])

    scenic_step = functools.partial(scenic, lr_fn=lambda step: 0.1 / (step + 1))
    brax_step = functools.partial(brax, normalizer_params=2.0)
    fresh = ScenicState(0, jnp.zeros(4), key)
    return {
        "equinox mnist": Case(
            equinox_mnist, (model, opt_state), lambda s, b: apart(2)(equinox_mnist(*s, *b)), ["loss"]
        ),
        "equinox rnn": Case(equinox_rnn, {"model": model, "opt_state": opt_state}, rnn, ["loss"]),
        "equinox stateful": Case(
            equinox_stateful, {"model": model, "state": jnp.zeros((), int), "opt_state": opt_state}, stateful, []
        ),
        "optax": Case(
            optax_getting_started,
            (jnp.zeros(4), start),
            lambda s, b: apart(2)(optax_getting_started(*s, *b)),
            ["loss"],
        ),
        "big_vision": Case(
            big_vision,
            {"params": jnp.zeros(4), "opt": start},
            lambda s, b: pair(big_vision(jax.tree.map(jnp.copy, s), key, b)),
            ["l2_grads", "training_loss"],
        ),
        "easylm": Case(easylm, {"train_state": train_state(), "rng": key}, lm, ["loss"], lambda x, y: {"x": x, "y": y}),
        "scenic": Case(
            scenic_step,
            fresh,
            lambda s, b: (lambda r: (r[0], jax.tree.leaves(r[1:])))(scenic_step(s, b)),
            ["loss/0", "loss/1", "learning_rate"],
        ),
        "brax": Case(brax_step, (start, jnp.zeros(4), key), lambda s, b: pair(brax_step(s, b)), ["total_loss"]),
        "purejaxrl": Case(purejaxrl, train_state(), lambda s, b: pair(purejaxrl(s, b)), ["loss", "aux/0", "aux/1"]),
        "cleanrl": Case(
            cleanrl, train_state(), lambda s, b: (lambda r: (r[2], r[:2]))(cleanrl(s, *b)), ["loss", "aux"]
        ),
        "jaxrl": Case(
            functools.partial(jaxrl, tau=0.1, update_target=True),
            {"rng": key, "actor": train_state(), "target": jnp.zeros(4)},
            sac,
            ["actor_loss"],
            Batch,
        ),
    }


class Last(hl.train.SessionRunHook):
    """Keeps the metrics of the last step."""

    def __init__(self, metrics):
        self.metrics = metrics

    def before_run(self, run_context):
        return hl.train.SessionRunArgs(self.metrics)

    def after_run(self, run_context, run_values):
        self.values = run_values.results


@pytest.mark.parametrize("name", list(cases()))
def test_published_step_trains_unchanged(name):
    case = cases()[name]
    batches = hl.data.from_arrays(case.batch(X, Y), BATCH)
    loop = hl.train.Loop(case.step, case.state, batches)
    assert sorted(loop.metrics) == sorted(case.metrics)
    last = Last(loop.metrics)
    final = loop.run(
        hooks=[last], progress=False, log_steps=None, nan_check=None, logging=hl.train.LoggingOptions(rate_steps=None)
    )
    state, told = by_hand(cases()[name])
    assert jax.tree.structure(final) == jax.tree.structure(state)
    assert_same(jax.tree.map(_numbers, final), jax.tree.map(_numbers, state))
    wanted = sorted(float(np.sum(value)) for value in told)
    assert sorted(float(np.sum(value)) for value in last.values.values()) == pytest.approx(wanted, rel=1e-4)


def _numbers(leaf):
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
