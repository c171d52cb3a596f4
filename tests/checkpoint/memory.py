"""Saves and restores of a large state, with what they take: each in a process of its own.

`python -m tests.checkpoint.memory save|restore PATH LAYOUT SMALL LARGE` prints figures in MB as JSON. The state has 6
leaves of SMALL MB and one of LARGE MB.
"""

from __future__ import annotations

import ctypes
import gc
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp

import hookline as hl

COLUMNS = 1024


def place(layout: str) -> Any:
    """Returns a sharding; None for any."""
    if layout == "anywhere":
        return None
    if layout == "one":
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    spec = {"whole": jax.P(), "rows": jax.P("x"), "columns": jax.P(None, "x")}[layout]
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.NamedSharding(mesh, spec)


def process_mb(field: str) -> float:
    """Returns the memory of this process: `VmRSS` for now, `VmHWM` for the most since `forget_the_most`."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ValueError(field)


def forget_the_most() -> None:
    """Resets `VmHWM`, after freeing unused memory."""
    jax.block_until_ready(jax.live_arrays())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def devices_mb() -> float:
    """Returns the memory of all arrays on devices."""
    held = {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in jax.live_arrays()
        for shard in array.addressable_shards
    }
    return sum(held.values()) / 2**20


def main(action: str, path: str, layout: str, *sizes: str) -> None:
    small, large = map(int, sizes)
    sharding = place(layout)
    rows = {**{f"layer{number}": small * 256 for number in range(6)}, "embedding": large * 256}

    def made() -> dict[str, Any]:
        return {
            name: (jax.lax.iota(jnp.float32, length)[:, None] + jnp.arange(COLUMNS)) for name, length in rows.items()
        }

    def zeros() -> dict[str, Any]:
        return {name: jnp.zeros((length, COLUMNS), device=sharding) for name, length in rows.items()}

    variable = hl.Variable(jax.jit(made, out_shardings=sharding)() if action == "save" else zeros(), name="state")
    change = hl.group(hl.update(variable, lambda value: jax.tree.map(lambda leaf: leaf + 1, value)))
    saver = hl.train.Saver([variable])
    with hl.Session() as session:
        if action == "save":
            session.run(variable.initializer)
            seen = [devices_mb()]
            forget_the_most()
            before = process_mb("VmRSS")
            saver.add_pre_commit(lambda: seen.append(devices_mb()))
            pending = saver.save_async(session, path)
            seen.append(devices_mb())
            session.run(change)  # In place, during the save.
            seen.append(devices_mb())
            pending.wait()
            print(json.dumps({"on_devices": seen, "peak": process_mb("VmHWM") - before}))
            return
        forget_the_most()
        before = process_mb("VmRSS") - devices_mb()
        saver.restore(session, path)
        gc.collect()  # The old values.
        print(json.dumps({"peak": process_mb("VmHWM") - devices_mb() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
