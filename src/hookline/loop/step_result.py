"""The result of a step, split into the new state and the metrics."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from hookline.loop.leaf_types import InvalidStep, is_array, is_value


def split_result(before: list[Any], names: list[str], returned: Any) -> tuple[list[Any], Any]:
    """Splits the result of a step into the parts of the new state, and the metrics.

    The parts are side by side, in the order of the parameters; the values before and after them are metrics.

    Args:
        before: The parts of the state before the step.
        names: The parameters that got them.
        returned: The result of the step.

    Raises:
        InvalidStep: Parts are missing, or in another order.

    Example:
        >>> split_result([{"w": 1.0}], ["state"], (0.5, {"w": 2.0}))
        ([{'w': 2.0}], 0.5)
        >>> split_result([{"w": 1.0}, [0]], ["model", "opt_state"], ({"w": 2.0}, [1], 0.5, 0.75))
        ([{'w': 2.0}, [1]], (0.5, 0.75))
    """
    count = len(before)
    if count == 1 and not _is_leaf(before[0]) and _fits(before[0], returned):
        return [returned], {}
    if not isinstance(returned, tuple | list) or hasattr(returned, "_fields"):
        raise InvalidStep(
            f"a step returns its new state and its metrics, but it returned {_kind(returned)}. Write `return "
            f"{', '.join(names)}, {{'loss': loss}}`; a step without metrics returns only its state"
        )
    items = list(returned)
    starts = range(len(items) - count + 1)
    for start in starts:
        if all(map(_fits, before, items[start : start + count])):
            return items[start : start + count], _metrics(items[:start] + items[start + count :])
    whole = list(before[0]) if count == 1 and type(before[0]) is tuple else []
    for start in range(len(items) - len(whole) + 1 if whole else 0):  # a pair came back as two values
        if all(map(_fits, whole, items[start : start + len(whole)])):
            return [tuple(items[start : start + len(whole)])], _metrics(items[:start] + items[start + len(whole) :])
    for place, item in enumerate(items):  # two values came back as a pair
        if count > 1 and isinstance(item, tuple | list) and len(item) == count and all(map(_fits, before, item)):
            return list(item), _metrics(items[:place] + items[place + 1 :])
    _refuse_order(before, names, items)
    if not starts:
        raise InvalidStep(
            f"it is given {count} parts of the state, {', '.join(names)}, and returned {_kind(returned)}. Write "
            f"`return {', '.join(names)}, {{'loss': loss}}`"
        )
    # None fits; the most similar values are compared leaf by leaf, for a better error.
    start = max(starts, key=lambda start: sum(map(_is_like, before, items[start : start + count])))
    if not any(map(_could_be, before, items[start : start + count])):
        raise InvalidStep(
            f"it returned no new state, but {', '.join(map(_kind, items)) or 'an empty tuple'}; it was given "
            f"{', '.join(map(_kind, before))}. Write `return {', '.join(names)}, metrics`",
            ValueError,
        )
    return items[start : start + count], _metrics(items[:start] + items[start + count :])


def _could_be(before: Any, after: Any) -> bool:
    return _is_leaf(before) or not _is_leaf(after)


def _refuse_order(before: list[Any], names: list[str], items: list[Any]) -> None:
    if len(before) > 5 or len(items) > 8:
        return
    for order in itertools.permutations(range(len(items)), len(before)):
        if all(_fits(part, items[place]) for part, place in zip(before, order, strict=True)):
            found = {place: name for name, place in zip(names, order, strict=True)}
            shown = ", ".join(found.get(place, "...") for place in range(len(items)))
            raise InvalidStep(
                f"it returned the parts of the state in another order than its parameters, or not side by side: "
                f"{shown}. Write `return {', '.join(names)}, metrics`"
            )


def _metrics(rest: list[Any]) -> Any:
    return {} if not rest else rest[0] if len(rest) == 1 else tuple(rest)


def _is_leaf(part: Any) -> bool:
    return jax.tree_util.treedef_is_leaf(jax.tree.structure(part))


def _is_like(before: Any, after: Any) -> bool:
    return jax.tree.structure(before) == jax.tree.structure(after)


def _fits(before: Any, after: Any) -> bool:
    """Returns whether a value has the structure and the shapes of a part of the state."""
    if not _is_like(before, after):
        return False
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return all(not is_array(one) or (is_value(other) and np.shape(one) == np.shape(other)) for one, other in pairs)


def _kind(returned: Any) -> str:
    return f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
