"""The step counter in a state, compared with the global step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.checkpoint import leaves as paths
from hookline.hooks import Firing, SessionRunHook, spaced

if TYPE_CHECKING:
    from hookline.graph import Tensor

_logger = log.of(__name__)

# `TrainState.step`, the `step` of an NNX optimizer in a tuple, the "step" of a dict.
_COUNTER = re.compile(r"(\d+/)?step")
_EVERY_STEPS = 100


class Counter(NamedTuple):
    """A step counter in a state.

    Attributes:
        path: The path of its leaf.
        place: The index of its leaf.
        like: A state of this structure.
    """

    path: str
    place: int
    like: Any

    def of(self, state: Tensor) -> Tensor:
        """Returns the counter as a part of the tensor of a state."""
        return leaf_of(state, self.place, self.like)


def leaf_of(state: Tensor, place: int, like: Any) -> Tensor:
    """Returns a leaf of a tensor, by its index, as a part of it, so that a fetch reads no other leaf.

    Args:
        state: The tensor, whose own structure may be unknown.
        place: The index of the leaf.
        like: A tree of the same structure.
    """
    for key in jax.tree.leaves_with_path(like)[place][0]:
        if hasattr(key, "name"):
            state = getattr(state, key.name)
        else:
            state = state[getattr(key, "key", getattr(key, "idx", None))]
    return state


def counter_in(values: Any, parts: Iterable[Any] = ()) -> Counter | None:
    """Finds the step counter of a state: an integer called `step`, near the top.

    Args:
        values: The state.
        parts: The names of its parts, if it is spread over the parameters of the step.
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
    """Warns if the step counter of the state differs from the global step.

    It compares them at the first step and each 100, after the step, when the value has arrived.

    Args:
        counter: The counter.
        path: Its path.
        optimizer_steps: Returns the number of optimizer steps up to a global step. A counter may count these.
    """

    late = True

    def __init__(self, counter: Tensor, path: str, optimizer_steps: Callable[[int], int]) -> None:
        self.fetches = counter
        self.trigger = spaced(_EVERY_STEPS)
        self._path, self._optimizer_steps = path, optimizer_steps
        self._apart = 0

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._apart = 0

    def on_trigger(self, firing: Firing) -> None:
        """Compares the counter with the global step."""
        step, counter = firing.global_step, int(np.asarray(firing.values))
        assert step is not None, "a trigger in steps"
        if (updates := self._optimizer_steps(step)) != step and abs(counter - updates) <= 1:
            return  # It counts optimizer steps, as `steps_per_update` has them.
        if counter - step != self._apart:
            self._apart = counter - step
            _logger.warning(
                "Loop: the state counts %d steps at %r, and the global step is %d. Schedules use the first, "
                "checkpoints and summaries the second. They differ if a step does not count by one, and after on_nan "
                "skipped updates or rolled back.",
                counter,
                self._path,
                step,
            )
