"""Checks of users' arguments at the place where they are given; messages say who requires what, and what was given."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any


def whole(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number.

    Args:
        who: The class or function that was called.
        name: The name of the argument.
        value: The value given.
        at_least: The smallest allowed value.

    Raises:
        TypeError: It is not a whole number, but text, a flag or a fraction.
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
    """Returns a finite number, or infinity; the arguments are those of `whole`.

    Raises:
        TypeError: It is not a number.
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
    """Returns an object of a class, or `None` if `None` was given.

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
