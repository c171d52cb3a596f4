"""Memory of a large model: builds, initialises, steps, saves and restores one of 100 million bfloat16 parameters.

    python benchmarks/large_model.py [--millions 100] [--model tables|dense] [--dtype bfloat16] [--optimizer sgd|adam]

Prints for each phase, each in a process of its own, the seconds, what of memory stays held afterwards, and the peak
beyond what was held before and the one copy that the phase is to make, in copies of all that the variables hold. `plain
step` is the same step in JAX alone, compiled as XLA does by itself. Programs are compiled beforehand.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PHASES = ("build", "initialise", "step", "plain step", "save", "restore")
WIDTH, BATCH = 64, 32


def status_bytes(key: str) -> int:
    """Returns VmRSS (memory now) or VmHWM (its peak since `reset_peak`)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def settled_bytes() -> int:
    """Returns the resident memory once it has stopped shrinking: JAX and Orbax free in the background.

    On a busy machine the threads that do it may not run for a while.
    """
    gc.collect()
    seen = [status_bytes("VmRSS")]
    while len(seen) < 60 and (len(seen) < 8 or max(seen[-8:]) - min(seen[-8:]) > 2**18):
        time.sleep(0.1)
        seen.append(status_bytes("VmRSS"))
    return seen[-1]


@contextmanager
def measured(figures: dict[str, Any] | None) -> Iterator[None]:
    """Notes seconds, and bytes before, after and at the peak; with `None`, nothing."""
    if figures is None:
        yield
        return
    figures["before"] = settled_bytes()
    reset_peak()
    start = time.perf_counter()
    yield
    figures["secs"] = time.perf_counter() - start
    figures["peak"] = status_bytes("VmHWM")
    figures["after"] = settled_bytes()


