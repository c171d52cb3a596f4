"""Metrics that a state accumulates over steps: found, read and begun anew."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.loop.kinds import Unfit, is_nnx

_logger = logging.getLogger(__name__)


class Accumulator(NamedTuple):
    """An object in a state that accumulates, and what it is called there."""

    name: str
    value: Any

    def leaves(self) -> list[Any]:
        """Returns the arrays in which it accumulates."""
        return jax.tree.leaves(_held(self.value))

    def with_leaves(self, leaves: list[Any]) -> Any:
        """Returns it with other arrays; an NNX object is changed in place."""
        held = _held(self.value)
        found = jax.tree.unflatten(jax.tree.structure(held), leaves)
        if not is_nnx(self.value):
            return found
        from flax import nnx

        nnx.update(self.value, found)
        return self.value

    def empty_leaves(self) -> list[Any]:
        """Returns the arrays with which it begins; an NNX object is changed in place.

        Raises:
            Unfit: They are not like those that it has.
        """
        like = self.leaves()
        if is_nnx(self.value):
            self.value.reset()
            empty = self.leaves()
        else:
            kind = type(self.value)
            begun = kind.empty() if hasattr(kind, "empty") else self.value.reset()
            empty = jax.tree.leaves(begun)
        if [np.shape(leaf) for leaf in empty] != [np.shape(leaf) for leaf in like]:
            raise Unfit(
                f"the {type(self.value).__name__} at {self.name!r} of the state has other arrays when it is empty, so "
                f"it cannot be begun anew in a compiled step. Return what one batch gives as metrics in its place"
            )
        return [jnp.asarray(new, old.dtype) for new, old in zip(empty, like, strict=True)]


def is_computed(value: Any) -> bool:
    """Whether it is a metric that says by `compute()` what it comes to."""
    return callable(getattr(type(value), "compute", None))  # nnx.Rngs has a stream of any name.


def accumulates(value: Any) -> bool:
    """Whether it is such a metric that takes in more and can begin anew, as those of NNX and `clu` do."""
    if is_nnx(value):
        kinds = type(value).__mro__
        return any(kind.__module__.startswith("flax.nnx") and kind.__name__ == "Metric" for kind in kinds)
    return _takes_in(value) and _has(value, "reset", "empty")


def say_not_begun_anew(state: Any) -> None:
    """Logs objects of a pytree that look like such metrics, but cannot begin anew, so that they are none."""
    for path, leaf in jax.tree.leaves_with_path(state, is_leaf=_takes_in):
        if _takes_in(leaf) and not is_nnx(leaf) and not accumulates(leaf):
            _logger.info(
                "Loop: the %s at %r of the state is no metric, but a part of the model: it has compute(), and neither "
                "reset() nor empty() to begin anew.",
                type(leaf).__name__,
                jax.tree_util.keystr(path, simple=True, separator="/"),
            )


def _takes_in(value: Any) -> bool:
    return is_computed(value) and _has(value, "merge", "update")


def _has(value: Any, *methods: str) -> bool:
    return any(callable(getattr(type(value), name, None)) for name in methods)


def found_in(state: Any) -> list[Accumulator]:
    """Returns what accumulates in a state: of one within another the outer one."""
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


def changed(state: Any, change: Callable[[Accumulator], list[Any]]) -> Any:
    """Returns a state with other arrays in what accumulates; NNX objects are changed in place."""
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


def begun_anew(state: Any, where: Any) -> Any:
    """Returns a state in which what accumulates is empty where a condition holds.

    Raises:
        Unfit: Something has other arrays when it is empty.
    """

    def begun(accumulator: Accumulator) -> list[Any]:
        before = accumulator.leaves()
        return [jnp.where(where, new, old) for new, old in zip(accumulator.empty_leaves(), before, strict=True)]

    return changed(state, begun)


def _held(value: Any) -> Any:
    if not is_nnx(value):
        return value
    from flax import nnx

    return nnx.state(value)
