"""Finds the Optax optimizer states in a train state: their leaves, hyperparameters and counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hookline.paths import flatten_with_paths, is_path_prefix

# The name of an optimizer's state in a `TrainState` and in an NNX optimizer; elsewhere it is found by its types.
_NAME = "opt_state"
_HYPERPARAMETER = re.compile(r"(?:(.*)/)?hyperparams/([^/]+)")


def optimizer_leaf_mask(values: Any) -> list[bool]:
    """Returns for each leaf of a train state whether it belongs to an optimizer: moments, counts, hyperparameters.

    Optimizer states are the types of Optax, chains of them, and everything called `opt_state`.

    Example:
        >>> import optax
        >>> params = {"w": jnp.zeros(2)}
        >>> optimizer_leaf_mask({"opt": optax.sgd(0.1, momentum=0.9).init(params), "params": params})
        [True, False]
    """
    own = optimizer_paths(values)
    return [any(is_path_prefix(optimizer, path) for optimizer in own) for path, _ in flatten_with_paths(values)[0]]


def optimizer_paths(values: Any) -> list[str]:
    """Returns the path of each optimizer state in a train state; two chains side by side are two optimizers.

    Example:
        >>> import optax
        >>> opt_state = optax.adam(0.1).init(jnp.zeros(2))
        >>> optimizer_paths({"generator": opt_state, "critic": opt_state, "params": jnp.zeros(2)})
        ['critic', 'generator']
    """
    is_one = lambda node: node is not values and _is_optimizer_state(node) and not _is_tuple_of_states(node)  # noqa: E731
    found = [path for path, node in flatten_with_paths(values, is_one)[0] if is_one(node)]
    for path, _ in flatten_with_paths(values)[0]:
        keys = path.split("/")
        if _NAME in keys and not any(is_path_prefix(optimizer, path) for optimizer in found):
            found.append("/".join(keys[: keys.index(_NAME) + 1]))
    return found


def hyperparameters(values: Any) -> dict[str, int]:
    """Returns the leaf indices of the hyperparameters of `optax.inject_hyperparams` in a train state, by path.

    Hyperparameters with a schedule are left out, because their count determines them.
    """
    pairs = flatten_with_paths(values)[0]
    names = [path for path, _ in pairs]
    found = {}
    for index, (path, leaf) in enumerate(pairs):
        matched = _HYPERPARAMETER.fullmatch(path)
        if matched is None or leaf.shape or not optimizer_leaf_mask(values)[index]:
            continue
        if not is_scheduled(path, names):
            found[path] = index
    return found


def is_scheduled(path: str, names: Iterable[str]) -> bool:
    """Returns whether the leaf at a path is a hyperparameter with a schedule; `names` are the paths of all leaves."""
    if (matched := _HYPERPARAMETER.fullmatch(path)) is None:
        return False
    start = f"{matched[1] + '/' if matched[1] else ''}hyperparams_states/{matched[2]}/"
    return any(name.startswith(start) for name in names)


def learning_rates(values: Any) -> dict[str, int]:
    """Returns the leaf indices of the learning rates of `optax.inject_hyperparams`, by the path of the optimizer."""
    own = optimizer_leaf_mask(values)
    return {
        path.removesuffix("hyperparams/learning_rate").strip("/"): index
        for index, (path, leaf) in enumerate(flatten_with_paths(values)[0])
        if path.endswith("hyperparams/learning_rate") and leaf.shape == () and own[index]
    }


def schedule_counts(values: Any) -> dict[str, int]:
    """Returns the leaf index of the count for a learning rate's schedule, by the path of the optimizer.

    It is the optimizer's first schedule count, else its last count, else the update count of `optax.MultiSteps`.
    """
    is_schedule = lambda node: type(node).__name__ == "ScaleByScheduleState"  # noqa: E731
    schedules = [path for path, node in flatten_with_paths(values, is_schedule)[0] if is_schedule(node)]
    names = _integer_leaves(values)
    found = {}
    for optimizer in optimizer_paths(values):
        own = {path: index for path, index in names.items() if is_path_prefix(optimizer, path)}
        of_schedule = [index for path, index in own.items() if any(is_path_prefix(part, path) for part in schedules)]
        counts = [
            index
            for path, index in own.items()
            if path.endswith("/count") and f"{path.removesuffix('count')}plateau_count" not in own
        ]
        updates = [index for path, index in own.items() if path.endswith("/gradient_step")]
        if chosen := of_schedule[:1] or counts[-1:] or updates[-1:]:
            found[optimizer] = chosen[0]
    return found


def update_counts(values: Any) -> dict[str, int]:
    """Returns the leaf index of the update count in each state of `optax.MultiSteps`, by the path of the count.

    If one is nested in another, the inner one counts, because the parameters change only when both emit an update.
    """
    names = _integer_leaves(values)
    found = {}
    for path, index in names.items():
        state, _, field = path.rpartition("/")
        if field == "gradient_step" and f"{state}/mini_step" in names:
            found[path] = index
    states = [path.rpartition("/")[0] for path in found]
    return {
        path: index
        for path, index in found.items()
        if sum(is_path_prefix(path.rpartition("/")[0], state) for state in states) == 1
    }


def short_name(path: str, names: Mapping[str, str]) -> str:
    """Returns a short name of an optimizer, or of a leaf of its state: the path without `opt_state`.

    Args:
        path: The path.
        names: The parameters of the step, by the keys of their parts of the state.

    Example:
        >>> short_name("generator/opt_state/gradient_step", {}), short_name("2", {"2": "opt_state"})
        ('generator', 'opt_state')
    """
    first, *rest = path.split("/")
    left_out = (_NAME, "gradient_step")
    keys = [names.get(first, "" if first in left_out else first), *(key for key in rest if key not in left_out)]
    return "/".join(filter(None, keys)) or path


def _integer_leaves(values: Any) -> dict[str, int]:
    """Returns the leaf indices of the scalar integers in optimizer states, by path."""
    own = optimizer_leaf_mask(values)
    return {
        path: index
        for index, (path, leaf) in enumerate(flatten_with_paths(values)[0])
        if own[index] and leaf.shape == () and jnp.issubdtype(leaf.dtype, jnp.integer)
    }


def _is_tuple_of_states(node: Any) -> bool:
    """Returns whether a tuple holds several optimizer states, each a chain or a state of `optax.MultiSteps`."""
    if type(node) not in (tuple, list):
        return False
    parts = [part for part in node if jax.tree.leaves(part)]
    return len(parts) > 1 and all(type(part) in (tuple, list) or hasattr(part, "gradient_step") for part in parts)


def _is_optimizer_state(node: Any) -> bool:
    if type(node).__module__.partition(".")[0] == "optax":
        return type(node).__name__ != "LookaheadParams"  # These are model parameters, fast and slow.
    if type(node) not in (tuple, list):
        return False
    # A chain may hold states of the user's own transformations, which are named tuples like Optax's.
    parts = [part for part in node if _is_optimizer_state(part) or jax.tree.leaves(part)]
    return any(map(_is_optimizer_state, parts)) and all(
        _is_optimizer_state(part) or hasattr(part, "_fields") for part in parts
    )
