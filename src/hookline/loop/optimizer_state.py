"""The state of an Optax optimizer inside of a train state: which leaves are its own, and what it says of itself."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from hookline.checkpoint import leaves as paths

# What a `TrainState` and an NNX optimizer call it; of what lies elsewhere the types tell.
_NAME = "opt_state"
_HYPERPARAMETER = re.compile(r"(?:(.*)/)?hyperparams/([^/]+)")


def of_optimizer(values: Any) -> list[bool]:
    """Returns for each leaf of a train state whether it is a slot, a count or a hyperparameter of an optimizer.

    An optimizer's state is what Optax makes, a chain of that, and whatever is called `opt_state`.

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
    """Returns the hyperparameters that `optax.inject_hyperparams` holds in a train state: by path, which leaf it is.

    Those of a schedule are left out: what counts for them is the count.
    """
    pairs = paths.with_paths(values)[0]
    names = [path for path, _ in pairs]
    found = {}
    for place, (path, leaf) in enumerate(pairs):
        matched = _HYPERPARAMETER.fullmatch(path)
        if matched is None or leaf.shape or not of_optimizer(values)[place]:
            continue
        scheduled = f"{matched[1] + '/' if matched[1] else ''}hyperparams_states/{matched[2]}/"
        if not any(name.startswith(scheduled) for name in names):
            found[path] = place
    return found


def learning_rate(values: Any) -> int | None:
    """Returns which leaf is the learning rate that `optax.inject_hyperparams` holds; None of none, or of several."""
    found = [
        place
        for place, (path, leaf) in enumerate(paths.with_paths(values)[0])
        if path.endswith("hyperparams/learning_rate") and leaf.shape == () and of_optimizer(values)[place]
    ]
    return found[0] if len(found) == 1 else None


def schedule_count(values: Any) -> int | None:
    """Returns which leaf a learning rate's schedule goes by: the count of Optax's schedule, else its last count."""
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
        return type(node).__name__ != "LookaheadParams"  # Those are parameters, fast and slow.
    if type(node) not in (tuple, list):
        return False
    # A chain may hold states of the user's own transformations, which are named tuples as Optax's are.
    parts = [part for part in node if _is_state(part) or jax.tree.leaves(part)]
    return any(map(_is_state, parts)) and all(_is_state(part) or hasattr(part, "_fields") for part in parts)
