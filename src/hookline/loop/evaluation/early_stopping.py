"""Early stopping: StopIfNoImprovement stops training; after a final stop, FinalStop lets a restart train no step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hookline import arguments, log
from hookline.coordination import Coordinator, process_group
from hookline.hooks import CheckpointSaverHook, Firing, SessionRunHook, StopAtStepHook
from hookline.hooks.lookup import session_savers
from hookline.hooks.only_for import unwrap
from hookline.loop.evaluation.eval_result import Mode, is_better, resolve_mode
from hookline.loop.evaluation.evaluate import Evaluate, session_evaluations
from hookline.monitored.hooked.hooked_session import HookedSession
from hookline.monitored.stop_request import FINAL_STOP_KEY
from hookline.session import Session, origin
from hookline.units import format_count, format_number

_logger = log.get_logger(__name__)


class StopIfNoImprovement(SessionRunHook):
    """Stops training when a metric of an `Evaluate` hook has not improved for `patience` evaluations in a row.

    It uses the results of the `Evaluate` hook, before or after it in the list of hooks. Checkpoints contain the number
    of evaluations without improvement, under the evaluation's name, the metric and the mode; so the count also
    continues with another `patience`. A second hook with the same name, metric and mode needs a `state_key` of its own.
    In a `Loop` the stop is final: a restart trains no step. If you change `patience` or the metric, or pass
    `train_on=True`, the training continues; a count that has reached `patience` then starts over.

    Callbacks: `begin`, `after_create_session`, and `on_trigger` when the `Evaluate` hook fires; none after an
    exception.

    Args:
        metric: The metric.
        patience: The number of evaluations without improvement after which it stops, at least 1.
        mode: "min" or "max": whether small or large values are good. By default inferred from the
            metric's name: "min" for "loss", "max" for "accuracy".
        min_delta: An improvement is a change by more than this.
        name: The name of the `Evaluate` hook.

    Attributes:
        final: The text with which the reason begins that it passes to `request_stop(final=...)`; the best value and its
            step follow.

    Raises:
        TypeError: `patience` or `min_delta` is not a number.
        ValueError: `mode` is missing, or a number is too small. From `after_create_session`: there is no such
            evaluation, or it has no such metric. From `on_trigger`, if only an evaluation shows all names: it has no
            such metric.

    Example:
        >>> hook = StopIfNoImprovement("accuracy", patience=5)
        >>> StopIfNoImprovement("score", patience=5)
        Traceback (most recent call last):
        ...
        ValueError: StopIfNoImprovement: the name 'score' does not show whether small or large values are better: ...

    References:
        `tf.estimator.experimental.stop_if_no_decrease_hook` and `stop_if_no_increase_hook`, which count steps.
    """

    comes_after = (Evaluate,)  # `help` prints the whole documentation of a class.
    # A checkpoint of the same step must contain the updated number of evaluations without improvement.
    comes_before = (CheckpointSaverHook,)

    def __init__(
        self, metric: str, patience: int, *, mode: str | None = None, min_delta: float = 0.0, name: str = "eval"
    ) -> None:
        self._metric, self._name = metric, name
        self._patience = arguments.check_int("StopIfNoImprovement", "patience", patience, at_least=1)
        self._min_delta = arguments.check_number("StopIfNoImprovement", "min_delta", min_delta, at_least=0)
        self._mode: Mode = resolve_mode("StopIfNoImprovement", metric, mode)
        self.state_key = f"{name}, {metric}, {self._mode}"
        self.final = f"{metric} of {name!r} has not improved for {format_count(self._patience, 'evaluation')}"
        self._evaluate: Evaluate | None = None
        self._forget()

    def _forget(self) -> None:
        self._best: float | None = None
        self._best_step: int | None = None
        self._wait_count = 0
        self._seen_step: int | None = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._forget()

    def get_state(self) -> dict[str, Any]:
        """Returns the best value, and the number of evaluations since."""
        return {
            "best": self._best,
            "best_step": self._best_step,
            "wait_count": self._wait_count,
            "seen_step": self._seen_step,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the best value, and the number of evaluations since."""
        self._best, self._best_step = state["best"], state.get("best_step")  # Earlier versions saved no step.
        self._wait_count, self._seen_step = state["wait_count"], state["seen_step"]

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Finds the evaluation."""
        found = session_evaluations(session)
        if self._name not in found:
            raise ValueError(
                f"StopIfNoImprovement requires an Evaluate hook called {self._name!r}, and this session has "
                f"{', '.join(map(repr, found)) or 'none'}. Add one, or choose one with name=."
            )
        self._evaluate = found[self._name]
        if self._evaluate.metric_names is not None:
            self._check_metric(self._evaluate.metric_names)
        self.trigger = self._evaluate.trigger
        if self._seen_step is not None and self._seen_step > session.global_step:
            self._forget()

    def _check_metric(self, names: Collection[str]) -> None:
        if self._metric not in names:
            raise ValueError(
                f"StopIfNoImprovement: {self._name!r} has no metric {self._metric!r}. Available metrics: "
                f"{', '.join(names) or 'none'}."
            )

    def resume_after_stop(self) -> None:
        """Resets the count if it has reached `patience`; called when training continues after a final stop."""
        self._wait_count = 0 if self._wait_count >= self._patience else self._wait_count

    def on_trigger(self, firing: Firing) -> None:
        """Compares a new evaluation with the best one.

        Raises:
            ValueError: The evaluation has no such metric, or the metric is an array.
        """
        evaluate = self._evaluate
        if evaluate is None or evaluate.step is None or evaluate.step == self._seen_step:
            return
        self._seen_step = evaluate.step
        self._check_metric(evaluate.values)
        value = evaluate.values[self._metric]
        if not isinstance(value, float):
            raise ValueError(f"StopIfNoImprovement requires a number, and the metric {self._metric!r} is an array.")
        if is_better(self._mode, value, self._best, self._min_delta):
            self._best, self._best_step, self._wait_count = value, evaluate.step, 0
            return
        self._wait_count += 1
        if self._wait_count >= self._patience:
            _logger.info(
                "Stopping: %s of %r %s in %d evaluations.",
                self._metric,
                self._name,
                "was NaN" if self._best is None else f"has not improved on {self._best:.6g}",
                self._wait_count,
            )
            at = "" if self._best_step is None else f" at step {self._best_step}"
            best = "it was NaN" if self._best is None else f"the best is {format_number(self._best)}{at}"
            firing.context.request_stop(final=f"{self.final}; {best}")


class FinalStop(SessionRunHook):
    """Saves the reason of a final stop (`request_stop(final=...)`) in checkpoints, so that a restart trains no step.

    A hook may have the reason, a text, or its part before a `; `, as its attribute `final`. Then a restart trains no
    step only if a hook of the session still has the same text there. So training continues after you have changed the
    hook's arguments:

        saved by StopIfNoImprovement("loss", 2)    "loss of 'eval' has not improved for 2 evaluations; the best is ..."
        resumed with patience=2                    no step is trained
        resumed with patience=5, or "accuracy"     the training continues

    Args:
        hooks: The other hooks of the session.
        train_on: Whether to continue training after a final stop.
    """

    # The last evaluation belongs to the checkpoint that `end` saves. StopAtStepHook comes first, so that it can warn of
    # a `last_step` that is already reached.
    comes_after = (Evaluate, StopAtStepHook)
    comes_before = (CheckpointSaverHook,)

    def __init__(self, hooks: Sequence[Any], train_on: bool) -> None:
        self._hooks = hooks
        self._train_on = arguments.check_optional("Loop", "train_on", train_on, bool)
        self.begin()

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._session: Session | None = None
        self._reason, self._is_declared = "", False
        self._is_first, self._is_new = True, False

    def get_state(self) -> dict[str, Any] | None:
        """Returns the reason of a final stop, and whether a hook has it as `final`; None without one."""
        self._note_final_stop()
        return {"why": self._reason, "is_declared": self._is_declared} if self._reason else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the reason."""
        self._reason, self._is_declared = state["why"], state["is_declared"]

    def reason(self) -> str:
        """Returns the reason of the final stop that was restored; empty if training may continue."""
        is_lifted = self._train_on or (self._is_declared and not self._declares())
        return "" if is_lifted else self._reason

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Requests a stop if a final stop was restored; not after a recovery."""
        self._session = session
        if not self._is_first or not self.reason():
            if self._reason and self._is_first and process_group.is_primary():
                _logger.info(
                    "Training continues %s, after the final stop there (%s), because %s.",
                    origin.describe_session(session),
                    self._reason,
                    "of train_on=True" if self._train_on else "the hook that stopped it was changed or removed",
                )
            if self._reason and self._is_first:
                for hook in map(unwrap, self._hooks):
                    getattr(hook, "resume_after_stop", _no_op)()
            self._reason = ""
        # If a stop was requested before, another hook, such as StopAtStepHook, has logged why nothing is trained.
        elif self._reason and not coord.should_stop():
            if process_group.is_primary():
                _logger.warning(
                    "Nothing is trained: this training run has already stopped early, %s: %s. To continue training, "
                    "pass train_on=True%s%s.",
                    origin.describe_session(session),
                    self._reason,
                    ", or change the hook that stopped it" if self._is_declared else "",
                    origin.restart_advice(session),
                )
            session.hook_data[FINAL_STOP_KEY] = self._reason  # The training run stays finished.
            coord.request_stop()
        self._is_first = False

    def end(self, session: Session) -> None:
        """Saves a checkpoint with the reason, even if the step was saved before the stop was requested."""
        self._note_final_stop()
        if self._is_new:
            for save in session_savers(session).values():
                save(session, again=True)

    def _note_final_stop(self) -> None:
        """Takes the reason of a final stop that was requested in this session, if there is one."""
        if self._session is None or self._reason:
            return
        hooked = self._session.hook_data.get(HookedSession)
        self._reason = self._session.hook_data.get(FINAL_STOP_KEY, "") or (
            hooked.final_stop_reason if hooked is not None else ""
        )
        self._is_declared, self._is_new = self._declares(), bool(self._reason)

    def _declares(self) -> bool:
        """Returns whether a hook has the reason as its attribute `final`."""
        declared = [getattr(unwrap(hook), "final", None) for hook in self._hooks]
        return any(isinstance(why, str) and f"{self._reason}; ".startswith(f"{why}; ") for why in declared)


def _no_op() -> None: ...
