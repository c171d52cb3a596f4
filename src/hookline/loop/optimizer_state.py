"""The Optax optimizer state in a train state: its leaves, hyperparameters and counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from hookline.checkpoint import leaves as paths

# Its name in a `TrainState` and in an NNX optimizer; elsewhere its types show it.
_NAME = "opt_state"
_HYPERPARAMETER = re.compile(r"(?:(.*)/)?hyperparams/([^/]+)")


def of_optimizer(values: Any) -> list[bool]:
    """Returns whether each leaf of a train state belongs to an optimizer: a slot, a count or a hyperparameter.

    Optimizer states are the types of Optax, chains of them, and everything called `opt_state`.

    Example:
        >>> import optax
        >>> params = {"w": jnp.zeros(2)}
        >>> of_optimizer({"opt": optax.sgd(0.1, momentum=0.9).init(params), "params": params})
        [True, False]
    """
    nodes = paths.with_paths(values, lambda node: node is not values and _is_state(node))[0]
    made = [_is_state(node) for _, node in nodes for _ in jax.tree.leaves(node)]
    called = [_NAME in path.split("/") for path, _ in paths.with_paths(values)[0]]
    return [one or other for one, other in zip(made, called, strict=True)]


def hyperparameters(values: Any) -> dict[str, int]:
    """Returns the hyperparameters of `optax.inject_hyperparams` in a train state: the index of the leaf, by path.

    Hyperparameters with a schedule are left out, because their count determines them.
    """
    pairs = paths.with_paths(values)[0]
    names = [path for path, _ in pairs]
    found = {}
    for place, (path, leaf) in enumerate(pairs):
        matched = _HYPERPARAMETER.fullmatch(path)
        if matched is None or leaf.shape or not of_optimizer(values)[place]:
            continue
        if not is_scheduled(path, names):
            found[path] = place
    return found


def is_scheduled(path: str, names: Iterable[str]) -> bool:
    """Returns whether the leaf at a path is a hyperparameter with a schedule; `names` are the paths of all leaves."""
    if (matched := _HYPERPARAMETER.fullmatch(path)) is None:
        return False
    start = f"{matched[1] + '/' if matched[1] else ''}hyperparams_states/{matched[2]}/"
    return any(name.startswith(start) for name in names)


def learning_rate(values: Any) -> int | None:
    """Returns the index of the leaf with the learning rate of `optax.inject_hyperparams`; None unless it is unique."""
    found = [
        place
        for place, (path, leaf) in enumerate(paths.with_paths(values)[0])
        if path.endswith("hyperparams/learning_rate") and leaf.shape == () and of_optimizer(values)[place]
    ]
    return found[0] if len(found) == 1 else None


def schedule_count(values: Any) -> int | None:
    """Returns the index of the count for a learning rate's schedule: Optax's schedule count, else its last count."""
    own = of_optimizer(values)
    counts, of_schedule = [], []
    place = 0
    is_schedule = lambda node: type(node).__name__ == "ScaleByScheduleState"  # noqa: E731
    for path, node in paths.with_paths(values, is_schedule)[0]:
        if is_schedule(node):
            of_schedule.append(place)
        elif own[place] and path.endswith("/count") and node.shape == () and jnp.issubdtype(node.dtype, jnp.integer):
            counts.append(place)
        place += len(jax.tree.leaves(node))
    return next(iter(of_schedule or reversed(counts)), None)


def _is_state(node: Any) -> bool:
    if type(node).__module__.partition(".")[0] == "optax":
        return type(node).__name__ != "LookaheadParams"  # These are parameters, fast and slow.
    if type(node) not in (tuple, list):
        return False
    # A chain may hold states of the user's own transformations, which are named tuples like Optax's.
    parts = [part for part in node if _is_state(part) or jax.tree.leaves(part)]
    return any(map(_is_state, parts)) and all(_is_state(part) or hasattr(part, "_fields") for part in parts)
