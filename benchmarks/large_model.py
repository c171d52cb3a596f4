"""Memory of a large model: builds, initialises, steps, saves and restores one of 100 million bfloat16 parameters.

    python benchmarks/large_model.py [--millions 100] [--layers 24] [--optimizer sgd] [--given]

Prints for each phase, each in a process of its own, the seconds and the peak of memory beyond what is there before and
after, in copies of the parameters. A phase within one extra copy prints 1.00 or less. `--given` hands the model in as
arrays instead of as a function that makes them.
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

PHASES = ("build", "initialise", "step", "save", "restore")


def status_bytes(key: str) -> int:
    """Returns VmRSS (memory now) or VmHWM (its peak since `reset_peak`)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def settled_bytes() -> int:
    """Returns the resident memory once it has stopped shrinking: JAX frees temporaries in the background."""
    gc.collect()
    now = status_bytes("VmRSS")
    for _ in range(20):
        time.sleep(0.1)
        before, now = now, status_bytes("VmRSS")
        if abs(before - now) < 2**18:
            break
    return now


@contextmanager
def measured(figures: dict[str, Any]) -> Iterator[None]:
    """Notes seconds, and bytes before, after and at the peak."""
    figures["before"] = settled_bytes()
    reset_peak()
    start = time.perf_counter()
    yield
    figures["secs"] = time.perf_counter() - start
    figures["peak"] = status_bytes("VmHWM")
    figures["after"] = settled_bytes()


def job(width: int, options: argparse.Namespace, figures: dict[str, dict[str, Any]], checkpoint: str) -> None:
    """Goes through the phases that `options.phase` needs, and notes the figures of each."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    def initial() -> Any:
        keys = jax.random.split(jax.random.key(0), options.layers)
        return [jax.random.normal(key, (width, width), jnp.bfloat16) * width**-0.5 for key in keys]

    def loss_of(params: Any, x: Any) -> Any:
        for weights in params:
            # On CPU, XLA keeps a float32 copy of bfloat16 weights for `x @ weights`; a sum of products needs none.
            product = x @ weights if options.matmul else jnp.sum(x[:, :, None] * weights, axis=1)
            x = jax.nn.relu(product)
        return jnp.mean(x**2)

    with hl.Graph().as_default(), hl.Session() as sess:
        with measured(figures["build"]):
            value = jax.block_until_ready(jax.jit(initial)()) if options.given else initial
            params = hl.Variable(value, name="params")
            x = hl.placeholder("bfloat16", [4, width], name="x")
            loss = hl.op(loss_of)(params, x)
            step = hl.train.get_or_create_global_step()
            optimizer = {"sgd": optax.sgd(1e-3), "adam": optax.adam(1e-3)}[options.optimizer]
            train_op = hl.train.Optimizer(optimizer).minimize(loss, global_step=step)
            init = hl.global_variables_initializer()
            saver = hl.train.Saver()

        def wait() -> None:
            jax.block_until_ready([sess.store.take([v]) for v in hl.global_variables()])

        if options.phase == "build":
            return
        if options.phase == "restore":
            with measured(figures["restore"]):
                saver.restore(sess, checkpoint)
                wait()
            return
        with measured(figures["initialise"]):
            sess.run(init)
            wait()
        batch = np.ones((4, width), "float32")
        with measured(figures["step"]):
            for _ in range(3 if options.phase == "step" else 0):
                sess.run(train_op, {x: batch})
                wait()
        with measured(figures["save"]):
            if options.phase == "save":
                saver.save(sess, checkpoint)


def child(options: argparse.Namespace) -> None:
    width = int((options.millions * 1e6 / options.layers) ** 0.5)
    with tempfile.TemporaryDirectory() as folder:
        # What importing, compiling and writing take by themselves is there before anything is measured.
        everything = ["save", "restore"]
        for phase in ([options.phase] if options.phase not in everything else everything):
            small = argparse.Namespace(**vars(options) | {"phase": phase})
            job(8, small, {name: {} for name in PHASES}, os.path.join(folder, "small"))
    figures: dict[str, dict[str, Any]] = {name: {} for name in PHASES}
    job(width, options, figures, options.checkpoint)
    print(json.dumps(figures[options.phase] | {"parameters": options.layers * width * width}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=100.0, help="millions of parameters")
    parser.add_argument("--layers", type=int, default=24, help="leaves of the model")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="adam holds three copies")
    parser.add_argument("--given", action="store_true", help="hand the model in as arrays")
    parser.add_argument("--matmul", action="store_true", help="multiply by x @ w, for which XLA on CPU copies w")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        return child(options)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in PHASES:
            # Freed memory goes back to the system at once, so that what is resident is what is held.
            env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, __file__, *sys.argv[1:], "--phase", phase, "--checkpoint", f"{folder}/model"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            f = results[phase] = json.loads(done.stdout.splitlines()[-1])
            copy = 2 * f["parameters"]
            f["held_copies"] = (f["after"] - f["before"]) / copy
            f["extra_copies"] = (f["peak"] - max(f["before"], f["after"])) / copy
    if options.json:
        print(json.dumps(results))
        return None
    parameters = results["build"]["parameters"]
    print(f"{parameters / 1e6:.1f} million bfloat16 parameters in {options.layers} leaves, {options.optimizer}")
    print(f"{'phase':12}{'secs':>8}{'stays held':>12}{'peak extra':>12}   (in copies of the model)")
    for phase, f in results.items():
        print(f"{phase:12}{f['secs']:8.2f}{f['held_copies']:12.2f}{f['extra_copies']:12.2f}")
    return None


if __name__ == "__main__":
    main()
