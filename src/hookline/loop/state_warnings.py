"""Warnings about a loop's state when the loop is made."""

from __future__ import annotations

import functools
from typing import Any

import jax

from hookline import log
from hookline.checkpoint import contents
from hookline.graph import placement
from hookline.graph import spec as specs
from hookline.loop.forms import NnxObjects, Tree

_logger = log.of(__name__)


def warn_weak_types(form: Tree | NnxObjects, step: str) -> None:
    """Warns of numbers without a fixed type for which a hand-written loop compiles its second step again."""
    if form.recompiling:
        _logger.warning(
            "Loop: the state has numbers that %s returns in another type: %s. Here they have it from the start; a "
            "hand-written loop would compile its second step again. Give arrays of that type, such as "
            "jnp.zeros((), 'float32').",
            step,
            ", ".join(f"{path} ({dtype})" for path, dtype in form.recompiling.items()),
        )


def warn_unchanged(form: Tree | NnxObjects, step: str) -> None:
    """Warns of parts of the state that do not come back from the step."""
    if form.unchanged:
        first = form.unchanged[0]
        _logger.warning(
            "Loop: %s does not return %s of the state, so %s as given. If that is meant, return it unchanged, or bind "
            "it: functools.partial(%s, %s=%s).",
            step,
            ", ".join(form.unchanged),
            "it stays" if len(form.unchanged) == 1 else "they stay",
            step,
            first,
            first,
        )


def warn_replicated(values: Any, shardings: list[Any]) -> None:
    """Warns of large arrays that are replicated on all devices because they have no sharding."""
    if not any(place is not None and not place.is_fully_replicated for place in shardings):
        return
    spec = jax.tree.leaves_with_path(specs.of_value(values))
    large = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, leaf), place in zip(spec, shardings, strict=True)
        if place is None and leaf.size > 2**18
    ]
    if large:
        _logger.warning(
            "Loop: %s of the state are replicated on all devices, because they have no sharding, though other arrays "
            "are split. Give them one with sharding=.",
            ", ".join(large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else ""),
        )


def log_devices(places: Any) -> None:
    """Logs the devices of the state, if there are several."""
    names = contents.device_names({device for place in jax.tree.leaves(places) for device in place.device_set})
    if len(names) > 1:
        _logger.info("Loop: the state is on %s, and is trained there.", contents.shown_devices(names))


@functools.cache  # Once is enough, for all loops of a process.
def warn_one_device() -> None:
    """Warns that one of several devices is used, because neither the state nor the batches have a sharding."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    count = jax.local_device_count()
    if count > 1 and default is None and not placement.is_in_step():
        _logger.warning(
            "Loop: the state and the batches are on one device, %s, of %d. To train on all of them: mesh = "
            "jax.make_mesh((%d,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)); Loop(..., "
            "sharding=jax.NamedSharding(mesh, jax.P())), which also splits the batches; see docs/devices.md. To stay "
            "on one: sharding=jax.devices()[0].",
            jax.local_devices()[0],
            count,
            count,
        )
