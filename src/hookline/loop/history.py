"""History: numbers by name over the steps of a training, for plots and decisions."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hookline.hooks.when import bare

class Series(NamedTuple):
    """The values of one metric, and their global steps: `plt.plot(*series)`."""

    steps: list[int]
    values: list[float]


class History(dict[str, Series]):
    """The series of metrics by name, which goes into checkpoints.

    Example:
        >>> history = History()
        >>> history.record(1, {"loss": 0.5})
        >>> history.record(2, {"loss": 0.25})
        >>> history.cut(1)
        >>> history["loss"]
        Series(steps=[1], values=[0.5])
    """

    def record(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds numbers of a step; those of a step that is there already are replaced."""
        for name, value in numbers.items():
            steps, values = self.setdefault(name, Series([], []))
            if steps and steps[-1] == step:
                values[-1] = value
            else:
                steps.append(step)
                values.append(value)

    def cut(self, step: int) -> None:
        """Removes what comes after a step, which is trained again."""
        for series in self.values():
            place = bisect.bisect_right(series.steps, step)
            del series.steps[place:], series.values[place:]

    def get_state(self) -> dict[str, Any]:
        """Returns the state of a hook: two texts of bytes a series, because a checkpoint describes each number."""
        return {
            name: (np.asarray(steps, "<i8").tobytes(), np.asarray(values, "<f8").tobytes())
            for name, (steps, values) in self.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the series."""
        self.clear()
        for name, (steps, values) in state.items():
            self[name] = Series(np.frombuffer(steps, "<i8").tolist(), np.frombuffer(values, "<f8").tolist())


def recorders(hooks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Returns the hooks that have a `history`, each with what comes before the names of its metrics."""
    found = [hook for hook in map(bare, hooks) if isinstance(getattr(hook, "history", None), History)]
    return [(f"{hook.name}/" if getattr(hook, "name", "") else "", hook) for hook in found]