def model(rows: int, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Returns a function that makes the parameters, one that gives the loss of a batch, and a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    dtype = jnp.dtype(options.dtype)
    shape = (rows, WIDTH) if options.model == "tables" else (max(1, int((rows * WIDTH) ** 0.5)),) * 2

    def initial() -> Any:
        keys = jax.random.split(jax.random.key(0), options.leaves)
        return [jax.random.normal(key, shape, dtype) * shape[1] ** -0.5 for key in keys]

    def loss_of_tables(params: Any, batch: Any) -> Any:
        return jnp.mean(sum(table[batch[:, i]] for i, table in enumerate(params)).astype(jnp.float32) ** 2)

    def loss_of_dense(params: Any, batch: Any) -> Any:
        for weights in params:
            batch = jax.nn.relu(batch @ weights)
        return jnp.mean(batch.astype(jnp.float32) ** 2)

    if options.model == "tables":
        return initial, loss_of_tables, np.arange(BATCH * options.leaves, dtype="int32").reshape(BATCH, -1) % rows
    return initial, loss_of_dense, np.ones((BATCH, shape[0]), dtype)


def job(rows: int, options: argparse.Namespace, figures: dict[str, dict[str, Any]], checkpoint: str) -> None:
    """Goes through the phases that `options.phase` needs, and notes the figures of those in `figures`."""
    import jax
    import optax

    import hookline as hl

    initial, loss_fn, batch = model(rows, options)
    optimizer = {"sgd": optax.sgd(1e-3), "adam": optax.adam(1e-3)}[options.optimizer]
    steps = 3 if "step" in options.phase else 0

    if options.phase == "plain step":
        return plain(initial, loss_fn, batch, optimizer, steps, figures.get(options.phase))
    with hl.Graph().as_default(), hl.Session() as sess:
        with measured(figures.get("build")):
            params = hl.Variable(jax.block_until_ready(jax.jit(initial)()) if options.given else initial, name="params")
            x = hl.placeholder(batch.dtype, batch.shape, name="x")
            loss = hl.op(loss_fn)(params, x)
            step = hl.train.get_or_create_global_step()
            train_op = hl.train.Optimizer(optimizer).minimize(loss, global_step=step)
            init = hl.global_variables_initializer()
            saver = hl.train.Saver()
        specs = [leaf for variable in hl.global_variables() for leaf in jax.tree.leaves(variable.spec)]
        for noted in figures.values():
            noted["model_bytes"] = sum(leaf.size * leaf.dtype.itemsize for leaf in specs)

        def wait() -> None:
            jax.block_until_ready([sess.backend.store.read_leaves([variable]) for variable in hl.global_variables()])

        if options.phase == "restore":
            with measured(figures.get("restore")):
                saver.restore(sess, checkpoint)
                wait()
        elif options.phase != "build":
            with measured(figures.get("initialise")):
                sess.run(init)
                wait()
            with measured(figures.get("step")):
                for _ in range(steps):
                    sess.run(train_op, {x: batch})
                    wait()
            with measured(figures.get("save")):
                if options.phase == "save":
                    saver.save(sess, checkpoint)
    return None


def plain(initial: Any, loss_fn: Any, batch: Any, optimizer: Any, steps: int, figures: dict[str, Any] | None) -> None:
    """The same step in JAX alone, with what XLA does by itself."""
    import jax
    import optax

    def train(params: Any, opt_state: Any, batch: Any) -> Any:
        changes, opt_state = optimizer.update(jax.grad(loss_fn)(params, batch), opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    state = jax.block_until_ready((params := jax.jit(initial)(), optimizer.init(params)))
    del params
    if figures is not None:
        figures["model_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    step = jax.jit(train, donate_argnums=(0, 1))
    with measured(figures):
        for _ in range(steps):
            state = jax.block_until_ready(step(*state, batch))


def child(options: argparse.Namespace) -> None:
    rows = int(options.millions * 1e6 / options.leaves / WIDTH)
    # What importing and compiling take (XLA needs 100 MiB for the initialiser) is there before anything is measured.
    import jax

    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", os.path.join(folder, "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for phase in ["save", "restore"] if options.phase == "restore" else [options.phase]:
            first = argparse.Namespace(**vars(options) | {"phase": phase})
            job(rows, first, {}, os.path.join(folder, "model"))
        figures: dict[str, Any] = {}
        job(rows, options, {options.phase: figures}, options.checkpoint)
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=100.0, help="millions of parameters")
    parser.add_argument("--leaves", type=int, default=24, help="arrays they are in")
    parser.add_argument("--model", choices=["tables", "dense"], default="dense", help="look rows up, or multiply")
    parser.add_argument("--dtype", default="bfloat16", help="of the parameters")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="adam's state is two thirds")
    parser.add_argument("--given", action="store_true", help="hand the parameters in as arrays, not as a function")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, metavar="PHASE", help="only these")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        return child(options)
    results = {}
    # An array is given back to the system as soon as it is freed; small pieces, the compiler's, stay for the next use.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": str(2**30), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        for phase in options.phases:
            command = [sys.executable, __file__, *sys.argv[1:], "--phase", phase, "--checkpoint", f"{folder}/model"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            figures = results[phase] = json.loads(done.stdout.splitlines()[-1])
            made = figures["model_bytes"] if phase in ("initialise", "restore") else 0
            figures["held"] = (figures["after"] - figures["before"]) / figures["model_bytes"]
            figures["extra"] = (figures["peak"] - figures["before"] - made) / figures["model_bytes"]
    if options.json:
        print(json.dumps(results))
        return None
    size = results[options.phases[0]]["model_bytes"] / 2**20
    print(
        f"{options.millions:g} million {options.dtype} parameters, {options.model}, {options.optimizer}: {size:.0f} MiB"
    )
    print(f"{'phase':12}{'secs':>8}{'stays held':>12}{'peak extra':>12}   (in copies of all that the variables hold)")
    for phase, figures in results.items():
        print(f"{phase:12}{figures['secs']:8.2f}{figures['held']:12.2f}{figures['extra']:12.2f}")
    return None


if __name__ == "__main__":
    main()
