"""Real batches, one by one and several in a run: `train.Loop` against loops by hand on the same source, in turns.

The step is that of `tiny_step.py`, then one of a medium MLP and one of a transformer. Batches come from
`hookline.data.from_arrays`, shuffled. By hand there are the fastest loop on that source, and a compiled loop over a
block of batches (a scan whose count is given at run time) that is fed from the same bulk read.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import interleaved
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tiny_step

import hookline as hl

BARE, HAND, SCAN, SINGLE = "bare, batch on the device", "by hand", "scan by hand, K = 64", "Loop"


class Job(NamedTuple):
    """What is trained."""

    init: Callable[[], Any]
    loss_fn: Callable[[Any, Any], Any]
    batches: Callable[[], Any]


def step_of(job: Job, transformation: Any) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """Returns what makes the state, and the step."""

    def state() -> Any:
        params = job.init()
        return params, transformation.init(params)

    def train_step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(job.loss_fn)(params, batch)
        changes, opt_state = transformation.update(grads, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state), {"loss": loss}

    return state, train_step


def bare(job: Job, state: Any, train_step: Any) -> interleaved.Run:
    """The step alone."""
    compiled, held = jax.jit(train_step, donate_argnums=0), state()
    batch = jax.device_put(next(iter(job.batches())))

    def run() -> None:
        nonlocal held
        held, _ = compiled(held, batch)

    return interleaved.stepwise(run)


def by_hand(job: Job, state: Any, train_step: Any) -> interleaved.Run:
    """The fastest loop on the source: arrays of NumPy go straight to the step."""
    compiled, held, source = jax.jit(train_step, donate_argnums=0), state(), iter(job.batches())

    def run() -> None:
        nonlocal held
        held, _ = compiled(held, next(source))

    return interleaved.stepwise(run)


def scan_by_hand(job: Job, state: Any, train_step: Any, capacity: int) -> interleaved.Run:
    """So many steps a dispatch, fed by the bulk read."""
    held, source = state(), iter(job.batches())

    @functools.partial(jax.jit, donate_argnums=0)
    def compiled(held: Any, block: Any, count: Any) -> Any:
        def body(place: Any, held: Any) -> Any:
            batch = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), block)
            return train_step(held, batch)[0]

        return jax.lax.fori_loop(0, count, body, held)

    def run(steps: int) -> None:
        nonlocal held
        while steps > 0:
            block, count = source.read_many(min(capacity, steps), capacity)
            held = compiled(held, block, np.int32(count))
            steps -= count
        jax.block_until_ready(jax.live_arrays())

    return run


def loop(job: Job, state: Any, train_step: Any, stack: contextlib.ExitStack, *, hooks: bool, **options: Any) -> Any:
    """`train.Loop`: alone, or with all that it usually has, and a firing each 100 steps."""
    batches: Any = job.batches()
    graph = hl.Graph()
    if "prefetch" in options:
        with graph.as_default():
            batches = hl.data.iterator(batches, prefetch=options.pop("prefetch"))
    made = hl.train.Loop(train_step, state, batches, **options)
    if hooks:
        logdir = stack.enter_context(tempfile.TemporaryDirectory())
        session = stack.enter_context(made.session(logdir, progress=False))
    else:
        quiet = {
            "progress": False,
            "log_steps": None,
            "nan_check": None,
            "logging": hl.train.LoggingOptions(rate_steps=None),
        }
        session = stack.enter_context(made.session(**quiet))
    raw, last = session.raw_session(), 0

    def run(steps: int) -> None:
        nonlocal last
        last += steps  # What a run makes beyond this, the next round need not make.
        while raw.global_step < last:
            session.run(made.train_op)
        jax.block_until_ready(jax.live_arrays())

    return run


def tiny() -> Job:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32 * 512, 32)).astype("float32")
    y = rng.normal(size=(32 * 512, 1)).astype("float32")
    source = lambda: hl.data.from_arrays((x, y), 32, shuffle_seed=0, epochs=None)  # noqa: E731
    return Job(tiny_step.init, lambda params, batch: tiny_step.loss_fn(params, *batch), source)


def medium() -> Job:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128 * 64, 64)).astype("float32")
    sizes = [64, 256, 256, 64]

    def init() -> Any:
        keys = jax.random.split(jax.random.key(0), len(sizes))
        return [jax.random.normal(k, (a, b)) / a**0.5 for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]

    def loss_fn(params: Any, batch: Any) -> Any:
        return jnp.mean((functools.reduce(lambda h, w: jnp.tanh(h @ w), params, batch) - batch) ** 2)

    return Job(init, loss_fn, lambda: hl.data.from_arrays(x, 128, shuffle_seed=0, epochs=None))


def transformer() -> Job:
    words, width, heads, length = 64, 64, 4, 32
    tokens = np.random.default_rng(0).integers(0, words, (16 * 64, length + 1)).astype("int32")

    def init() -> Any:
        keys = iter(jax.random.split(jax.random.key(0), 16))
        draw = lambda *shape: jax.random.normal(next(keys), shape) * 0.05  # noqa: E731
        layers = [
            {"qkv": draw(width, 3 * width), "out": draw(width, width), "up": draw(width, 4 * width)}
            | {"down": draw(4 * width, width)}
            for _ in range(2)
        ]
        return {"embed": draw(words, width), "place": draw(length, width), "layers": layers}

    def normal(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss_fn(params: Any, batch: Any) -> Any:
        seen, wanted = batch[:, :-1], batch[:, 1:]
        x = params["embed"][seen] + params["place"]
        for layer in params["layers"]:
            q, k, v = jnp.split((normal(x) @ layer["qkv"]).reshape(*seen.shape, heads, -1), 3, axis=-1)
            x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ layer["out"]
            x = x + jax.nn.gelu(normal(x) @ layer["up"]) @ layer["down"]
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["embed"].T, wanted).mean()

    return Job(init, loss_fn, lambda: hl.data.from_arrays(tokens, 16, shuffle_seed=0, epochs=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--long-rounds", type=int, default=25)
    parser.add_argument("--long-steps", type=int, default=128)
    parser.add_argument("--results", type=Path, help="where to write several_steps.json and several_steps.md")
    args = parser.parse_args()
    text, found = "", {}
    jobs = {
        "the tiny step": (tiny(), optax.sgd(1e-2)),
        "a medium MLP, Adam": (medium(), optax.adam(1e-3)),
        "a transformer, Adam": (transformer(), optax.adam(1e-3)),
    }
    for number, (name, (job, transformation)) in enumerate(jobs.items()):
        state, train_step = step_of(job, transformation)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(Path(os.devnull).open("w"))))
            of = functools.partial(loop, job, state, train_step, stack)
            runs: dict[str, interleaved.Run] = {
                BARE: bare(job, state, train_step),
                HAND: by_hand(job, state, train_step),
                SCAN: scan_by_hand(job, state, train_step, 64),
                SINGLE: of(hooks=False),
                f"{SINGLE}, prefetch=2": of(hooks=False, prefetch=2),
                f"{SINGLE}, K = 16": of(hooks=False, steps_per_run=16),
                f"{SINGLE}, all hooks": of(hooks=True),
                f"{SINGLE}, all hooks, K = 16": of(hooks=True, steps_per_run=16),
                f"{SINGLE}, all hooks, K = 64": of(hooks=True, steps_per_run=64),
            }
            rounds, steps = (args.long_rounds, args.long_steps) if number else (args.rounds, args.steps)
            references = (HAND, SINGLE, f"{SINGLE}, all hooks") if number else (BARE, HAND, SCAN)
            rows = interleaved.measure(runs, rounds=rounds, steps=steps, references=references)
        found[name] = rows
        text += f"With batches from `hookline.data.from_arrays`, {name}:\n\n{interleaved.table(rows, errors=True)}\n\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        interleaved.write(args.results / "several_steps.json", found)
        (args.results / "several_steps.md").write_text(text)


if __name__ == "__main__":
    main()
