"""The hyperparameters that a state brings back from a checkpoint, beside those of the script."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hookline.checkpoint import leaves as paths
from hookline.coordination import peers
from hookline.graph import Variable, op
from hookline.hooks import SessionRunHook
from hookline.loop.optimizer_state import hyperparameters
from hookline.loop.warm_start import replace

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session

_logger = logging.getLogger(__name__)

CHECKPOINT, SCRIPT = "checkpoint", "script"


class HyperparametersHook(SessionRunHook):
    """Says which hyperparameters of `optax.inject_hyperparams` a checkpoint has brought back that the script sets otherwise.

    With "script" it sets them as the script does: when the training goes on in a new process, and when a recovery goes
    back to before that. Runs `begin` and `after_create_session`.
    """

    def __init__(self, state: Variable, whose: str) -> None:
        if whose not in (CHECKPOINT, SCRIPT):
            raise ValueError(f"Loop requires 'checkpoint' or 'script' as hyperparams, got {whose!r}.")
        self._state, self._whose = state, whose
        self._places = hyperparameters(state.spec)
        self._given: Any = None
        self._set_at: int | None = None

    def begin(self) -> None:
        """Makes a tensor of what the script gives."""
        self._set_at = None
        if self._places and self._given is None:
            self._given = op(self._of, name="hyperparameters")(self._state.initial_value)

    def _of(self, values: Any) -> dict[str, Any]:
        leaves = jax.tree.leaves(values)
        return {path: leaves[place] for path, place in self._places.items()}

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compares, where the model came from a checkpoint."""
        if not self._places or not session.origin.startswith(("restored", "begun with")):
            return
        is_first = self._set_at is None
        if not is_first and (self._whose == CHECKPOINT or session.global_step > (self._set_at or 0)):
            return  # A recovery: what was set is in the checkpoint, and what a step has changed since is its own.
        self._set_at = session.global_step
        found = self._of(session.lowlevel.handed_over(self._state))
        given = session.run(self._given)
        different = {path: value for path, value in given.items() if _number(value) != _number(found[path])}
        if peers.speaks():
            for path in different:
                self._say(path, _number(found[path]), _number(given[path]))
        if different and self._whose == SCRIPT:
            replace(session, self._state, different)

    def _say(self, path: str, saved: Any, given: Any) -> None:
        name = path.rpartition("/")[2]
        if self._whose == SCRIPT:
            _logger.info("Loop: %s (%s) is %s, as the script says; the checkpoint says %s.", name, path, given, saved)
        else:
            _logger.info(
                "Loop: %s (%s) is %s, as the checkpoint says; the script says %s. hyperparams='script' has it go by "
                "the script.",
                name,
                path,
                saved,
                given,
            )


def _number(value: Any) -> Any:
    return np.asarray(value)[()]
