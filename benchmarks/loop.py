"""What `train.Loop` adds to a train step, against the loop that people write: microseconds a step, interleaved.

The step is that of `tiny_step.py`, its batches NumPy arrays in both. By hand it is a jitted, donating step and the
loss each 100 steps, nothing else. The loop has its usual hooks, reads ahead in a thread, knows its place in the data,
and saves; so does the graph that is built by hand for the same job.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time

import jax
import numpy as np
import optax
from tiny_step import init, loss_fn

import hookline as hl

TRANSFORMATION = optax.sgd(1e-2)


def train_step(state, batch):
    params, opt_state = state
    loss, gradients = jax.value_and_grad(loss_fn)(params, *batch)
    updates, opt_state = TRANSFORMATION.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss}


def state():
    params = init()
    return params, TRANSFORMATION.init(params)


def batches():
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(32, 32)), rng.normal(size=(32, 1))) for _ in range(16)]
    return itertools.cycle([(x.astype("float32"), y.astype("float32")) for x, y in made])


def by_hand():
    step, held, seen = jax.jit(train_step, donate_argnums=0), state(), batches()

    def run(steps: int) -> None:
        nonlocal held
        for number in range(steps):
            held, metrics = step(held, next(seen))
            if number % 100 == 0:
                float(metrics["loss"])
        jax.block_until_ready(held)

    return run


def under(session, train_op, variable):
    def run(steps: int) -> None:
        for _ in range(steps):
            session.run(train_op)
        jax.block_until_ready(session.raw_session().run(variable))

    return run


def graph(logdir):
    with hl.Graph().as_default():
        params = hl.Variable(init, name="params")
        loss = hl.op(loss_fn)(params, *hl.data.iterator(batches))
        hl.summary.scalar("loss", loss)
        train_op = hl.train.Optimizer(TRANSFORMATION).minimize(loss, hl.train.get_or_create_global_step())
        hooks = [hl.train.NanTensorHook(loss), hl.train.LoggingTensorHook({"loss": loss}, every_n_iter=100)]
        return hl.train.MonitoredTrainingSession(checkpoint_dir=logdir, hooks=hooks), train_op, params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        runs = {"by hand": by_hand()}
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        session, train_op, params = graph(folders[0])
        runs["graph by hand"] = under(stack.enter_context(session), train_op, params)
        loop = hl.train.Loop(train_step, state(), batches)
        runs["Loop"] = under(stack.enter_context(loop.session(folders[1])), loop.train_op, loop.state)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(args.rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run(args.steps)
                if number:  # the first round compiles
                    times[name].append((time.perf_counter() - start) / args.steps * 1e6)
    print(f"{'':18}{'us/step':>10}{'added':>10}")
    for name, values in times.items():
        added = statistics.median(value - base for value, base in zip(values, times["by hand"], strict=True))
        print(f"{name:18}{statistics.median(values):10.1f}{added:+10.1f}")


if __name__ == "__main__":
    main()
