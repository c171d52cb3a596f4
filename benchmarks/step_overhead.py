"""What a session and hooks add to a tiny training step: microseconds a step, in one interleaved run.

The step is an MLP 32-64-1 with SGD on a batch that is on the device already. `jit` calls the compiled function itself;
the others run the same step under hookline. Ratios are taken within a round and their median is given: machines are
noisy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

HOOKS = "StopAtStep, StepCounter(100), SummarySaver(100), CheckpointSaver(600 s), LoggingTensor(100)"


def init() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w1": jax.random.normal(keys[0], (32, 64)) / 6,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(keys[1], (64, 1)) / 8,
        "b2": jnp.zeros(1),
    }


def loss_of(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"] - y) ** 2)


def bare_step(x: jax.Array, y: jax.Array) -> Callable[[], object]:
    transformation = optax.sgd(1e-2)

    def step(state, x, y):
        params, slots, count = state
        changes, slots = transformation.update(jax.grad(loss_of)(params, x, y), slots, params)
        return optax.apply_updates(params, changes), slots, count + 1

    compiled = jax.jit(step, donate_argnums=0)
    params = init()
    state = [(params, transformation.init(params), jnp.zeros((), jnp.int32))]

    def run() -> object:
        state[0] = compiled(state[0], x, y)
        return state[0]

    return run


def build(x: jax.Array, y: jax.Array) -> tuple[hl.Tensor, hl.Operation, dict[hl.Tensor, jax.Array]]:
    params = hl.Variable(init, name="params")
    images = hl.placeholder("float32", [None, 32], name="x")
    labels = hl.placeholder("float32", [None, 1], name="y")
    loss = hl.op(loss_of, name="loss")(params, images, labels)
    hl.summary.scalar("loss", loss)
    train = hl.train.Optimizer(optax.sgd(1e-2)).minimize(loss, hl.train.get_or_create_global_step())
    return loss, train, {images: x, labels: y}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 32)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(32, 1)), jnp.float32)

    runs: dict[str, Callable[[], object]] = {"jit": bare_step(x, y)}
    with hl.Graph().as_default():
        _, train, feed = build(x, y)
        session = hl.Session()
        session.run(hl.global_variables_initializer())
        runs["Session.run"] = lambda: session.run(train, feed)
    graph = hl.Graph()
    with graph.as_default(), tempfile.TemporaryDirectory() as folder:
        loss, monitored_train, monitored_feed = build(x, y)
        hooks = [hl.train.StopAtStepHook(last_step=10**9), hl.train.LoggingTensorHook([loss], every_n_iter=100)]
        with hl.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as monitored:
            runs["monitored, standard hooks"] = lambda: monitored.run(monitored_train, monitored_feed)
            report(measure(runs, args.rounds, args.steps))


def measure(runs: dict[str, Callable[[], object]], rounds: int, steps: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(steps):
                run()
            jax.effects_barrier()
            if number:  # the first round compiles
                times[name].append((time.perf_counter() - start) / steps * 1e6)
    return times


def report(times: dict[str, list[float]]) -> None:
    print(f"standard hooks: {HOOKS}")
    print(f"{'':28}{'us/step':>10}{'to jit':>10}{'added':>10}")
    for name, values in times.items():
        ratio = statistics.median(value / base for value, base in zip(values, times["jit"], strict=True))
        added = statistics.median(value - base for value, base in zip(values, times["jit"], strict=True))
        print(f"{name:28}{statistics.median(values):10.1f}{ratio:10.2f}{added:+10.1f}")


if __name__ == "__main__":
    main()
