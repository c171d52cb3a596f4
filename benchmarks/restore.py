"""Restores and saves of large states, in turns with Orbax's `CheckpointManager`.

    python benchmarks/restore.py [--megabytes 512] [--leaves 16 500] [--rounds 7] [--results docs/bench]

Both restore into the shardings of the state, with hookline's sums compared; both write to the same disk. The files are
in the page cache. Prints seconds, ratios within a round, and the peak of memory beyond the state before a restore.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from large_model import reset_peak, settled_bytes, status_bytes

import hookline as hl


def state_of(megabytes: int, leaves: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), leaves)
    size = megabytes * 2**20 // 4 // leaves
    return {f"leaf_{number}": jax.random.normal(key, (size // 256, 256)) for number, key in enumerate(keys)}


def compare(megabytes: int, leaves: int, rounds: int) -> list[str]:
    """Returns a row of the table."""
    state = jax.block_until_ready(state_of(megabytes, leaves))
    folder = Path(tempfile.mkdtemp())
    secs: dict[str, list[float]] = {"hookline": [], "orbax": []}
    peaks: dict[str, list[float]] = {"hookline": [], "orbax": []}
    try:
        with hl.Graph().as_default(), hl.Session() as sess, ocp.CheckpointManager(folder / "orbax") as manager:
            variable = hl.Variable(state, name="state")
            sess.run(hl.global_variables_initializer())
            saver = hl.train.Saver()
            path = saver.save(sess, str(folder / "hookline" / "model.ckpt"))
            manager.save(0, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()
            abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)

            def of_hookline() -> object:
                saver.restore(sess, path)
                return sess.run(variable)

            def of_orbax() -> object:
                return manager.restore(0, args=ocp.args.StandardRestore(abstract))

            for number in range(rounds + 1):
                for name, restore in (("hookline", of_hookline), ("orbax", of_orbax)):
                    before = settled_bytes()
                    reset_peak()
                    begin = time.perf_counter()
                    found = jax.block_until_ready(restore())
                    took = time.perf_counter() - begin
                    assert all(bool(jnp.array_equal(found[key], state[key])) for key in list(state)[:2])
                    del found
                    if number:  # The first round warms up.
                        secs[name].append(took)
                        peaks[name].append((status_bytes("VmHWM") - before) / 2**20)
    finally:
        shutil.rmtree(folder)
    ratios = [one / other for one, other in zip(secs["hookline"], secs["orbax"], strict=True)]
    error = statistics.stdev(ratios) / np.sqrt(len(ratios))
    return [
        f"{leaves}",
        *(f"{statistics.median(secs[name]):.2f}" for name in ("hookline", "orbax")),
        f"{statistics.median(ratios):.2f} ± {error:.2f}",
        *(f"{statistics.median(peaks[name]):,.0f}" for name in ("hookline", "orbax")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--leaves", type=int, nargs="+", default=[16, 500])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    heads = ["leaves", "hookline, s", "Orbax, s", "ratio", "peak of hookline, MB", "peak of Orbax, MB"]
    rows = [compare(given.megabytes, leaves, given.rounds) for leaves in given.leaves]
    lines = [heads, ["---:"] * len(heads), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(text)
    if given.results:
        (given.results / "restore.md").write_text(
            f"# Restores\n\nA restore of {given.megabytes} MB, and `CheckpointManager.restore` with `StandardRestore`"
            f" of Orbax {ocp.__version__}, in turns: medians of {given.rounds} rounds of `benchmarks/restore.py`."
            f" hookline compares its checksums. The peak is beyond the state in memory.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
