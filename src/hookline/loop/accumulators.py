"""Metrics that accumulate in a state over steps: finding, reading and resetting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.loop.leaf_types import InvalidStep, is_nnx

_logger = log.of(__name__)


class Accumulator(NamedTuple):
    """A metric in a state, with its name there."""

    name: str
    value: Any

    def leaves(self) -> list[Any]:
        """Returns its arrays."""
        return jax.tree.leaves(_held(self.value))

    def with_leaves(self, leaves: list[Any]) -> Any:
        """Replaces its arrays; an NNX object is changed in place."""
        held = _held(self.value)
        found = jax.tree.unflatten(jax.tree.structure(held), leaves)
        if not is_nnx(self.value):
            return found
        from flax import nnx

        nnx.update(self.value, found)
        return self.value

    def empty_leaves(self) -> list[Any]:
        """Returns its arrays after a reset; an NNX object is changed in place.

        Raises:
            InvalidStep: A reset changes their shapes.
        """
        like = self.leaves()
        if is_nnx(self.value):
            self.value.reset()
            empty = self.leaves()
        else:
            kind = type(self.value)
            empty = jax.tree.leaves(kind.empty() if hasattr(kind, "empty") else self.value.reset())
        if [np.shape(leaf) for leaf in empty] != [np.shape(leaf) for leaf in like]:
            raise InvalidStep(
                f"the {type(self.value).__name__} at {self.name!r} of the state has other shapes after a reset, so a "
                f"compiled step cannot reset it. Return the metrics of one batch instead"
            )
        return [jnp.asarray(new, old.dtype) for new, old in zip(empty, like, strict=True)]


def is_computed(value: Any) -> bool:
    """Returns whether a value is a metric with `compute()`."""
    return callable(getattr(type(value), "compute", None))  # Of the type: nnx.Rngs has a stream of any name.


def accumulates(value: Any) -> bool:
    """Returns whether a value is a metric that accumulates and can be reset, as those of NNX and `clu`."""
    if is_nnx(value):
        kinds = type(value).__mro__
        return any(kind.__module__.startswith("flax.nnx") and kind.__name__ == "Metric" for kind in kinds)
    return _can_update(value) and _has(value, "reset", "empty")


def merges(value: Any) -> bool:
    """Returns whether a value is a pytree with `merge()` and `compute()`, as the metrics of `clu`."""
    is_known = is_computed(value) and _has(value, "merge") and not is_nnx(value)
    return is_known and not jax.tree_util.treedef_is_leaf(jax.tree.structure(value))


def log_not_resettable(state: Any) -> None:
    """Logs objects of a pytree that look like metrics but cannot be reset, and so count as parts of the model."""
    for path, leaf in jax.tree.leaves_with_path(state, is_leaf=_can_update):
        if _can_update(leaf) and not is_nnx(leaf) and not accumulates(leaf):
            _logger.info(
                "Loop: the %s at %r of the state counts as a part of the model, not as a metric: it has compute(), but "
                "neither reset() nor empty().",
                type(leaf).__name__,
                jax.tree_util.keystr(path, simple=True, separator="/"),
            )


def _can_update(value: Any) -> bool:
    return is_computed(value) and _has(value, "merge", "update")


def _has(value: Any, *methods: str) -> bool:
    return any(callable(getattr(type(value), name, None)) for name in methods)


def found_in(state: Any) -> list[Accumulator]:
    """Returns the metrics in a state; of nested ones only the outer one."""
    return list(_in_objects(state)) or [
        Accumulator(_last(path), leaf)
        for path, leaf in jax.tree.leaves_with_path(state, is_leaf=accumulates)
        if accumulates(leaf)
    ]


def _in_objects(state: Any) -> Iterator[Accumulator]:
    objects = [leaf for leaf in jax.tree.leaves(state, is_leaf=is_nnx) if is_nnx(leaf)]
    if not objects:
        return
    from flax import nnx

    found = {path: node for path, node in nnx.iter_graph(state) if accumulates(node)}
    for path in sorted(found, key=lambda path: [str(key) for key in path]):
        if not any(path[:end] in found for end in range(len(path))):
            yield Accumulator(str(path[-1]) if path else "", found[path])


def _last(path: Any) -> str:
    return jax.tree_util.keystr(path[-1:], simple=True)


def map_accumulators(state: Any, change: Callable[[Accumulator], list[Any]]) -> Any:
    """Returns a state with changed arrays in its metrics; NNX objects are changed in place."""
    if any(map(is_nnx, jax.tree.leaves(state, is_leaf=is_nnx))):
        for accumulator in found_in(state):
            accumulator.with_leaves(change(accumulator))
        return state

    def one(path: Any, leaf: Any) -> Any:
        if not accumulates(leaf):
            return leaf
        accumulator = Accumulator(_last(path), leaf)
        return accumulator.with_leaves(change(accumulator))

    return jax.tree.map_with_path(one, state, is_leaf=accumulates)


def reset_where(state: Any, where: Any) -> Any:
    """Resets the metrics in a state where a condition holds.

    Raises:
        InvalidStep: A reset changes the shapes of a metric.
    """

    def reset(accumulator: Accumulator) -> list[Any]:
        before = accumulator.leaves()
        return [jnp.where(where, new, old) for new, old in zip(accumulator.empty_leaves(), before, strict=True)]

    return map_accumulators(state, reset)


def _held(value: Any) -> Any:
    if not is_nnx(value):
        return value
    from flax import nnx

    return nnx.state(value)
