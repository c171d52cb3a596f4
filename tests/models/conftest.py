"""One small problem, and a network for it in each of four libraries, trained under a monitored session."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from orbax.checkpoint import v1 as ocp

import hookline as hl

FEATURES, CLASSES, BATCH = 8, 3, 32
RULE = np.random.default_rng(0).normal(size=(FEATURES, CLASSES))


def draw_batch(step: Any) -> tuple[np.ndarray, np.ndarray]:
    """The batch belongs to the step: a resumed run goes on with the right one."""
    x = np.random.default_rng(int(step)).normal(size=(BATCH, FEATURES)).astype("float32")
    return x, np.argmax(x @ RULE, axis=1).astype("int32")


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@dataclasses.dataclass
class Job:
    """A network: a loss to minimise, and updates of untrained parts."""

    loss: hl.Tensor
    updates: tuple[Any, ...] = ()


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(FEATURES, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.logits = nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.logits(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def build_nnx(x: Any, y: Any) -> Job:
    graphdef, params, rest = nnx.split(NnxNet(nnx.Rngs(0)), nnx.Param, ...)
    params = hl.Variable(params, name="params")
    rest = hl.Variable(rest, name="rest", trainable=False)

    def forward(params, rest, x, y):
        net = nnx.merge(graphdef, params, rest)
        loss = cross_entropy(net(x), y)
        return loss, nnx.split(net, nnx.Param, ...)[2]

    loss, after = hl.op(forward)(params, rest, x, y)
    return Job(loss, (rest.assign(after),))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(32)(x)))
        return nn.Dense(CLASSES)(nn.Dropout(0.2, deterministic=not train)(x))


def build_linen(x: Any, y: Any) -> Job:
    net = LinenNet()
    initial = hl.op(lambda: net.init(jax.random.key(0), jnp.zeros((1, FEATURES)), train=False)).node()
    params = hl.Variable(initial["params"], name="params")
    statistics = hl.Variable(initial["batch_stats"], name="statistics", trainable=False)

    def forward(params, statistics, key, x, y):
        variables, rngs = {"params": params, "batch_stats": statistics}, {"dropout": key}
        logits, moved = net.apply(variables, x, train=True, rngs=rngs, mutable=["batch_stats"])
        return cross_entropy(logits, y), moved["batch_stats"]

    loss, moved = hl.op(forward)(params, statistics, hl.random_key(), x, y)
    return Job(loss, (statistics.assign(moved),))


class EquinoxNet(eqx.Module):
    hidden: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    logits: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.hidden = eqx.nn.Linear(FEATURES, 32, key=first)
        self.norm = eqx.nn.BatchNorm(32, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.2)
        self.logits = eqx.nn.Linear(32, CLASSES, key=second)

    def __call__(self, x, state, key):
        x, state = self.norm(self.hidden(x), state)
        return self.logits(self.dropout(jax.nn.relu(x), key=key)), state


def build_equinox(x: Any, y: Any) -> Job:
    net, state = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_inexact_array)
    params = hl.Variable(params, name="params")
    state = hl.Variable(state, name="state", trainable=False)

    def forward(params, state, key, x, y):
        net = eqx.combine(params, static)
        keys = jax.random.split(key, len(x))
        logits, state = jax.vmap(net, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(x, state, keys)
        return cross_entropy(logits, y), state

    loss, after = hl.op(forward)(params, state, hl.random_key(), x, y)
    return Job(loss, (state.assign(after),))


def build_plain(x: Any, y: Any) -> Job:
    def initial():
        first, second = jax.random.split(jax.random.key(0))
        return {
            "hidden": {"w": jax.random.normal(first, (FEATURES, 32)) / 3, "b": jnp.zeros(32)},
            "logits": {"w": jax.random.normal(second, (32, CLASSES)) / 6, "b": jnp.zeros(CLASSES)},
        }

    def forward(params, key, x, y):
        x = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
        x = x * jax.random.bernoulli(key, 0.8, x.shape) / 0.8
        return cross_entropy(x @ params["logits"]["w"] + params["logits"]["b"], y)

    return Job(hl.op(forward)(hl.variables(initial, name="params"), hl.random_key(), x, y))


NETWORKS = {"nnx": build_nnx, "linen": build_linen, "equinox": build_equinox, "plain": build_plain}


@pytest.fixture(params=NETWORKS)
def network(request) -> Callable[[Any, Any], Job]:
    """Builds one of the four networks: `network(x, y)`."""
    return NETWORKS[request.param]


@pytest.fixture
def train() -> Callable[..., list[Any]]:
    return run_job


def run_job(
    build: Callable[[Any, Any], Any],
    folder: Path,
    last_step: int,
    fetch: Callable[[Any], Any] = lambda job: job.loss,
    transformation: optax.GradientTransformation | None = None,
) -> list[Any]:
    """Trains in a new graph, from the checkpoint in `folder` if there is one.

    Returns:
        What `fetch(job)` asks for, of each step of this run.
    """
    with hl.Graph(seed=3).as_default():
        step = hl.train.get_or_create_global_step()
        x, y = hl.host_op(draw_batch, spec=draw_batch(0))(step)
        job = build(x, y)
        minimize = hl.train.Optimizer(transformation or optax.adam(1e-2)).minimize(job.loss, global_step=step)
        train_op = hl.group(minimize, *job.updates)
        wanted, results = fetch(job), []
        with hl.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=[hl.train.StopAtStepHook(last_step=last_step)], save_summaries_steps=None
        ) as sess:
            while not sess.should_stop():
                results.append(sess.run((train_op, wanted))[1])
        return jax.tree.map(np.asarray, results)


@pytest.fixture
def saved() -> Callable[[Path], dict[str, np.ndarray]]:
    return read_checkpoint


def read_checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """Returns each leaf of the newest checkpoint as Orbax alone reads it: keys as the numbers they are made of."""
    path = hl.train.latest_checkpoint(str(folder))
    assert path is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That no shardings are given.
        return jax.tree.map(np.asarray, ocp.load(path))
