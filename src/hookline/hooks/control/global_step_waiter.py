"""GlobalStepWaiterHook: delays the start of a worker until a global step."""

from __future__ import annotations

from hookline import arguments, clock, log
from hookline.coordination import Coordinator, process_group, progress
from hookline.errors import DeadlineExceededError
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook
from hookline.hooks.lookup import require_global_step
from hookline.session import Session
from hookline.signals import preemption

_logger = log.get_logger(__name__)

_LOG_EVERY_STEPS = 1000


class GlobalStepWaiterHook(SessionRunHook):
    """Delays this worker's first run until the shared global step is at least `wait_until_step`.

    For asynchronous workers (parameter servers) that should start one after another: `wait_until_step=int(K *
    log(task_id + 1))`, where task 0 is the chief. Only the first run of a monitored session waits, not the
    first run after a recovery. A recovery during the wait does not end the wait.

    If a stop is requested during the wait, `before_run` raises `StopIteration`: no step is run, and the session closes
    as at the end of the input.

    Callbacks: `begin`, `after_create_session`, `before_run`.

    Args:
        wait_until_step: The global step to wait for; with 0 or less the hook never waits.
        timeout_secs: The longest wait, across all recoveries; None means no limit.
        poll_secs: Seconds between checks for a stop request. The step is not polled: the session reports it.

    Raises:
        ValueError: `poll_secs` is not positive.

    Example:
        >>> import math
        >>> hook = GlobalStepWaiterHook(wait_until_step=int(500 * math.log(3 + 1)), timeout_secs=3600)

    References:
        `tf.train.GlobalStepWaiterHook`. Differences: the wait ends when the training ends; `timeout_secs`; the session
        reports the step, which the reference polls twice a second.
    """

    def __init__(self, wait_until_step: int, timeout_secs: float | None = None, poll_secs: float = 0.2) -> None:
        arguments.check_int("GlobalStepWaiterHook", "wait_until_step", wait_until_step)
        if timeout_secs is not None:
            arguments.check_number("GlobalStepWaiterHook", "timeout_secs", timeout_secs, at_least=0)
        if arguments.check_number("GlobalStepWaiterHook", "poll_secs", poll_secs) <= 0:
            raise ValueError(f"GlobalStepWaiterHook requires poll_secs > 0, got {poll_secs}.")
        self._wait_until_step = wait_until_step
        self._timeout_secs = timeout_secs
        self._poll_secs = poll_secs
        self._coord: Coordinator | None = None
        self._started = False
        self._deadline: float | None = None

    def begin(self) -> None:
        """Checks that other workers can advance the global step, and makes the next run wait."""
        require_global_step(self)
        if (others := process_group.current()) is not None:
            raise RuntimeError(
                f"GlobalStepWaiterHook waits until other workers have advanced the global step, but the {others.count} "
                "processes of this job are SPMD processes: they are always at the same step, and all would wait for "
                "ever. Leave the hook out; it is for workers that share parameter servers."
            )
        self._started = self._wait_until_step <= 0
        self._deadline = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Keeps the coordinator, whose stop requests end the wait."""
        self._coord = coord

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Waits for the global step before the first run.

        Raises:
            StopIteration: A stop was requested during the wait.
            DeadlineExceededError: The wait has taken `timeout_secs`.
        """
        if not self._started:
            self._wait(run_context.session)
            self._started = True
        run_context.stop_callbacks(self)
        return super().before_run(run_context)

    def _wait(self, session: Session) -> None:
        wanted = self._wait_until_step
        step = session.global_step
        if step >= wanted:
            return
        _logger.info("GlobalStepWaiterHook waits for global step %d; it is %d now.", wanted, step)
        if not session.backend.shared:
            _logger.warning(
                "GlobalStepWaiterHook waits for global step %d in a session that does not share its variables, so no "
                "other can advance the step. Give this hook to workers only.",
                wanted,
            )
        if self._timeout_secs is not None and self._deadline is None:
            self._deadline = clock.monotonic() + self._timeout_secs
        next_logged = step + _LOG_EVERY_STEPS
        while step < wanted:
            self._check_stop(session, step)
            progress.count += 1  # The wait has a limit of its own.
            step = session.wait_for_step(min(wanted, next_logged), timeout_secs=self._slice_secs(step))
            if next_logged <= step < wanted:
                _logger.info("GlobalStepWaiterHook waits for global step %d; it is %d now.", wanted, step)
                next_logged = step + _LOG_EVERY_STEPS

    def _check_stop(self, session: Session, step: int) -> None:
        preemption.raise_pending_interrupt()
        if session.closed or (self._coord is not None and self._coord.should_stop()):
            raise StopIteration(
                f"GlobalStepWaiterHook stopped waiting for global step {self._wait_until_step}: the training was "
                f"stopped at step {step}."
            )

    def _slice_secs(self, step: int) -> float:
        if self._deadline is None:
            return self._poll_secs
        left_secs = self._deadline - clock.monotonic()
        if left_secs <= 0:
            raise DeadlineExceededError.from_message(
                f"GlobalStepWaiterHook waited {self._timeout_secs:g} s for global step {self._wait_until_step}, but it "
                f"is {step}. Check that the chief and the other workers train, or raise timeout_secs.",
            )
        return min(self._poll_secs, left_secs)
