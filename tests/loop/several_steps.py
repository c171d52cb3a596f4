"""Several steps a run on 4 CPU devices, in a process of its own: `python -m tests.loop.several_steps LAYOUT...`.

Each is trained with single steps and with several a run; what came of each is printed as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

from .on_mesh import AUTO, EXPLICIT, fsdp, log, mesh_of, specs_of

LAST_STEP, SEVERAL = 41, 8
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def init() -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"w": jax.random.normal(keys[0], (16, 32)) / 4, "v": jax.random.normal(keys[1], (32, 4)) / 6}
    return {"params": params, "opt_state": OPTIMIZER.init(params)}


def product(rows: Any, weights: Any) -> Any:
    """Returns the product, sharded as the rows are, as explicit axes require."""
    is_explicit = EXPLICIT in jax.typeof(weights).sharding.mesh.axis_types
    return jnp.einsum("bi,ij->bj", rows, weights, out_sharding=jax.P("data") if is_explicit else None)


def step(state: Any, batch: Any, key: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        return jnp.mean((product(jnp.tanh(product(batch, params["w"])), params["v"]) - batch.sum()) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    changes, opt_state = OPTIMIZER.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], changes)
    noisy = params | {"v": params["v"] + 1e-3 * jax.random.normal(key, params["v"].shape)}
    return {"params": noisy, "opt_state": opt_state}, {"loss": loss}


def trained(steps_per_run: int, mesh: Any, rule: Any, examples: int) -> dict[str, Any]:
    """Returns the results of a training: its numbers, shardings, log, and number of programs.

    The batches are split over the axis `data`.
    """
    x = np.random.default_rng(0).normal(size=(examples, 16)).astype("float32")
    data = hl.data.from_arrays(x, 16, shuffle_seed=1, epochs=None)
    with log() as told:
        loop = hl.train.Loop(step, init, data, sharding=rule(mesh), seed=3, steps_per_run=steps_per_run)
        state = loop.run(last_step=LAST_STEP, progress=False, log_steps=5)
    points = [line.partition(" (")[0] for line in told.lines if line.startswith("step ")]
    return {
        "values": [np.asarray(leaf, "float64").ravel().tolist() for leaf in jax.tree.leaves(state)],
        "specs": specs_of(state),
        "points": points,
        "programs": told.programs,
    }


def whole(mesh: Any) -> Any:
    return jax.NamedSharding(mesh, jax.P())


LAYOUTS = {
    "parallel": (AUTO, whole, 160),
    "parallel, explicit": (EXPLICIT, whole, 160),
    "fsdp": (AUTO, fsdp, 160),
    "fsdp, explicit": (EXPLICIT, fsdp, 160),
    "fsdp, ragged": (AUTO, fsdp, 108),
    "fsdp, explicit, ragged": (EXPLICIT, fsdp, 108),
}


def main(names: list[str]) -> None:
    logger = logging.getLogger("hookline")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    found = {}
    for name in names:
        axes, rule, examples = LAYOUTS[name]
        found[name] = [trained(steps, mesh_of(axes), rule, examples) for steps in (1, SEVERAL)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
