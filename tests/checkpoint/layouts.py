"""Saves and restores of one state in many layouts, in a process of its own with 8 virtual devices.

`python -m tests.checkpoint.layouts DIRECTORY CASES`: writes what came of the cases, which are JSON, to `results.json`
there. One is the layout of a save, that of a restore, and a row in which a bit is flipped, or none.
"""

from __future__ import annotations

import json
import pathlib
import sys
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline.errors import DataLossError

SAVED = ["one", "rows4", "columns4", "grid", "half"]
RESTORED = ["one", "last", *SAVED[1:], "whole4", "rows8", "columns2", "explicit"]
DAMAGED = [("one", "rows4"), ("rows4", "rows4"), ("rows4", "whole8"), ("grid", "rows8"), ("grid", "one")]
ROWS = {700: 100, 100: 300, 1400: 500, 2000: 700}
"""Rows and columns of a place in each quarter of both dimensions, so one in each shard."""


def mesh(*sizes: int, explicit: bool = False) -> jax.sharding.Mesh:
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    names = ("x", "y")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes), devices=jax.devices()[: np.prod(sizes)])


def layout(name: str) -> Callable[[Any], Any]:
    """Returns a description of an array's sharding."""
    if name in ("one", "last"):
        return lambda _: jax.sharding.SingleDeviceSharding(jax.devices()[0 if name == "one" else -1])
    on, specs = {
        "rows4": (mesh(4), ["x"]),
        "rows8": (mesh(8), ["x"]),
        "columns4": (mesh(4), [None, "x"]),
        "columns2": (mesh(2), [None, "x"]),
        "grid": (mesh(2, 2), ["x", "y"]),
        "half": (mesh(2, 2), ["y"]),  # Each piece is on two devices.
        "whole4": (mesh(4), []),
        "whole8": (mesh(8), []),
        "explicit": (mesh(4, explicit=True), ["x"]),
    }[name]
    return lambda leaf: jax.NamedSharding(on, jax.P(*specs[: leaf.ndim]))


def state() -> dict[str, Any]:
    large = np.arange(2048 * 768, dtype=np.float32).reshape(2048, 768)  # More than is read or copied at once.
    return {
        "large": jnp.asarray(large),
        "kernel": jax.random.normal(jax.random.key(0), (16, 24, 8)),
        "half": jnp.linspace(-1, 1, 64, dtype=jnp.bfloat16),
        "bits": jnp.arange(64).reshape(8, 8) % 3 == 0,
        "keys": jax.random.split(jax.random.key(1), 8),
        "count": jnp.array(3),
    }


def placed(name: str) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, layout(name)(leaf)), state())


def built(name: str) -> tuple[hl.Variable, hl.Session]:
    """Returns a variable of the state, zero in that layout, and a session."""

    def zero(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.split(jax.random.key(9), leaf.shape), leaf.sharding)
        return jnp.zeros_like(leaf, device=leaf.sharding)

    with hl.Graph().as_default() as graph:
        variable = hl.Variable(jax.tree.map(zero, placed(name)), name="state")
    return variable, hl.Session(graph=graph)


def contents(value: Any) -> dict[str, str]:
    """Returns for each leaf its bits."""
    leaves = {key: np.asarray(jax.random.key_data(leaf) if key == "keys" else leaf) for key, leaf in value.items()}
    return {key: f"{leaf.dtype} {leaf.shape} {zlib.crc32(leaf.tobytes())}" for key, leaf in leaves.items()}


def save(name: str, directory: pathlib.Path) -> dict[str, Any]:
    with hl.Graph().as_default() as graph:
        variable = hl.Variable(placed(name), name="state")
        change = hl.update(variable, lambda value: value | {"large": value["large"] + 1, "half": value["half"] * 0})
    with hl.Session(graph=graph) as session:
        session.run(variable.initializer)
        saver = hl.train.Saver([variable])
        pending = saver.save_async(session, str(directory / name))
        for _ in range(3):
            session.run(change)  # It may overwrite the memory of the saved values.
        pending.wait()
    manifest = json.loads((directory / name / "hookline.json").read_text())
    (entry,) = manifest["variables"].values()
    return {"devices": len(manifest["devices"]), "pieces": {leaf["path"]: leaf["pieces"] for leaf in entry["leaves"]}}


def restore(path: pathlib.Path, name: str) -> dict[str, Any]:
    variable, session = built(name)
    with session:
        try:
            hl.train.Saver([variable]).restore(session, str(path))
        except DataLossError as error:
            return {"error": str(error)}
        value = session.snapshot()["state"]
    expected = jax.tree.map(lambda leaf: layout(name)(leaf), value)
    moved = [key for key, leaf in value.items() if not leaf.sharding.is_equivalent_to(expected[key], leaf.ndim)]
    return {"contents": contents(value), "moved": moved}


def flip(path: pathlib.Path, value: np.ndarray) -> Callable[[], None]:
    """Flips a bit of a value in a checkpoint; returns a function that flips it back."""
    for file in path.rglob("d/*"):
        whole = file.read_bytes()
        at = whole.find(value.tobytes())
        if at >= 0:
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            return lambda: file.write_bytes(whole) and None
    raise AssertionError(f"{path} does not hold {value}")


def main(directory: pathlib.Path, cases: list[list[Any]]) -> None:
    found: dict[str, Any] = {"contents": contents(state())}
    for name in SAVED:
        found[name] = save(name, directory)
    for name, to, row in cases:
        undo = flip(directory / name, np.asarray(state()["large"][row, ROWS[row] :][:4])) if row else lambda: None
        found[f"{name} {to} {row}"] = restore(directory / name, to)
        undo()
    (directory / "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))
