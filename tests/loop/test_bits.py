"""Other results of a step do not change its state, whatever hooks fetch of them and when."""

from __future__ import annotations

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import train

from .devices import run
from .test_steps_per_run import OPTIMIZERS, bits, transformer

pytestmark = pytest.mark.rounding

FEATURES, CLASSES, BATCH, LAST_STEP = 32, 10, 64, 18
MODULE = "tests.loop.test_bits"


def batches():
    rng = np.random.default_rng(0)
    while True:
        yield rng.normal(size=(BATCH, FEATURES)).astype("float32"), rng.integers(0, CLASSES, BATCH)


# Models: the parameters, and a function from them and inputs to logits and activations ----------------------------


def make(*shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(k, s) / max(1, np.prod(s[:-1])) ** 0.5 for k, s in zip(keys, shapes, strict=True)]


def elementwise():
    w, v = make((FEATURES,), (FEATURES, CLASSES))
    return {"w": w, "scale": jnp.ones(FEATURES), "v": v}


def elementwise_logits(params, x):
    hidden = jnp.sin(x * params["w"] + params["scale"]) * params["scale"]
    return jnp.sum(hidden[:, :, None] * params["v"], axis=1), {"hidden": hidden}


def mlp():
    w, v, u = make((FEATURES, 64), (64, 48), (48, CLASSES))
    return {"w": w, "b": jnp.zeros(64), "v": v, "u": u}


def mlp_logits(params, x):
    first = jnp.tanh(x @ params["w"] + params["b"])
    second = jax.nn.relu(first @ params["v"])
    return second @ params["u"], {"first": first, "second": second}


def convolutional():
    w, v, u = make((3, 3, 1, 8), (3, 3, 8, 16), (16, CLASSES))
    return {"w": w, "v": v, "b": jnp.zeros(8), "u": u}


def convolutional_logits(params, x):
    def convolved(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    first = jax.nn.relu(convolved(x.reshape(-1, 4, 8, 1), params["w"]) + params["b"])
    second = jax.nn.gelu(convolved(first, params["v"]))
    return second.mean(axis=(1, 2)) @ params["u"], {"first": first, "second": second}


def attention():
    inner, out = make((8, 32), (32, CLASSES))
    return {**transformer(jax.random.key(0), depth=1), "inner": inner, "out": out}


def attention_logits(params, x):
    seen = x.reshape(-1, 4, 8) @ params["inner"] + params["places"]
    for block in params["blocks"]:
        q, k, v = jnp.split((jax.nn.standardize(seen) @ block["qkv"]).reshape(*seen.shape[:2], 12, 8), 3, axis=2)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(seen.shape)
        seen += attended @ block["out"]
        seen += jax.nn.gelu(jax.nn.standardize(seen) @ block["up"]) @ block["down"]
    return seen.mean(axis=1) @ params["out"], {"attended": attended, "seen": seen}


MODELS = {
    "elementwise": (elementwise, elementwise_logits),
    "mlp": (mlp, mlp_logits),
    "convolutional": (convolutional, convolutional_logits),
    "transformer": (attention, attention_logits),
}


# Steps, which return everything that one may want to see -------------------------------------------------------------


def step_of(logits_of, optimizer, parts):
    def loss_fn(params, x, y):
        logits, activations = logits_of(params, x)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        decay = 1e-3 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return each.mean() + decay, {"each": each, "logits": logits, "activations": activations}

    def grads_of(params, batch):
        (loss, seen), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, *batch)
        return grads, {"loss": loss, "norm": optax.tree.norm(grads), **seen}

    @jax.jit
    def step(state, batch):
        if parts == 1:
            grads, metrics = grads_of(state["params"], batch)
        else:

            def add(total, part):
                grads, metrics = grads_of(state["params"], part)
                return jax.tree.map(lambda a, b: a + b / parts, total, grads), metrics

            split = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), batch)
            grads, metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, state["params"]), split)
            metrics["loss"] = metrics["loss"].mean()
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        metrics |= {"grads": numbered(grads), "updates": numbered(updates), "weights": optax.tree.norm(params)}
        return {"params": params, "opt_state": opt_state}, metrics

    return step


