"""History: numbers by name over the steps of a training, for plots and decisions."""

from __future__ import annotations

import base64
import bisect
import json
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

    def get_state(self) -> str:
        """Returns the series as one text, because a checkpoint describes each number of a hook's state."""
        return json.dumps({name: [_text(steps, "<i8"), _text(values, "<f8")] for name, (steps, values) in self.items()})

    def set_state(self, state: str) -> None:
        """Restores the series."""
        self.clear()
        for name, (steps, values) in json.loads(state).items():
            self[name] = Series(_numbers(steps, "<i8"), _numbers(values, "<f8"))


def _text(numbers: list[Any], dtype: str) -> str:
    return base64.b64encode(np.asarray(numbers, dtype).tobytes()).decode()


def _numbers(text: str, dtype: str) -> list[Any]:
    return np.frombuffer(base64.b64decode(text), dtype).tolist()


def recorders(hooks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Returns the hooks that have a `history`, each with what comes before the names of its metrics."""
    found = [hook for hook in map(bare, hooks) if isinstance(getattr(hook, "history", None), History)]
    return [(f"{hook.name}/" if getattr(hook, "name", "") else "", hook) for hook in found]
