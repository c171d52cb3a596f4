"""StopAtStepHook: ends the training at a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import not_started, require_global_step
from hookline.session import RunOptions

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session


class StopAtStepHook(SessionRunHook):
    """Requests a stop after the run that brings the global step to or past a target.

    It also limits every run to that target: an update that would begin there or later is not applied. So workers which
    train the same model together and count by one end exactly on it; a run that counts by several may pass it. A
    training that is at its target when the session is created runs no step. Runs `begin`, `after_create_session`,
    `before_run` and `after_run`; nothing after an exception.

    Args:
        num_steps: How many steps to run, counted from the global step of the session when it is first created. A
            recovery does not move the target; `begin` does.
        last_step: The global step to stop at.

    Raises:
        ValueError: Not exactly one of the two is given.

    Example:
        >>> StopAtStepHook()
        Traceback (most recent call last):
        ...
        ValueError: StopAtStepHook requires exactly one of num_steps or last_step, got neither.

    References:
        `tf.train.StopAtStepHook`. Differences: a finished training runs no further step when it is started again; many
        asynchronous workers do not overshoot.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("StopAtStepHook requires exactly one of num_steps or last_step, got neither.")
        if num_steps is not None and last_step is not None:
            raise ValueError("StopAtStepHook requires exactly one of num_steps or last_step, got both.")
        self._num_steps = num_steps
        self._target = last_step
        self._args: SessionRunArgs | None = None

    def begin(self) -> None:
        """Checks that there is a global step, and forgets the target that `num_steps` led to."""
        require_global_step(self)
        if self._num_steps is not None:
            self._target = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Sets the target, and stops at once if it has been reached."""
        global_step = session.global_step
        if self._target is None:
            assert self._num_steps is not None
            self._target = global_step + self._num_steps
        self._args = SessionRunArgs(None, options=RunOptions(last_step=self._target))
        if global_step >= self._target:
            coord.request_stop()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Limits the run to the target."""
        if self._args is None:
            raise not_started(self)
        return self._args

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Requests a stop if the target has been reached."""
        if self._target is not None and run_context.session.global_step >= self._target:
            run_context.request_stop()

    def steps_until_trigger(self, global_step: int) -> int:
        """Returns the number of steps that are left."""
        return 1 if self._target is None else max(1, self._target - global_step)
