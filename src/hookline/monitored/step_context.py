"""StepContext: the argument of a step function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from hookline import arguments
from hookline.session import Session


class StepContext:
    """Gives a step function its actions: run without hooks, run with hooks, and request a stop.

    Args:
        session: The raw session.
        run_with_hooks: Makes a run with hooks.
        request_stop: Requests a stop of the monitored session.

    Attributes:
        session: The raw session; its runs call no hooks.

    References:
        `tf.train.MonitoredSession.StepContext`.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any], request_stop: Callable[[], None]) -> None:
        self.session = session
        self._run_with_hooks = run_with_hooks
        self._request_stop = request_stop

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a run with hooks, like `MonitoredSession.run`."""
        return self._run_with_hooks(*args, **kwargs)

    def request_stop(self) -> NoReturn:
        """Leaves the step function and makes `should_stop()` true.

        Raises:
            StopIteration: Always; the `with` block of the session swallows it.
        """
        self._request_stop()
        raise StopIteration("The step function has requested the stop.")


def check_step_fn(step_fn: Callable[..., Any]) -> None:
    """Checks that a step function has one parameter, named `step_context`.

    Raises:
        ValueError: It has other parameters (besides `self`).

    Example:
        >>> check_step_fn(lambda step_context: None)
        >>> check_step_fn(lambda session: None)
        Traceback (most recent call last):
        ...
        ValueError: A step function takes exactly one parameter, called step_context (besides self); got (session).
    """
    arguments.check_callable("run_step_fn", "step_fn", step_fn)
    parameters = [name for name in inspect.signature(step_fn).parameters if name != "self"]
    if parameters != ["step_context"]:
        raise ValueError(
            "A step function takes exactly one parameter, called step_context (besides self); "
            f"got ({', '.join(parameters)})."
        )
