"""EvalResult: what `Evaluate` gives to its `on_result`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookline.loop.best import Best
from hookline.loop.state_values import StateValues
from hookline.loop.step_graph import loop_of

if TYPE_CHECKING:
    from hookline.session import Session


FINAL = "final_stop"
"""The key in a session's `hook_data` of the reason of a final stop before the first run."""


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation, for `Evaluate(on_result=...)`.

    Evaluations at the end of a run do not count in `best` and `since_best`, and those before a restart do. So a
    function that decides by these makes the same decisions in an interrupted and in an uninterrupted training.

    Args:
        name: The name of the evaluation.
        step: The global step.
        values: The metrics by name: floats and NumPy arrays.
        best: For each number whose name shows whether less or more is better, its best value and the step of it.
        since_best: For the same metrics, the number of evaluations since the best one; 0 if this is the best. NaN is
            never the best.
        session: The raw session.
        request_stop: Ends the training after this step: `result.request_stop()`; for good with a reason, as in
            `SessionRunContext.request_stop(final="...")`.

    Example:
        The rate is halved after each third evaluation in a row without a better loss, as by Keras's
        `ReduceLROnPlateau`.

        >>> def reduce_on_plateau(result):
        ...     worse = result.since_best["loss"]
        ...     if worse and worse % 3 == 0:
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
