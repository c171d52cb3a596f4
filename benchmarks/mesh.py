"""A step of some milliseconds on a state that is split over a mesh: `train.Loop` against the loop by hand, in turns.

Both in one process, with the same bound on how far the host runs ahead. The devices are virtual ones of the CPU unless
there are as many of another kind.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import os

DEVICES, AHEAD = 4, 2
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={DEVICES}")

import interleaved  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import hookline as hl  # noqa: E402

WIDTH, EXAMPLES = 256, 1024
ADAM = optax.adam(1e-3)
HAND, LOOP = "by hand", "train.Loop"


def init():
    keys = jax.random.split(jax.random.key(0), 4)
    params = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]
    return {"params": params, "opt_state": ADAM.init(params)}


def train_step(state, batch):
    def loss_fn(params):
        hidden = functools.reduce(lambda x, w: jnp.tanh(x @ w), params, batch)
        return jnp.mean((hidden - batch) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    changes, opt_state = ADAM.update(grads, state["opt_state"])
    return {"params": optax.apply_updates(state["params"], changes), "opt_state": opt_state}, {"loss": loss}


def by_hand(shardings, batch):
    """What a careful person writes: the state is donated, and stays where it is."""
    compiled = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
    state, ahead = jax.jit(init, out_shardings=shardings)(), collections.deque()

    def run() -> None:
        nonlocal state
        state, metrics = compiled(state, batch)
        ahead.append(metrics["loss"])
        if len(ahead) > AHEAD:
            ahead.popleft().block_until_ready()

    return interleaved.stepwise(run)


def by_loop(shardings, batch, stack):
    """The same under a monitored session that watches the loss for NaN, logs and counts steps a second."""
    with hl.Graph().as_default():
        batches = hl.data.iterator(lambda: iter(lambda: batch, None))
    config = hl.SessionConfig(max_runs_ahead=AHEAD)
    loop = hl.train.Loop(train_step, init, batches, sharding=shardings, config=config)
    session = stack.enter_context(loop.session(progress=False))
    return interleaved.stepwise(lambda: session.run(loop.train_op))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shardings = hl.sharding.fsdp(mesh, min_size=1024)(jax.eval_shape(init))
    host = np.random.default_rng(0).normal(size=(EXAMPLES, WIDTH)).astype("float32")
    batch = jax.device_put(host, jax.NamedSharding(mesh, jax.P("data")))
    with contextlib.ExitStack() as stack:
        runs = {HAND: by_hand(shardings, batch), LOOP: by_loop(shardings, batch, stack), "by hand, again": None}
        runs["by hand, again"] = by_hand(shardings, batch)
        rows = interleaved.measure(runs, rounds=args.rounds, steps=args.steps, references=(HAND,))
    print(interleaved.table(rows, errors=True))


if __name__ == "__main__":
    main()
