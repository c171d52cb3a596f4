"""The hyperparameters that a state brings back from a checkpoint, beside those of the script."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hookline.coordination import peers
from hookline.graph import Tensor, Variable, placement
from hookline.hooks import SessionRunHook
from hookline.loop.counter import leaf_of
from hookline.loop.forms import is_function
from hookline.loop.memory import FROM_MEMORY
from hookline.loop.optimizer_state import hyperparameters
from hookline.loop.warm_start import replace

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

CHECKPOINT, SCRIPT = "checkpoint", "script"


class HyperparametersHook(SessionRunHook):
    """Says which hyperparameters of `optax.inject_hyperparams` are others in a checkpoint than in the script.

    With "script" it sets them as the script does: when the training goes on, in a new process or in memory, and when a
    recovery goes back to before that. Runs `begin` and `after_create_session`.

    Args:
        state: The variable of the state.
        given: What the state begins with, or the function that makes it.

    Attributes:
        whose: "checkpoint" or "script".
    """

    def __init__(self, state: Variable, given: Any) -> None:
        self._state = state
        self._places = hyperparameters(state.spec)
        # Those of a function are computed where they are asked for, and not the rest of what it makes.
        self._given: dict[str, Any] = {
            path: leaf_of(state.initial_value, place, state.spec)
            if is_function(given)
            else _number(jax.tree.leaves(given)[place])
            for path, place in self._places.items()
        }
        self.whose = CHECKPOINT
        self._set_at: int | None = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._set_at = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compares, where the model came from a checkpoint or from memory."""
        if not self._places and self.whose == SCRIPT:
            _logger.warning("Loop: hyperparams='script' does nothing: the state has none of optax.inject_hyperparams.")
        if not self._places or not session.origin.startswith(("restored", "begun with")):
            return
        is_first = self._set_at is None
        if not is_first and (self.whose == CHECKPOINT or session.global_step > (self._set_at or 0)):
            return  # A recovery: what was set is in the checkpoint, and what a step has changed since is its own.
        self._set_at = session.global_step
        leaves = jax.tree.leaves(session.lowlevel.handed_over(self._state))
        found = {path: leaves[place] for path, place in self._places.items()}
        computed = session.run({path: value for path, value in self._given.items() if isinstance(value, Tensor)})
        given = self._given | computed
        different = {path: value for path, value in given.items() if _number(value) != _number(found[path])}
        if peers.speaks():
            for path in different:
                before = "the run before" if session.origin.startswith(FROM_MEMORY) else "the checkpoint"
                self._say(path, before, _number(found[path]), _number(given[path]))
        if different and self.whose == SCRIPT:
            replace(session, self._state, different)

    def _say(self, path: str, before: str, saved: Any, given: Any) -> None:
        name = path.rpartition("/")[2]
        if self.whose == SCRIPT:
            _logger.info("Loop: %s (%s) is %s, as the script says; %s says %s.", name, path, given, before, saved)
        else:
            _logger.info(
                "Loop: %s (%s) is %s, as %s says; the script says %s. hyperparams='script' has it go by the script.",
                name,
                path,
                saved,
                before,
                given,
            )


def _number(value: Any) -> Any:
    return np.asarray(placement.here(value) if isinstance(value, jax.Array) else value)[()]
