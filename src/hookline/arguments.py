"""Numbers and objects that a user gives, checked where they are given: who wanted what, and what was given."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any


def whole(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number.

    Args:
        who: The class or function that was called.
        name: Of the argument.
        value: What was given.
        at_least: The smallest that will do.

    Raises:
        TypeError: It is none: text, a flag, a number with a fraction.
        ValueError: It is too small.

    Example:
        >>> whole("StopAtStepHook", "last_step", "10")
        Traceback (most recent call last):
        ...
        TypeError: StopAtStepHook requires a whole number as last_step, got '10'.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{who} requires a whole number as {name}, got {value!r}.")
    _check_least(who, name, number, at_least)
    return number


def number(who: str, name: str, value: Any, at_least: float | None = None) -> float:
    """Returns a finite number, or infinity; `whole` says what the arguments are.

    Raises:
        TypeError: It is none.
        ValueError: It is NaN, or too small.

    Example:
        >>> number("SecondOrStepTimer", "every_secs", float("nan"))
        Traceback (most recent call last):
        ...
        ValueError: SecondOrStepTimer requires a number as every_secs, got nan.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{who} requires a number as {name}, got {value!r}.")
    real = float(value)
    if math.isnan(real):
        raise ValueError(f"{who} requires a number as {name}, got nan.")
    _check_least(who, name, real, at_least)
    return real


def instance(who: str, name: str, value: Any, kind: type) -> Any:
    """Returns an object of a class, or `None` if that was given.

    Raises:
        TypeError: It is something else.

    Example:
        >>> instance("MonitoredSession", "coordinator", 3, dict)
        Traceback (most recent call last):
        ...
        TypeError: MonitoredSession requires a dict (or None) as coordinator, got 3.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{who} requires a {kind.__name__} (or None) as {name}, got {value!r}.")
    return value


def _check_least(who: str, name: str, value: float, at_least: float | None) -> None:
    if at_least is not None and value < at_least:
        raise ValueError(f"{who} requires {name} >= {at_least}, got {value}.")
