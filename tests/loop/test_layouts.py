"""A training resumes in another layout with the same bits, and to the same end."""

from __future__ import annotations

import json
import textwrap

import pytest

from .devices import run

pytestmark = pytest.mark.campaign

PAIRS = [("one", "fsdp"), ("fsdp", "parallel"), ("parallel", "fsdp"), ("fsdp", "tensor"), ("tensor", "two")]

TRAIN = """
import json, sys, zlib
import jax, jax.numpy as jnp, numpy as np, optax
import hookline as hl

def mesh(*sizes):
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, ("x", "y")[:len(sizes)], axis_types=kinds, devices=jax.devices()[:np.prod(sizes)])

def placed(state, layout):
    match layout:
        case "one":
            return state
        case "parallel":
            on, spec = mesh(4), lambda leaf: jax.P()
        case "fsdp":
            on, spec = mesh(4), lambda leaf: jax.P(*["x"][:leaf.ndim])
        case "two":
            on, spec = mesh(2), lambda leaf: jax.P(*[None, "x"][:leaf.ndim])
        case "tensor":
            on, spec = mesh(2, 2), lambda leaf: jax.P(*["x", "y"][:leaf.ndim])
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.NamedSharding(on, spec(leaf))), state)

def loss_fn(params, batch):
    return jnp.mean((jnp.tanh(batch @ params["w"]) @ params["v"] - batch.sum(axis=1)) ** 2)

def step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
    updates, opt_state = optax.adam(1e-2).update(grads, state["opt_state"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}

def bits(state):
    return [zlib.crc32(np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(state)]

class Look(hl.train.SessionRunHook):
    def after_create_session(self, session, coord):
        value = session.snapshot()["state"]
        self.bits, self.spec = bits(value), str(value["params"]["w"].sharding)

def train(layout, logdir, last_step):
    params = {"w": jnp.linspace(-1, 1, 64).reshape(8, 8), "v": jnp.ones(8)}
    state = placed({"params": params, "opt_state": optax.adam(1e-2).init(params)}, layout)
    data = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
    look = Look()
    loop = hl.train.Loop(step, state, hl.data.from_arrays(data, 8, shuffle_seed=1, epochs=None))
    end = loop.run(logdir, last_step, hooks=[look], progress=False)
    values = [np.asarray(leaf, "float64").ravel().tolist() for leaf in jax.tree.leaves(end)]
    return {"begun": look.bits, "spec": look.spec, "given": str(state["params"]["w"].sharding),
            "bits": bits(end), "values": values}

found = {"whole": train("one", None, 6)}
for pair in sys.argv[2:]:
    first, then = pair.split(":")
    found[pair] = [train(first, f"{sys.argv[1]}/{pair}", 3), train(then, f"{sys.argv[1]}/{pair}", 6)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("layouts"))
    pairs = [f"{first}:{then}" for first, then in PAIRS]
    return json.loads(run(4, ["-c", textwrap.dedent(TRAIN), directory, *pairs]).stdout)


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_training_resumes_in_another_layout(first, then, results):
    before, after = results[f"{first}:{then}"]
    assert after["begun"] == before["bits"]
    assert after["spec"] == after["given"]
    for one, other in zip(after["values"], results["whole"]["values"], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
