"""A step counter that the state brings along, and the global step: told apart when they part."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint import leaves as paths
from hookline.hooks import Firing, SessionRunHook, spaced

if TYPE_CHECKING:
    from hookline.graph import Tensor

_logger = logging.getLogger(__name__)

# `TrainState.step`, the `step` of an NNX optimizer in a tuple, the "step" of a dict.
_COUNTER = re.compile(r"(\d+/)?step")
_EVERY_STEPS = 100


class Counter(NamedTuple):
    """A step counter in a state: where it stands, in words, and as a number among the leaves; and such a state."""

    path: str
    place: int
    like: Any

    def of(self, state: Tensor) -> Tensor:
        """Returns the counter in a tensor of such a state."""
        return leaf_of(state, self.place, self.like)


def leaf_of(state: Tensor, place: int, like: Any) -> Tensor:
    """Returns a leaf of a tensor, by its number, as a part of it: nothing else is read for that.

    Args:
        state: The tensor. The structure of what a step returns may not be known.
        place: The number.
        like: A tree of that structure.
    """
    for key in jax.tree.leaves_with_path(like)[place][0]:
        if hasattr(key, "name"):
            state = getattr(state, key.name)
        else:
            state = state[getattr(key, "key", getattr(key, "idx", None))]
    return state


def counter_in(values: Any, parts: Iterable[Any] = ()) -> Counter | None:
    """Returns the step counter of a state, if it has one: an integer called `step`, near the top.

    Args:
        values: The state.
        parts: The names of its parts where it is spread over the parameters of the step.
    """
    in_parts = {f"{part}/step" for part in parts}
    for place, (path, leaf) in enumerate(paths.with_paths(values)[0]):
        if (
            (_COUNTER.fullmatch(path) or path in in_parts)
            and np.shape(leaf) == ()
            and jnp.issubdtype(leaf.dtype, jnp.integer)
        ):
            return Counter(path, place, values)
    return None


class CounterHook(SessionRunHook):
    """Compares a counter of the state with the global step, first and each 100 steps, and warns where they have parted.

    It takes the counter after the step, and looks when the value has arrived.
    """

    late = True

    def __init__(self, counter: Tensor, path: str) -> None:
        self.fetches = counter
        self.trigger = spaced(_EVERY_STEPS)
        self._path = path
        self._apart = 0

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._apart = 0

    def on_trigger(self, firing: Firing) -> None:
        """Compares."""
        step, counter = firing.global_step, int(np.asarray(firing.values))
        assert step is not None, "a trigger in steps"
        if counter - step != self._apart:
            self._apart = counter - step
            _logger.warning(
                "Loop: the state counts %d steps at %r, and the global step is %d. Schedules go by the one, "
                "checkpoints and summaries by the other. They part where a step counts by more or less than one, and "
                "where on_nan held updates back or went back.",
                counter,
                self._path,
                step,
            )
