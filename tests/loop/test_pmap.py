"""Remains of `jax.pmap` in a step are recognised, on four devices; without them the step takes the whole batch."""

from __future__ import annotations

import functools
import json
import sys

import pytest

from .devices import run

TELLS = (
    "Give it without jax.pmap, a state that is not replicated, and batches without a leading axis of devices: mesh = "
    "jax.make_mesh((4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., sharding=jax.NamedSharding("
    "mesh, jax.P())), which also splits the batches. And leave out jax.lax.pmean(..., 'batch'): a mean in the step is "
    "over the whole batch."
)
SAYS = {
    "made by pmap": "TypeError: Loop: train_step is made by jax.pmap, but",
    "made by pmap, bound": "TypeError: Loop: train_step is made by jax.pmap, but",
    "an evaluation made by pmap": "TypeError: Evaluate 'eval': train_step is made by jax.pmap, but",
    "pmean": "TypeError: Loop: train_step uses the axis 'batch' of a jax.pmap, but",
    "pmean, jitted": "TypeError: Loop: train_step uses the axis 'batch' of a jax.pmap, but",
    "pmean in an evaluation": "TypeError: Evaluate 'eval': train_step uses the axis 'batch' of a jax.pmap, but",
    "psum of a number": "TypeError: Loop: psum_of_number uses the axis 'batch' of a jax.pmap, but",
    "pmap inside": "the step uses p_train_step, which is made by jax.pmap, but",
    "arrays of pmap": "have a leading axis of 4, the number of devices, as for jax.pmap. If so:",
}


def main():
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hookline as hl

    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def loss_fn(w, x):
        return jnp.mean((x @ w - x.sum(axis=-1)) ** 2)

    def train_step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state["w"], batch)
        grads = jax.lax.pmean(grads, axis_name="batch")
        return {"w": state["w"] - 0.1 * grads}, {"loss": jax.lax.pmean(loss, "batch")}

    def without(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state["w"], batch)
        return {"w": state["w"] - 0.1 * grads}, {"loss": loss}

    def psum_of_number(state, batch):
        return state, {"devices": jax.lax.psum(1, "batch")}

    def pmap_inside(state, batch):
        return p_train_step(state, batch)

    p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
    state, batches = {"w": jnp.zeros(3)}, [x] * 5
    of_devices = {"w": np.zeros((4, 3), "float32")}, [x.reshape(4, 2, 3)] * 5

    def evaluating(eval_step):
        return hl.train.Loop(without, state, batches).describe(hooks=[hl.train.Evaluate(eval_step, batches, every=1)])

    cases = {
        "made by pmap": lambda: hl.train.Loop(p_train_step, *of_devices),
        "made by pmap, bound": lambda: hl.train.Loop(functools.partial(p_train_step), *of_devices),
        "an evaluation made by pmap": lambda: evaluating(p_train_step),
        "pmean": lambda: hl.train.Loop(train_step, state, batches),
        "pmean, jitted": lambda: hl.train.Loop(jax.jit(train_step), state, batches),
        "pmean in an evaluation": lambda: hl.train.Loop(without, state, batches).run(
            last_step=1, hooks=[hl.train.Evaluate(train_step, batches, every=1)], progress=False
        ),
        "psum of a number": lambda: hl.train.Loop(psum_of_number, state, batches),
        "pmap inside": lambda: hl.train.Loop(pmap_inside, state, batches),
        "arrays of pmap": lambda: hl.train.Loop(without, *of_devices),
    }
    found = {}
    for name, make in cases.items():
        try:
            make()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}\n" + "\n".join(getattr(error, "__notes__", ()))
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    replaced = hl.train.Loop(without, state, batches, sharding=jax.NamedSharding(mesh, jax.P())).run(progress=False)
    by_hand = of_devices[0]
    for batch in of_devices[1]:
        by_hand, _ = jax.pmap(train_step, axis_name="batch")(by_hand, batch)
    found["replaced"], found["by pmap"] = replaced["w"].tolist(), by_hand["w"][0].tolist()
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found(environment):
    return json.loads(run(4, ["-m", "tests.loop.test_pmap"], environment()).stdout)


@pytest.mark.parametrize("case", SAYS)
def test_remains_of_pmap_are_refused_with_the_replacement(case, found):
    assert SAYS[case] in found[case]
    assert TELLS in found[case]


def test_replacement_gives_the_same_result(found):
    assert found["replaced"] == pytest.approx(found["by pmap"], rel=1e-5)


if __name__ == "__main__":
    sys.exit(main())
