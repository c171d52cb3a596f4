"""Saves and restores of large states, in turns with Orbax's `CheckpointManager`.

    python benchmarks/checkpoint.py [--megabytes 512] [--leaves 16 500] [--rounds 5] [--results docs/bench]

A save is measured in a loop whose step donates the state: what the save adds to the time of the loop, and when it is
complete. A restore puts the values into the shardings of the state; hookline compares its sums. Both write to the same
disk; the files are in the page cache. The peak is memory beyond what the state takes before a restore.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from large_model import reset_peak, settled_bytes, status_bytes

import hookline as hl

SAVE_AFTER, WARM_UP = 5, 3
NAMES = ("hookline", "orbax")


class Side(NamedTuple):
    """hookline, or a loop by hand with Orbax."""

    step: Callable[[], Any]
    """Makes a step, and waits for it."""
    save: Callable[[int], Callable[[], Any]]
    """Begins a save of this number, and returns a function that waits until it is complete."""
    restore: Callable[[], Any]


def state_of(megabytes: int, leaves: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), leaves)
    size = megabytes * 2**20 // 4 // leaves
    return {f"leaf_{number}": jax.random.normal(key, (size // 256, 256)) for number, key in enumerate(keys)}


def update(state: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
    state = jax.tree.map(lambda leaf: leaf - 1e-3 * jnp.tanh(leaf), state)
    return state, state["leaf_0"][0, 0]


def of_hookline(state: dict[str, jax.Array], folder: Path, sess: hl.Session) -> Side:
    variable = hl.Variable(state, name="state")
    new_state, value = hl.op(update, name="update")(variable)
    with hl.control_dependencies([variable.assign(new_state)]):
        step = hl.op(lambda value: value, name="value")(value)
    sess.run(hl.global_variables_initializer())
    saver = hl.train.Saver(max_to_keep=1)
    path = ""

    def save(number: int) -> Callable[[], Any]:
        nonlocal path
        pending = saver.save_async(sess, str(folder / "hookline" / "model.ckpt"), number)
        path = pending.path
        return pending.wait

    # A restore waits for its arrays; a run does not wait for its step.
    return Side(lambda: jax.device_get(sess.run(step)), save, lambda: saver.restore(sess, path))


def of_orbax(state: dict[str, jax.Array], folder: Path, manager: ocp.CheckpointManager) -> Side:
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    jitted = jax.jit(update, donate_argnums=0)
    held, last = jax.tree.map(jnp.copy, state), 0

    def step() -> Any:
        nonlocal held
        held, value = jitted(held)
        return jax.device_get(value)

    def save(number: int) -> Callable[[], Any]:
        nonlocal last
        last = number
        manager.save(number, args=ocp.args.StandardSave(held))
        return manager.wait_until_finished

    return Side(step, save, lambda: manager.restore(last, args=ocp.args.StandardRestore(abstract)))


def notice(complete: Future[float], wait: Callable[[], Any], begin: float) -> None:
    wait()
    complete.set_result(time.perf_counter() - begin)


def secs_of_loop(side: Side, steps: int, number: int = 0) -> dict[str, float]:
    """Returns the seconds of the loop and, if it saves with this number, from the save's begin until it is complete."""
    begin, complete = time.perf_counter(), Future[float]()
    for index in range(steps):
        side.step()
        if number and index == SAVE_AFTER:
            begin_of_save = time.perf_counter()
            Thread(target=notice, args=(complete, side.save(number), begin_of_save)).start()
    took = time.perf_counter() - begin
    if not number:
        return {"loop": took}
    if not complete.done():
        print(f"A save took longer than the {steps - SAVE_AFTER} steps after it: use more --steps.", file=sys.stderr)
    return {"loop": took, "complete": complete.result()}


def secs_of_restore(side: Side) -> dict[str, float]:
    """Returns the seconds of a restore, and its peak of memory in MB."""
    before = settled_bytes()
    reset_peak()
    begin = time.perf_counter()
    jax.block_until_ready(side.restore())
    return {"restore": time.perf_counter() - begin, "peak": (status_bytes("VmHWM") - before) / 2**20}


def measure(megabytes: int, leaves: int, rounds: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of each side, round by round."""
    state = jax.block_until_ready(state_of(megabytes, leaves))
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in NAMES}
    folder = Path(tempfile.mkdtemp())
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    try:
        with (
            hl.Graph().as_default(),
            hl.Session() as sess,
            ocp.CheckpointManager(folder / "orbax", options=options) as manager,
        ):
            sides = {"hookline": of_hookline(state, folder, sess), "orbax": of_orbax(state, folder, manager)}
            del state
            for number in range(1, WARM_UP + rounds + 1):
                for name, side in sides.items():
                    alone = secs_of_loop(side, steps)["loop"]
                    found = secs_of_loop(side, steps, number)
                    found |= {"added": found["loop"] - alone} | secs_of_restore(side)
                    for key, value in found.items():
                        if number > WARM_UP:
                            figures[name].setdefault(key, []).append(value)
    finally:
        shutil.rmtree(folder)
    return figures


def row(leaves: int, figures: dict[str, dict[str, list[float]]], *keys: str) -> list[str]:
    """Returns a row of a table: the seconds of the sides and their ratio, for each key; for "peak", its MB."""
    cells = [str(leaves)]
    for key in keys:
        sides = [figures[name][key] for name in NAMES]
        ratios = [one / other for one, other in zip(*sides, strict=True)]
        digits = 0 if key == "peak" else 2
        cells += [f"{statistics.median(side):,.{digits}f}" for side in sides]
        if key != "peak":
            cells.append(f"{statistics.median(ratios):.2f} ± {statistics.stdev(ratios) / len(ratios) ** 0.5:.2f}")
    return cells


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, ["---:"] * len(heads), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--leaves", type=int, nargs="+", default=[16, 500])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of a loop; a save must be complete before they are")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    found = {leaves: measure(given.megabytes, leaves, given.rounds, given.steps) for leaves in given.leaves}
    saves = table(
        ["leaves", "added by hookline, s", "by Orbax, s", "ratio", "complete in hookline, s", "in Orbax, s", "ratio"],
        [row(leaves, figures, "added", "complete") for leaves, figures in found.items()],
    )
    restores = table(
        ["leaves", "hookline, s", "Orbax, s", "ratio", "peak of hookline, MB", "peak of Orbax, MB"],
        [row(leaves, figures, "restore", "peak") for leaves, figures in found.items()],
    )
    text = f"""# Saves and restores

A state of {given.megabytes} MB on the CPU ({os.cpu_count()} cores), in hookline and in a loop by hand with
`CheckpointManager` (`StandardSave`, `StandardRestore`) of Orbax {ocp.__version__}, in turns: medians of {given.rounds}
rounds of `benchmarks/checkpoint.py`, {datetime.date.today()}.

## Saves

The loop has {given.steps} steps that donate the state, and one save in the background. What it adds is the time of
the loop beyond that of a loop without a save; complete is the time until it can be restored. hookline's save also takes
the checksum of each array.

{saves}

## Restores

hookline compares the checksums. The peak is memory beyond what is held before.

{restores}
"""
    print(text)
    if given.results:
        (given.results / "checkpoint.md").write_text(text)


if __name__ == "__main__":
    main()
