"""MetricsLog: the metrics of a loop in the log, with the step that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.graph import Tensor, Variable
from hookline.hooks import LoggingTensorHook, SecondOrStepTimer

_STEP = ""  # as no metric is called


class MetricsLog(LoggingTensorHook):
    """Logs metrics on the first run, and then at a cadence of global steps, on the runs that summaries are written of.

    Args:
        global_step: The global step.
        metrics: By name.
        every_steps: Global steps from one line to the next.
    """

    def __init__(self, global_step: Variable, metrics: Mapping[str, Tensor], every_steps: int) -> None:
        super().__init__({_STEP: global_step, **metrics}, trigger=SecondOrStepTimer(every_steps=every_steps))

    def format_line(self, values: dict[str, Any], elapsed_secs: float | None) -> str:
        """Returns the line, which begins with the step after the run: a run reads the step as it was before."""
        metrics = {name: value for name, value in values.items() if name != _STEP}
        return f"step {int(values[_STEP]) + 1}: {super().format_line(metrics, elapsed_secs)}"
