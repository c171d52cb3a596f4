"""EvalResult: the argument of `Evaluate(on_result=...)`; and the comparison of two values of a metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from hookline.loop.in_memory_checkpoint import StateValues
from hookline.loop.step.step_graph import loop_of
from hookline.session import Session

Mode = Literal["min", "max"]

# The last words of metric names from which the mode is inferred; other metrics need the argument `mode`.
_MIN_METRICS = ("loss", "error", "mse", "mae", "rmse", "nll", "perplexity")
_MAX_METRICS = ("accuracy", "acc", "precision", "recall", "f1", "auc", "bleu")


class Best(NamedTuple):
    """The best value of a metric so far, and its global step."""

    value: float
    step: int


def infer_mode(metric: str) -> Mode | None:
    """Returns whether smaller or larger values of a metric are better, judging by its name; None if that is unknown.

    Example:
        >>> infer_mode("loss"), infer_mode("top/accuracy"), infer_mode("score")
        ('min', 'max', None)
    """
    word = metric.replace("/", "_").rpartition("_")[2].lower()
    return "min" if word in _MIN_METRICS else "max" if word in _MAX_METRICS else None


def resolve_mode(who: str, metric: str, mode: str | None) -> Mode:
    """Returns whether smaller or larger values of a metric are better.

    Raises:
        ValueError: `mode` is neither "min" nor "max"; or it is not given, and the name does not show it.
    """
    if mode is not None and mode not in ("min", "max"):
        raise ValueError(f"{who} requires 'min' or 'max' as mode, got {mode!r}.")
    found = mode or infer_mode(metric)
    if found is None:
        raise ValueError(
            f"{who}: the name {metric!r} does not show whether small or large values are better: unless it is "
            f"misspelt, give mode='min' or mode='max'."
        )
    return found  # type: ignore[return-value]


def is_better(mode: Mode, value: float, best: float | None, min_delta: float = 0.0) -> bool:
    """Returns whether a value is better than the best so far by more than `min_delta`; NaN never is."""
    if value != value:
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation, for `Evaluate(on_result=...)`.

    `best` and `since_best` count evaluations before a restart, but not the additional evaluation at the end of a
    `Loop.run`. So a function that decides by them makes the same decisions in an interrupted and in an uninterrupted
    training.

    Args:
        name: The name of the evaluation.
        step: The global step.
        values: The metrics by name: floats and NumPy arrays.
        best: For each scalar metric whose name shows whether less or more is better, its best value and the step.
        since_best: For the same metrics, the number of evaluations since the best one; 0 if this is the best. NaN is
            never the best.
        session: The raw session.
        request_stop: Ends the training after this step: `result.request_stop()`. With a reason,
            `result.request_stop(final="...")`, the stop is final, as in `SessionRunContext`.

    Example:
        After 3, 6, 9, ... evaluations in a row without a better loss the learning rate is halved, as by
        `ReduceLROnPlateau` of Keras.

        >>> def reduce_on_plateau(result):
        ...     worse = result.since_best["loss"]
        ...     if worse > 0 and worse % 3 == 0:
        ...         result.state["learning_rate"] *= 0.5
    """

    name: str
    step: int
    values: Mapping[str, Any]
    best: Mapping[str, Best]
    since_best: Mapping[str, int]
    session: Session
    request_stop: Callable[..., Any]

    @property
    def state(self) -> StateValues:
        """The arrays of the loop's state by name, to read and set; see `Loop.state_in`.

        Raises:
            RuntimeError: The graph has no loop.
        """
        loop = loop_of(self.session.graph)
        if loop is None:
            raise RuntimeError(
                "EvalResult.state requires a train.Loop. With a graph of your own, set variables: "
                "variable.load(value, result.session)."
            )
        return loop.state_in(self.session)
