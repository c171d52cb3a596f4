"""What a loop says of its state when it is made."""

from __future__ import annotations

import logging
from typing import Any

import jax

from hookline.checkpoint import devices
from hookline.graph import spec as specs
from hookline.loop.forms import NnxObjects, Tree

_logger = logging.getLogger(__name__)


def of_numbers(form: Tree | NnxObjects, step: str) -> None:
    """Warns of numbers of Python for which a loop of the user's own compiles its second step anew."""
    if form.recompiling:
        _logger.warning(
            "Loop: the state was given with numbers of Python of which %s makes arrays: %s. Here they are such "
            "arrays from the start; a loop of your own compiles its second step anew for them. Give arrays: "
            "jnp.zeros(()), say.",
            step,
            ", ".join(f"{path} ({dtype})" for path, dtype in form.recompiling.items()),
        )


def of_whole(values: Any, shardings: list[Any]) -> None:
    """Warns of large arrays that lie whole on each device because nobody has put them anywhere."""
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
            "Loop: %s of the state lie whole on each device, for nobody has said where, though others are split. "
            "sharding= says it.",
            ", ".join(large[:3]) + (f" and {len(large) - 3} more" if len(large) > 3 else ""),
        )


def of_devices(places: Any) -> None:
    """Says on which devices the state is trained, where these are several."""
    names = devices.names({device for place in jax.tree.leaves(places) for device in place.device_set})
    if len(names) > 1:
        _logger.info("Loop: the state lies on %s, and is trained there.", devices.shown(names))
