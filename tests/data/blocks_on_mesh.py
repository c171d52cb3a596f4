"""Blocks on four CPU devices: prints their shardings, those of their batches, and the values, as JSON.

`python -m tests.data.blocks_on_mesh`, in a process that JAX knows four devices in.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

import hookline as hl

DATA = {"x": np.arange(88.0, dtype="float32").reshape(22, 4), "y": np.arange(22)}


def mesh(kind: Any = AxisType.Auto) -> Any:
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


def rows(kind: Any = AxisType.Auto) -> Any:
    return jax.NamedSharding(mesh(kind), jax.P("data"))


def whole() -> Any:
    return jax.NamedSharding(mesh(), jax.P())


def source() -> Any:
    return hl.data.from_arrays(DATA, 4, shuffle_seed=1, epochs=2)


def keys() -> Any:
    made = jax.random.split(jax.random.key(0), 40).reshape(10, 4)
    return [{"x": np.full((4, 4), number, "float32"), "y": made[number]} for number in range(10)]


CASES: dict[str, Any] = {
    "automatic": lambda: hl.data.iterator(source(), last_batch="drop", sharding=rows()),
    "automatic_without_a_thread": lambda: hl.data.iterator(source(), last_batch="drop", sharding=rows(), prefetch=0),
    "explicit": lambda: hl.data.iterator(source(), last_batch="drop", sharding=rows(AxisType.Explicit)),
    "a_list": lambda: hl.data.iterator(list(source()), last_batch="drop", sharding=rows(), prefetch=0),
    "a_tree": lambda: hl.data.iterator(source(), last_batch="drop", sharding={"x": rows(), "y": whole()}),
    "padded": lambda: hl.data.iterator(source(), last_batch="pad", sharding=rows()),
    "a_device": lambda: hl.data.iterator(source(), last_batch="drop", device=jax.devices()[2]),
    "random_keys": lambda: hl.data.iterator(keys(), sharding=rows()),
}


def place(array: Any) -> str:
    spec = getattr(array.sharding, "spec", "one device")
    return f"{spec} of {len(array.sharding.device_set)}"


def numbers(tree: Any, row: Any = ...) -> list[list[float]]:
    is_key = lambda leaf: jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return [np.asarray(leaf, "float64")[row].ravel().tolist() for leaf in leaves]


def places(item: Any) -> str:
    return " and ".join(map(place, jax.tree.leaves(item.value)))


def main() -> None:
    result = {}
    for name, make in CASES.items():
        with hl.Graph().as_default():
            node = make().op
        reader, other = node.open_for(node, False), node.open_for(node, False)
        blocks, singles = set(), set()
        found: list[Any] = []
        for capacity in (3, None, 3, 5, 3):  # Two batches each time; or one, alone.
            reader.wait(3)
            reader.raise_error()
            if capacity is None:
                item = reader.take()
                singles.add(places(item))
                found.append(numbers(item.value))
            else:
                item = reader.take_block(min(reader.num_ready(3), 2), capacity)
                blocks.add(places(item))
                found += [numbers(item.value, row) for row in range(item.start, item.start + item.count)]
            reader.mark_used(item)
        alone = []
        for _ in found:
            other.wait()
            item = other.take()
            other.mark_used(item)
            singles.add(places(item))
            alone.append(numbers(item.value))
        reader.close()
        other.close()
        result[name] = [sorted(blocks), sorted(singles), found == alone, len(found)]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
