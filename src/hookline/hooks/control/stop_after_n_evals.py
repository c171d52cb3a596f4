"""StopAfterNEvalsHook: ends an evaluation after a number of runs."""

from __future__ import annotations

from hookline import arguments, log
from hookline.graph import Variable, get_default_graph
from hookline.graph.global_step import get_eval_step
from hookline.hooks.base import SessionRunContext, SessionRunHook, SessionRunValues
from hookline.hooks.lookup import not_started_error

_logger = log.get_logger(__name__)

_LINES = 10


class StopAfterNEvalsHook(SessionRunHook):
    """Requests a stop when the evaluation step reaches a number.

    Callbacks: `begin`, `after_run`.

    Args:
        num_evals: The number of runs; None evaluates until the input ends.
        log_progress: Whether to log the progress about ten times.

    Raises:
        TypeError: `num_evals` is not a whole number.
        ValueError: `num_evals` is less than 1.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     count = train.get_or_create_eval_step().assign_add(1)
        ...     with train.MonitoredSession(hooks=[StopAfterNEvalsHook(3)]) as sess:
        ...         while not sess.should_stop():
        ...             print(sess.run(count))
        1
        2
        3

    References:
        `tf.contrib.training.StopAfterNEvalsHook`. This one also works in a hand-written loop.
    """

    def __init__(self, num_evals: int | None, log_progress: bool = True) -> None:
        if num_evals is not None:
            arguments.check_int("StopAfterNEvalsHook", "num_evals", num_evals, at_least=1)
        self._num_evals = num_evals
        self._log_every = max(1, (num_evals or 0) // _LINES) if log_progress else None
        self._eval_step: Variable | None = None

    def begin(self) -> None:
        """Looks up the evaluation step.

        Raises:
            RuntimeError: The graph has no evaluation step.
        """
        self._eval_step = get_eval_step(get_default_graph())
        if self._eval_step is None:
            raise RuntimeError(
                "StopAfterNEvalsHook requires an evaluation step, but the graph has none. evaluate_once makes and "
                "counts it; in a hand-written loop fetch train.get_or_create_eval_step().assign_add(1) in each run."
            )

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Requests a stop if the number has been reached."""
        if self._eval_step is None:
            raise not_started_error(self)
        # The host counts the step, so this run computes nothing and waits for nothing.
        done = int(run_context.session.run(self._eval_step))
        if self._log_every and (done % self._log_every == 0 or done == self._num_evals):
            _logger.info(
                "Evaluation [%d/%s]", done, "until the input ends" if self._num_evals is None else self._num_evals
            )
        if self._num_evals is not None and done >= self._num_evals:
            run_context.request_stop()
