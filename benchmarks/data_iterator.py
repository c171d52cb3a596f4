"""What a batch costs: an iterator of hookline, the loop by hand that prefetches, and a feed, in one interleaved run.

All train the same MLP with SGD on batches of 256 examples, which a generator cuts out of an array. `by hand` is a
thread that puts batches on the device into a queue of two, and a loop around the compiled step. Ratios are taken
within a round and their median is given: machines are noisy.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl

EXAMPLES, FEATURES, BATCH = 8192, 256, 256
X = np.random.default_rng(0).normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in itertools.count():
        start = i * BATCH % EXAMPLES
        yield X[start : start + BATCH], Y[start : start + BATCH]


def init(hidden: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w1": jax.random.normal(keys[0], (FEATURES, hidden)) / 16,
        "w2": jax.random.normal(keys[1], (hidden, 1)) / hidden**0.5,
    }


def loss_fn(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2)


def by_hand(hidden: int) -> Callable[[], object]:
    transformation = optax.sgd(1e-2)

    def step(state, batch):
        params, opt_state, count = state
        loss, gradients = jax.value_and_grad(loss_fn)(params, *batch)
        changes, opt_state = transformation.update(gradients, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state, count + 1), loss

    compiled = jax.jit(step, donate_argnums=0)
    params = init(hidden)
    state = [(params, transformation.init(params), jnp.zeros((), jnp.int32))]
    ahead: queue.Queue[object] = queue.Queue(2)

    def read() -> None:
        for batch in batches():
            ahead.put(jax.device_put(jax.tree.map(np.array, batch)))

    threading.Thread(target=read, daemon=True).start()

    def run() -> object:
        state[0], loss = compiled(state[0], ahead.get())
        return loss

    return run


def hookline(hidden: int, *, fed: bool) -> Callable[[], object]:
    with hl.Graph().as_default():
        params = hl.Variable(lambda: init(hidden), name="params")
        if fed:
            x, y = hl.placeholder("float32", [BATCH, FEATURES]), hl.placeholder("float32", [BATCH, 1])
        else:
            x, y = hl.data.iterator(batches, last_batch="drop")
        loss = hl.op(loss_fn)(params, x, y)
        train = hl.train.Optimizer(optax.sgd(1e-2)).minimize(loss, hl.train.get_or_create_global_step())
        session = hl.Session()
        session.run(hl.global_variables_initializer())
        if not fed:
            return lambda: session.run((loss, train))[0]
        source = batches()
        return lambda: session.run((loss, train), dict(zip((x, y), next(source), strict=True)))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    for hidden in (16, 1024):
        runs = {
            "by hand": by_hand(hidden),
            "iterator": hookline(hidden, fed=False),
            "feed": hookline(hidden, fed=True),
        }
        micros = measured(runs, args.rounds, args.steps)
        print(f"hidden units: {hidden}")
        for name, each in micros.items():
            ratio = statistics.median(a / b for a, b in zip(each, micros["by hand"], strict=True))
            print(f"  {name:10} {statistics.median(each):9.1f} us a step, {ratio:5.2f} of by hand")


def measured(runs: dict[str, Callable[[], object]], rounds: int, steps: int) -> dict[str, list[float]]:
    micros: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(steps):
                last = run()
            jax.block_until_ready(last)
            if turn:  # The first round compiles.
                micros[name].append((time.perf_counter() - start) / steps * 1e6)
    return micros


if __name__ == "__main__":
    main()
