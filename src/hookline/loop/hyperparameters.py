"""The hyperparameters of a restored state, compared with those of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hookline import log
from hookline.coordination import peers
from hookline.graph import Tensor, Variable, placement
from hookline.hooks import SessionRunHook
from hookline.loop.counter import leaf_of
from hookline.loop.forms import is_function
from hookline.loop.optimizer_state import hyperparameters
from hookline.loop.warm_start import replace
from hookline.session.origin import FROM_MEMORY

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = log.of(__name__)

_FROM_SCRIPT = "CheckpointOptions(restore_hyperparams=False)"


class HyperparametersHook(SessionRunHook):
    """Logs the hyperparameters of `optax.inject_hyperparams` that differ between a checkpoint and the script.

    Unless it keeps those, it sets them to the script's: when a training resumes, in a new process or in memory, and
    when a recovery goes back to an earlier step. Runs `begin` and `after_create_session`.

    Args:
        state: The variable of the state.
        given: The initial state, or the function that makes it.

    Attributes:
        keeps: Whether a training resumes with those of the checkpoint.
    """

    def __init__(self, state: Variable, given: Any) -> None:
        self._state = state
        self._places = hyperparameters(state.spec)
        # Those of a function are computed only when they are needed, and nothing else of its result.
        self._given: dict[str, Any] = {
            path: leaf_of(state.initial_value, place, state.spec)
            if is_function(given)
            else _number(jax.tree.leaves(given)[place])
            for path, place in self._places.items()
        }
        self.keeps = True
        self._set_at: int | None = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._set_at = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compares the hyperparameters, if the state came from a checkpoint or from memory."""
        if not self._places and not self.keeps:
            _logger.warning("Loop: %s does nothing: the state has none of optax.inject_hyperparams.", _FROM_SCRIPT)
        if not self._places or not session.origin.startswith(("restored", "begun with")):
            return
        is_first = self._set_at is None
        if not is_first and (self.keeps or session.global_step > (self._set_at or 0)):
            return  # A recovery: the checkpoint has the values that were set, and later changes are the step's own.
        self._set_at = session.global_step
        leaves = jax.tree.leaves(session.lowlevel.handed_over(self._state))
        found = {path: leaves[place] for path, place in self._places.items()}
        computed = session.run({path: value for path, value in self._given.items() if isinstance(value, Tensor)})
        given = self._given | computed
        different = {path: value for path, value in given.items() if _number(value) != _number(found[path])}
        if peers.speaks():
            for path in different:
                before = "the previous run" if session.origin.startswith(FROM_MEMORY) else "the checkpoint"
                self._say(path, before, _number(found[path]), _number(given[path]))
        if different and not self.keeps:
            replace(session, self._state, different)

    def _say(self, path: str, before: str, saved: Any, given: Any) -> None:
        name = path.rpartition("/")[2]
        if not self.keeps:
            _logger.info("Loop: %s (%s) is %s, as in the script; in %s it is %s.", name, path, given, before, saved)
        else:
            _logger.info(
                "Loop: %s (%s) is %s, as in %s; in the script it is %s. %s takes the script's.",
                name,
                path,
                saved,
                before,
                given,
                _FROM_SCRIPT,
            )


def _number(value: Any) -> Any:
    return np.asarray(placement.here(value) if isinstance(value, jax.Array) else value)[()]
