"""The devices of arrays when they were saved, and when they are restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from hookline import log
from hookline.checkpoint.manifest import Manifest
from hookline.coordination import peers
from hookline.graph import Variable

_logger = log.of(__name__)


def several(arrays: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of the devices that JAX arrays are on, in order; empty unless there are two or more."""
    found = _names(arrays)
    return found if len(found) > 1 else ()


def shown(names: Sequence[str]) -> str:
    """Returns devices in words: "3 devices (cpu:0 to cpu:2)", "1 device (cuda:1)"."""
    kinds = {name.rpartition(":")[0] for name in names}
    numbers = [name.rpartition(":")[2] for name in names]
    in_a_row = len(kinds) == 1 and all(map(str.isdecimal, numbers))
    in_a_row = in_a_row and [*map(int, numbers)] == [*range(int(numbers[0]), int(numbers[0]) + len(names))]
    inside = f"{names[0]} to {names[-1]}" if in_a_row and len(names) > 2 else ", ".join(names)
    return f"{len(names)} device{'s' * (len(names) != 1)} ({inside})"


def shardings_of(variables: Mapping[str, Variable]) -> dict[str, Sequence[Any]]:
    """Returns the shardings of variables, which their restored arrays get."""
    return {name: variable.places for name, variable in variables.items()}


def warn_of_fewer(path: str, manifest: Manifest, values: Any, *, is_placed: bool) -> None:
    """Warns if the restored arrays are on fewer devices than the saved ones.

    If the graph was built with values without a placement (not `is_placed`), the step moves whole arrays to the devices
    of its batches, as it did before the restore.
    """
    now = _names(jax.tree.leaves(values))
    if not now or len(now) >= len(manifest.devices):
        return
    is_split = any(len(leaf.pieces) > 1 for leaf in manifest.leaves.values())
    if peers.speaks() and (is_placed or is_split or jax.device_count() < len(manifest.devices)):
        _logger.warning(
            "Checkpoint '%s' was saved from %s and is restored onto %s, the devices of the values that the graph was "
            "built with. To train on as many as before, build it with values on those: "
            "jax.device_put(state, sharding), or sharding= of the loop or the variable.",
            path,
            shown(manifest.devices),
            shown(now),
        )


def names(found: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of devices, in order."""
    return tuple(str(device) for device in sorted(found, key=lambda device: (device.platform, device.id)))


def _names(arrays: Iterable[Any]) -> tuple[str, ...]:
    return names(set[Any]().union(*(array.devices() for array in arrays if isinstance(array, jax.Array))))
