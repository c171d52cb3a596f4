"""MetricsLog: logs the metrics of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hookline.graph import Tensor
from hookline.hooks import Firing, LoggingTensorHook, Trigger
from hookline.loop.history import History

if TYPE_CHECKING:
    from hookline.coordination import Coordinator
    from hookline.session import Session


class MetricsLog(LoggingTensorHook):
    """Logs metrics and the global step after the run, in the same runs in which summaries are written.

    If a run has more steps than lie between two lines, it logs all lines of a run together (`in_rows`).

    Attributes:
        history: The numbers of all lines.
    """

    def __init__(self, metrics: dict[str, Tensor], trigger: Trigger, *, in_rows: bool) -> None:
        super().__init__(metrics, trigger=_EachRun(trigger) if in_rows else trigger)
        self._points, self.stacked = trigger, in_rows
        self.history = History()
        self.state_key = None  # A loop has one, also if the step returns another metric.
        self._writes_own_lines = True  # The step is the only addition to a line of the base class.

    def begin(self) -> None:
        """Looks up the tensors, and forgets an earlier session."""
        super().begin()
        self.history = History()

    def get_state(self) -> str:
        """Returns the numbers of all lines."""
        return self.history.get_state()

    def set_state(self, state: str) -> None:
        """Restores the numbers of all lines."""
        self.history.set_state(state)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Forgets the lines of steps that are trained again."""
        self.history.cut(session.global_step)

    def log(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        """Logs the values, and keeps the numbers among them."""
        super().log(values, elapsed_secs)
        self.history.record(
            self._step, {name: float(np.asarray(value)) for name, value in values.items() if not np.ndim(value)}
        )

    def on_trigger(self, firing: Firing) -> None:
        """Logs a line, or all lines of a run."""
        last = firing.global_step
        assert last is not None, "a loop has one"
        if not self.stacked:
            self._step = last
            super().on_trigger(firing)
            return
        count, found = len(jax.tree.leaves(firing.values)[0]), []
        for row, step in enumerate(range(last - count + 1, last + 1)):
            if self._points.should_trigger_for_step(step):
                found.append((row, step, self._points.update_last_triggered_step(step)[0]))
        # They come together, so each gets an equal share of the time since the line before.
        secs = [elapsed for *_, elapsed in found if elapsed is not None]
        share = sum(secs) / len(secs) if secs else None
        for row, self._step, elapsed in found:
            values = jax.tree.map(lambda leaf, row=row: leaf[row], firing.values)
            self._log(values, None if elapsed is None else share)

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        """Formats the step and the values in one line."""
        line = super().format_line(values, elapsed_secs)
        return f"step {self._step}: {' '.join(line.split())}"  # An array may be formatted in several lines.


class _EachRun(Trigger):
    """Fires in each run, and stores the state of the trigger of the lines."""

    def __init__(self, points: Trigger) -> None:
        self._points = points

    def next_step(self, after: int) -> int:
        return after + 1

    def should_trigger_for_step(self, step: int) -> bool:
        return True

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        return None, None

    def start(self, step: int) -> None:
        self._points.start(step)

    def look(self, step: int) -> None:
        self._points.look(step)

    def get_state(self) -> dict[str, Any]:
        return self._points.get_state()

    def set_state(self, state: Any) -> None:
        self._points.set_state(state)

    def resume(self, state: Any, step: int | None, taken_at: int | None) -> None:
        self._points.resume(state, step, taken_at)

    def __repr__(self) -> str:
        return repr(self._points)
