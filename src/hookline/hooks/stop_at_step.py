"""StopAtStepHook: ends the training at a step."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookline import arguments
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import free_global_step, not_started, require_global_step
from hookline.session import RunOptions

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session


_logger = logging.getLogger(__name__)

_RUNS_UNTIL_WARNING = 100


class StopAtStepHook(SessionRunHook):
    """Requests a stop after the run that brings the global step to or past a target.

    It also limits every run to the target: an update that would begin there or later is not applied. So workers that
    train the same model and count by one end exactly on the target. A run that counts by several may pass it. If a
    training is at its target when the session is created, it runs no step. Warns once if the step has not moved in the
    first hundred runs. Runs `begin`, `after_create_session`, `before_run` and `after_run`; nothing after an exception.

    In a subclass that overrides `after_run`, `run_values.results` is the global step before the run if the host counts
    it, else None.

    Args:
        num_steps: How many steps to run, counted from the global step of the session when it is first created. A
            recovery does not move the target; `begin` does.
        last_step: The global step to stop at.

    Raises:
        TypeError: The argument is not a whole number.
        ValueError: Not exactly one of the two is given, or it is negative.

    Example:
        >>> StopAtStepHook()
        Traceback (most recent call last):
        ...
        ValueError: StopAtStepHook requires exactly one of num_steps or last_step, got neither.

    References:
        `tf.train.StopAtStepHook`. Differences: a finished training runs no further step when it is started again; many
        asynchronous workers do not pass the target.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("StopAtStepHook requires exactly one of num_steps or last_step, got neither.")
        if num_steps is not None and last_step is not None:
            raise ValueError("StopAtStepHook requires exactly one of num_steps or last_step, got both.")
        given = {"num_steps": num_steps, "last_step": last_step}
        checked = {
            name: None if value is None else arguments.whole("StopAtStepHook", name, value, at_least=0)
            for name, value in given.items()
        }
        self._num_steps, self._target = checked["num_steps"], checked["last_step"]
        self._args: SessionRunArgs | None = None
        self._started_at = 0
        self._runs_until_warning = _RUNS_UNTIL_WARNING

    @property
    def num_steps(self) -> int | None:
        """The argument as given."""
        return self._num_steps

    @property
    def last_step(self) -> int | None:
        """The global step to stop at; None with `num_steps` before the session was created."""
        return self._target

    def begin(self) -> None:
        """Checks that there is a global step, and forgets the target that `num_steps` led to."""
        require_global_step(self)
        if self._num_steps is not None:
            self._target = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Sets the target, and stops at once if it has been reached."""
        global_step = self._started_at = session.global_step
        if self._target is None:
            self._target = global_step + (self._num_steps or 0)
        self._args = SessionRunArgs(free_global_step(session), options=RunOptions(last_step=self._target))
        if global_step >= self._target:
            coord.request_stop()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Limits the run to the target."""
        if self._args is None:
            raise not_started(self)
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Requests a stop if the target has been reached."""
        global_step = run_context.session.global_step
        if self._target is not None and global_step >= self._target:
            run_context.request_stop()
        elif global_step != self._started_at:
            self._runs_until_warning = 0
        elif self._runs_until_warning:
            self._runs_until_warning -= 1
            if not self._runs_until_warning:
                _logger.warning(
                    "StopAtStepHook: the global step has stayed at %d over %d runs, and may never reach %s. Check that "
                    "the runs fetch the train_op, and that it counts: minimize(loss, global_step=...).",
                    global_step,
                    _RUNS_UNTIL_WARNING,
                    self._target,
                )

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns the number of remaining steps; 1 until the step has moved, so that it can warn if it does not."""
        if self._target is None or (global_step == self._started_at and self._runs_until_warning):
            return 1
        return max(1, self._target - global_step)
