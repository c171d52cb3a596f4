"""A step counter that the state brings along, and the global step: told apart when they part."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.checkpoint import leaves as paths
from hookline.hooks import SecondOrStepTimer, SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.graph import Tensor
    from hookline.session import Session

_logger = logging.getLogger(__name__)

# `TrainState.step`, the `step` of an NNX optimizer in a tuple, the "step" of a dict.
_COUNTER = re.compile(r"(\d+/)?step")
_EVERY_STEPS = 100


class Counter(NamedTuple):
    """A step counter in a state.

    Attributes:
        path: Where it stands, in words.
        keys: The same, as JAX names it.
        value: What it begins with.
    """

    path: str
    keys: tuple[Any, ...]
    value: int

    def of(self, state: Tensor) -> Tensor:
        """Returns the counter in a tensor of such a state."""
        for key in self.keys:
            state = (
                getattr(state, key.name)
                if hasattr(key, "name")
                else state[getattr(key, "key", getattr(key, "idx", None))]
            )
        return state


def counter_in(values: Any) -> Counter | None:
    """Returns the step counter of a state, if it has one: an integer called `step`, near the top."""
    named = zip(paths.with_paths(values)[0], jax.tree.leaves_with_path(values), strict=True)
    for (path, leaf), (keys, _) in named:
        if _COUNTER.fullmatch(path) and np.shape(leaf) == () and jnp.issubdtype(leaf.dtype, jnp.integer):
            return Counter(path, keys, int(leaf))
    return None


class CounterHook(SessionRunHook):
    """Compares a counter of the state with the global step, first and each 100 steps, and warns where they have parted.

    Runs `begin`, `after_create_session`, `before_run`, `after_run` and `settle`; nothing after an exception. It waits
    for nothing: what it asked for is looked at when the next value comes, or somebody saves.

    Args:
        counter: The counter after the step.
        path: Where it stands in the state.
    """

    def __init__(self, counter: Tensor, path: str) -> None:
        self._args = SessionRunArgs(counter)
        self._path = path
        self.trigger = SecondOrStepTimer(every_steps=_EVERY_STEPS)
        self._unread: tuple[int, Any] | None = None
        self._apart = 0

    def begin(self) -> None:
        """Forgets an earlier session."""
        self.trigger.reset()
        self._unread, self._apart = None, 0

    def get_state(self) -> dict[str, Any]:
        """Returns the phase of its trigger."""
        return {"trigger": self.trigger.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Keeps the phase of its trigger over a restart, so that it asks together with those who log and summarise."""
        self.trigger.set_state(state["trigger"])

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Moves back with a session that was restored from an earlier step."""
        self.trigger.start(session.global_step)
        self._unread = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Asks for the counter where it is due."""
        step = run_context.session.global_step + 1
        return self._args if self.trigger.should_trigger_for_step(step) else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Keeps it, and looks at the one before."""
        if run_values.results is None:
            return
        self.settle(run_context.session)
        step = run_context.session.global_step
        self.trigger.update_last_triggered_step(step)
        self._unread = step, run_values.results

    def settle(self, session: Session) -> None:
        """Compares."""
        unread, self._unread = self._unread, None
        if unread is None:
            return
        step, counter = unread[0], int(np.asarray(unread[1]))
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

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns when the next look is due."""
        return self.trigger.steps_until_trigger(global_step)
