"""Steps around a save: how long the longest is, beside Orbax's manager and beside two copies that overlap the steps.

    python benchmarks/save_steps.py [--megabytes 512] [--leaves 16] [--rounds 5] [--results docs/bench]

Each step donates the state. hookline copies it to the host before the next step. By hand it is copied to the pinned
memory of the host, or once more on the device and from there to the host, while the steps go on; nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import hookline as hl
from checkpoint import Side, notice, of_hookline, of_orbax, state_of, table, update

STEPS_ALONE, WARM_UP = 50, 2


@contextmanager
def hookline(state: dict[str, jax.Array], folder: Path) -> Iterator[Side]:
    with hl.Graph().as_default(), hl.Session() as sess:
        yield of_hookline(state, folder, sess)


@contextmanager
def orbax(state: dict[str, jax.Array], folder: Path) -> Iterator[Side]:
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=1)) as manager:
        yield of_orbax(state, folder, manager)


def copies(copy: Callable[[Any], Any]) -> Any:
    """Returns a side that only copies the state to the host, by a function that does not wait."""

    @contextmanager
    def made(state: dict[str, jax.Array], folder: Path) -> Iterator[Side]:
        jitted, held = jax.jit(update, donate_argnums=0), jax.tree.map(jnp.copy, state)

        def step() -> Any:
            nonlocal held
            held, value = jitted(held)
            return jax.device_get(value)

        def save(number: int) -> Callable[[], Any]:
            copied = copy(held)
            return lambda: jax.device_get(copied)

        yield Side(step, save, lambda: None)

    return made


def to_pinned_memory(held: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding.with_memory_kind("pinned_host")), held)


SIDES = {
    "hookline": hookline,
    "Orbax": orbax,
    "a copy to pinned memory": copies(to_pinned_memory),
    "a copy on the device": copies(jax.jit(lambda held: jax.tree.map(jnp.copy, held))),
}


def secs_of_step(side: Side) -> float:
    begin = time.perf_counter()
    side.step()
    return time.perf_counter() - begin


def secs_around(side: Side, number: int) -> tuple[list[float], list[float], float]:
    """Returns the seconds of steps alone, of those until a save is complete (the first with its call), and of it."""
    alone = [secs_of_step(side) for _ in range(STEPS_ALONE)]
    complete, begin = Future[float](), time.perf_counter()
    Thread(target=notice, args=(complete, side.save(number), begin)).start()
    called = time.perf_counter() - begin
    steps = [called + secs_of_step(side)]
    while not complete.done():
        steps.append(secs_of_step(side))
    return alone, steps, complete.result()


def measure(make: Any, state: dict[str, jax.Array], rounds: int) -> list[str]:
    """Returns the cells of a row."""
    folder = Path(tempfile.mkdtemp())
    try:
        with make(state, folder) as side:
            found = [secs_around(side, number) for number in range(1, WARM_UP + rounds + 1)][WARM_UP:]
    finally:
        shutil.rmtree(folder)
    alone, around = (np.concatenate([each[index] for each in found]) * 1e3 for index in (0, 1))
    figures = [np.median(alone), *(np.quantile(around, share) for share in (0.5, 0.99, 1))]
    return [*(f"{ms:,.1f}" for ms in figures), f"{statistics.median(secs for *_, secs in found):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[512])
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    rows = []
    for megabytes in given.megabytes:
        for name, make in SIDES.items():
            state = jax.block_until_ready(state_of(megabytes, given.leaves))
            rows.append([f"{megabytes:,}", name, *measure(make, state, given.rounds)])
    figures = table(["MB", "", "alone", "p50", "p99", "longest", "complete, s"], rows)
    text = f"""# Steps around a save

{jax.devices()[0].device_kind}, JAX {jax.__version__}, Orbax {ocp.__version__}, {datetime.date.today()}: {given.rounds}
saves of {given.leaves} arrays, by `benchmarks/save_steps.py`. Times of steps are milliseconds: alone, and from the
call of a save until it is complete. The first of these includes the call. The copies write nothing.

{figures}
"""
    print(text)
    if given.results:
        (given.results / "save_steps.md").write_text(text)


if __name__ == "__main__":
    main()
