"""The rules on devices: a state is sharded by them, and trained there as on one."""

from __future__ import annotations

import json

import pytest
from tests.loop.devices import run

CODE = """
import json, logging
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen as nn
from jax import NamedSharding, P
from jax.sharding import AxisType, Mesh
import hookline as hl

logging.basicConfig(level=logging.WARNING)
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
ROWS = nn.initializers.normal()
RULES = [("mlp", "model")]


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        kernel = nn.with_logical_partitioning(ROWS, ("embed", "mlp"))
        x = nn.tanh(nn.Dense(64, kernel_init=kernel, name="inner")(x))
        return nn.Dense(1, kernel_init=ROWS, name="outer")(x)


net, tx, x = Net(), optax.adam(1e-2), np.random.default_rng(0).normal(size=(8, 32)).astype("float32")


def init():
    key, rest = jax.random.split(jax.random.key(0))
    params = net.init(key, x)["params"]
    return {"params": params, "opt_state": tx.init(params), "key": rest, "none": None}


@jax.jit
def step(state):
    def loss_fn(params):
        return jnp.mean((net.apply({"params": params}, x)[:, 0] - x.sum(1)) ** 2)
    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt_state = tx.update(grads, state["opt_state"])
    return state | {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, loss


def trained(state):
    for _ in range(4):
        state, loss = step(state)
    return float(loss)


fsdp = hl.sharding.fsdp(mesh, min_size=64)
made = {
    "fsdp": fsdp,
    "path": hl.sharding.by_path(mesh, {"inner/kernel": P("data", "model"), ".*": P()}),
    "metadata": hl.sharding.by_metadata(mesh, RULES + [("embed", None)], default=fsdp),
}
abstract = jax.eval_shape(init)
result = {"whole": trained(jax.jit(init)()), "trained": {}, "shards": {}}
for name, rule in made.items():
    shardings = rule(abstract)
    state = jax.jit(init, out_shardings=shardings)()
    result["trained"][name] = trained(state)
    inside = state["opt_state"][0].mu["inner"]["kernel"].value, state["params"]["outer"]["kernel"]
    result["shards"][name] = [leaf.addressable_shards[0].data.shape for leaf in inside]
    put = jax.device_put(jax.jit(init)(), shardings)
    same = [a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in zip(*map(jax.tree.leaves, (put, state)))]
    places = hl.sharding.resolve_shardings("Loop", abstract, shardings)
    same += [place.is_equivalent_to(leaf.sharding, leaf.ndim) for place, leaf in zip(places, jax.tree.leaves(put))]
    assert all(same) and len(same) == 2 * len(jax.tree.leaves(abstract)), same


def refused(first, last):
    try:
        hl.sharding.resolve_shardings("Loop", {"a": x, "b": x}, {"a": first, "b": last})
    except ValueError as error:
        return str(error)


half, turned = Mesh(np.array(jax.devices()[:2]), "x"), Mesh(np.array(jax.devices()[::-1]), "x")
reshaped = Mesh(np.array(jax.devices()), "x")
whole = NamedSharding(mesh, P())
result["half"] = refused(whole, NamedSharding(half, P()))
result["turned"] = refused(whole, NamedSharding(turned, P()))
result["one"] = refused(whole, jax.devices()[3])
result["reshaped"] = refused(whole, NamedSharding(reshaped, P("x")))
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def done(environment):
    process = run(4, ["-c", CODE], environment())
    assert "WARNING" not in process.stderr
    return json.loads(process.stdout)


def test_state_is_sharded_by_the_rule(done):
    assert done["shards"] == {
        "fsdp": [[32, 32], [32, 1]],
        "path": [[16, 32], [64, 1]],
        "metadata": [[32, 32], [32, 1]],
    }


@pytest.mark.parametrize("rule", ["fsdp", "path", "metadata"])
def test_sharded_training_equals_that_on_one_device(rule, done):
    assert done["trained"][rule] == pytest.approx(done["whole"], rel=1e-5)


def test_arrays_on_different_devices_are_refused(done):
    four = "Loop: 'a' is on 4 devices (cpu:0, cpu:1, cpu:2 and 1 more), and 'b' on"
    remedy = "Give both a sharding over the same mesh; jax.P() puts a copy on each of its devices."
    assert done["half"] == f"{four} 2 devices (cpu:0, cpu:1). {remedy}"
    assert done["turned"] == f"{four} 4 devices (cpu:3, cpu:2, cpu:1 and 1 more). {remedy}"
    assert done["one"] == f"{four} 1 device (cpu:3). {remedy}"
    assert done["reshaped"] is None, "another mesh, but of the same devices"
