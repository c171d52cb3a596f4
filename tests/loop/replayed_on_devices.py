"""Trains on several devices, replays some steps, and prints the result; with single steps and with several a run.

Run as `python -m tests.loop.replayed_on_devices FOLDER`, or by `tests.spmd.run` in several processes.
"""

from __future__ import annotations

import sys

SAVE_STEPS = 10


def made(steps_per_run):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    examples = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
    optimizer = optax.adam(0.01)

    def step(params, opt_state, batch, key):
        def loss_fn(params):
            kept = jax.random.bernoulli(key, 0.8, params.shape)
            return jnp.mean((batch @ jnp.where(kept, params, 0.0) - batch.sum(axis=1)) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return hl.train.Loop(
        step,
        {"params": jnp.zeros(8), "opt_state": optimizer.init(jnp.zeros(8))},
        hl.data.from_arrays(examples, 32, shuffle_seed=1, epochs=None),
        sharding={
            "params": jax.NamedSharding(mesh, jax.P("data")),
            "opt_state": jax.NamedSharding(mesh, jax.P()),
        },
        ema={"params": 0.9},
        seed=3,
        steps_per_run=steps_per_run,
    )


def main(folder):
    import hookline as hl

    arguments = {
        "last_step": 60,
        "progress": False,
        "log_steps": 7,
        "checkpoints": hl.train.CheckpointOptions(save_steps=SAVE_STEPS),
    }
    for steps_per_run in (1, 16):
        run = f"{folder}/{steps_per_run}"
        made(steps_per_run).run(run, **arguments)
        print(made(steps_per_run).replay(run, (30, 55), ["loss", "params", "batch"], every=10, **arguments), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
