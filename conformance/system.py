"""The neutral interface that scenarios are written against."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol


class Time(Protocol):
    """Time that stands still until it is moved."""

    def advance(self, secs: float) -> None:
        """Moves it on."""
        ...

    def now(self) -> float:
        """The time, in seconds."""
        ...


class System(Protocol):
    """TensorFlow or hookline.

    Whatever has the same name and arguments in `tf.compat.v1` and in `hookline` is an attribute: `train`, `errors`,
    `summary`, `Graph`, `GraphKeys`, `Session`, `Variable`, `placeholder`, `constant`, `group`, `no_op`, `gradients`,
    `control_dependencies`, `name_scope`, `get_collection`, `add_to_collection`, the
    initializers, and the messages `SessionLog`, `Event`, `LogMessage`. What differs is here.

    Attributes:
        name: `tensorflow` or `hookline`.
        folder: Directory of this scenario alone, empty at its start.
        log: Messages logged so far in this scenario, as `LEVEL text`.
    """

    name: str
    folder: str
    log: list[str]

    def __getattr__(self, name: str) -> Any: ...

    def matmul(self, a: Any, b: Any) -> Any:
        """The product of two matrices."""
        ...

    def total(self, x: Any) -> Any:
        """The sum of all elements."""
        ...

    def host(self, fn: Any, *inputs: Any, dtype: str = "float32") -> Any:
        """A tensor whose value a Python function computes in the run."""
        ...

    def counted(self, step: Any, by: int) -> Any:
        """Counts the global step on, after what reads it in the same run."""
        ...

    def initial(self, variable: Any) -> Any:
        """The initial value of a variable, for that of another."""
        ...

    def sgd(self, rate: float) -> Any:
        """A gradient descent optimizer."""
        ...

    def adam(self, rate: float) -> Any:
        """Adam."""
        ...

    def events(self, directory: str) -> list[Any]:
        """The events in the event files of a directory, in order; `Event` messages."""
        ...

    def text_of(self, value: Any) -> Any:
        """The tensor in a value of a `Summary`, as nested lists."""
        ...

    def profiled(self, directory: str) -> list[int]:
        """The steps of the profiles in a directory."""
        ...

    def clock(self) -> contextlib.AbstractContextManager[Time]:
        """Holds the system's time still inside the block."""
        ...

    def options(self, trace_level: int = 0, graphs: bool = False) -> Any:
        """Options of a run."""
        ...

    def reset(self) -> None:
        """Forgets what a scenario may have left behind."""
        ...
