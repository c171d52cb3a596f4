"""StopAtStepHook: ends the training at a step."""

from __future__ import annotations

from hookline import arguments, log
from hookline.coordination import Coordinator, process_group
from hookline.hooks.base import Firing, SessionRunHook
from hookline.hooks.lookup import require_global_step
from hookline.hooks.triggers import at_steps
from hookline.session import Session, origin

_logger = log.get_logger(__name__)


class StopAtStepHook(SessionRunHook):
    """Requests a stop after the run in which the global step reaches or passes a target.

    The session also limits every run to the target: an update that would begin at the target or later is not applied.
    So if several workers train the same model, and each run advances the step by one, they end exactly at the target. A
    run that advances the step by more may pass the target. If the session begins at the target, no step is run, and a
    warning is logged. If the hook is not in the session's list, runs are not limited: the hook that forwards its
    callbacks decides what a stop means.

    Callbacks: `begin`, `after_create_session`, `on_trigger`; nothing after an exception.

    Args:
        num_steps: The number of steps to run from the global step at which the monitored session begins. After a
            recovery the target is the same.
        last_step: The global step to stop at. It may be a float with a whole value, such as 5e5.

    Attributes:
        num_steps: As given.
        last_step: The global step to stop at; None with `num_steps` before the session was created.

    Raises:
        TypeError: The argument is not a whole number.
        ValueError: Not exactly one of the two is given, or the number is negative.

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
        if (num_steps is None) == (last_step is None):
            found = "neither" if last_step is None else "both"
            raise ValueError(f"StopAtStepHook requires exactly one of num_steps or last_step, got {found}.")
        self.num_steps, self.last_step = (
            None if value is None else arguments.check_count("StopAtStepHook", name, value, at_least=0)
            for name, value in (("num_steps", num_steps), ("last_step", last_step))
        )
        self._is_first = True

    def begin(self) -> None:
        """Checks that the graph has a global step, and forgets the target of an earlier session."""
        require_global_step(self)
        if self.num_steps is not None:
            self.last_step = None
        self.trigger = None
        self._is_first = True

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Sets the target and limits all runs to it; if the step has reached the target, requests a stop at once.

        If the hook is not in the session's list, it only sets the target; if the step has reached the target, it
        requests a stop after the next run.
        """
        global_step = session.global_step
        if self.last_step is None:
            self.last_step = global_step + (self.num_steps or 0)
        self.trigger = at_steps(self.last_step)
        session.set_last_step(self.last_step, owner=self)
        if global_step >= self.last_step and session.last_step_of(self) is None:
            self.trigger = at_steps(global_step + 1)
        elif global_step >= self.last_step:
            self._warn_reached(session, global_step)
            coord.request_stop()
        self._is_first = False

    def on_trigger(self, firing: Firing) -> None:
        """Requests a stop at the target."""
        firing.context.request_stop()

    def _warn_reached(self, session: Session, global_step: int) -> None:
        """Warns that a new training has no step left; a session after a recovery logs nothing."""
        if self.num_steps is None and self._is_first and process_group.is_primary():
            _logger.warning(
                "Nothing is trained: the training begins %s, and last_step=%d is %s. To continue training, raise "
                "last_step%s.",
                origin.describe_session(session),
                self.last_step,
                "reached already" if global_step == self.last_step else "lower",
                origin.restart_advice(session),
            )