def numbered(tree):
    return {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(tree))}


# Hooks ---------------------------------------------------------------------------------------------------------------


class Fetch(train.SessionRunHook):
    def __init__(self, fetches, every, late=False):
        self.fetches, self.trigger, self.deferred = fetches, train.every(every), late

    def on_trigger(self, firing):
        jax.tree.map(np.asarray, firing.values)


def grads(loop, count=2):
    return [metric for name, metric in loop.metrics.items() if name.startswith("grads/")][:count]


def histograms(loop):
    with loop.graph.as_default():
        return [hl.op(lambda value: jnp.histogram(value, 5)[0])(loop.metrics[name]) for name in ("each", "logits")]


HOOKS = {
    "two gradients": lambda loop: [Fetch(grads(loop), 3)],
    "each metric at a time of its own": lambda loop: [
        Fetch(metric, 1 + place % 4, late=place % 2 == 0) for place, metric in enumerate(loop.metrics.values())
    ],
    "histograms": lambda loop: [Fetch(histograms(loop), 4)],
    "NaN": lambda loop: [train.NanTensorHook(metric) for metric in (*grads(loop), loop.metrics["norm"])],
    "the state": lambda loop: [Fetch(loop.state, 5)],
    "summaries 1": lambda loop: [],
    "summaries 7": lambda loop: [],
}
QUIET = {
    "logging": train.LoggingOptions(summary_steps=None), "log_steps": None, "nan_check": None, "progress": False,
}  # fmt: skip


def trained(model, optimizer, kinds=(), logdir=None, many=1, parts=1):
    begin, logits_of = MODELS[model]
    chosen, params = OPTIMIZERS[optimizer], begin()
    state = {"params": params, "opt_state": chosen.init(params)}
    if jax.device_count() > 1:
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        state = jax.device_put(state, jax.NamedSharding(mesh, jax.P()))
    loop = train.Loop(step_of(logits_of, chosen, parts), state, batches, steps_per_run=many)
    found, settings = [], dict(QUIET)
    for kind in kinds:
        found += HOOKS[kind](loop)
        if kind.startswith("summaries"):
            written = train.LoggingOptions(summary_steps=int(kind.split()[1]))
            settings |= {"logging": written, "log_steps": 5, "nan_check": "loss"}
    return bits(loop.run(logdir, hooks=found, last_step=LAST_STEP, **settings))


# Adam and elementwise gradients: without the barriers each of these has different last bits.
@pytest.mark.parametrize(
    ("model", "optimizer", "kinds", "many", "parts"),
    [
        ("elementwise", "adam", ["summaries 7"], 1, 1),
        ("mlp", "adam", ["two gradients", "NaN"], 1, 1),
        ("mlp", "adam", ["each metric at a time of its own"], 16, 1),
        ("mlp", "adam", ["two gradients"], 1, 2),
    ],
)
def test_hooks_do_not_change_the_bits_of_the_state(model, optimizer, kinds, many, parts, tmp_path):
    lean = trained(model, optimizer, parts=parts)
    assert trained(model, optimizer, kinds, str(tmp_path), many, parts) == lean


@pytest.mark.campaign
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_no_hook_changes_a_bit_in_a_new_process(model, optimizer, devices, tmp_path):
    run(devices, ["-m", MODULE, model, optimizer, tmp_path])


def campaign(model, optimizer, directory):
    """Compares each kind of hooks, all of them and none, for single steps, runs of 16 and accumulated gradients."""
    for parts, many in itertools.product((1, 2), (1, 16)):
        lean = trained(model, optimizer, many=many, parts=parts)
        for place, kinds in enumerate([*([kind] for kind in HOOKS), list(HOOKS)]):
            logdir = os.path.join(directory, f"{parts}-{many}-{place}")
            assert trained(model, optimizer, kinds, logdir, many, parts) == lean, (parts, many, kinds)


if __name__ == "__main__":
    import sys

    campaign(*sys.argv[1:])
