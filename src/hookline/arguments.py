"""Checks arguments when they are given; messages name the caller, the requirement and the given value."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any


def whole(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number.

    Args:
        who: The class or function that was called.
        name: The name of the argument.
        value: The value given.
        at_least: The smallest allowed value.

    Raises:
        TypeError: It is not a whole number, or is a bool.
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


def steps(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number of steps, which may be given as a float. The arguments and errors are as in `whole`.

    Example:
        >>> steps("StopAtStepHook", "last_step", 5e5)
        500000
        >>> steps("StopAtStepHook", "last_step", 2.5)
        Traceback (most recent call last):
        ...
        TypeError: StopAtStepHook requires a whole number as last_step, got 2.5.
    """
    real = float(value) if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) else math.nan
    return whole(who, name, int(real) if real.is_integer() else value, at_least)


def number(who: str, name: str, value: Any, at_least: float | None = None) -> float:
    """Returns a finite number, or infinity. The arguments are as in `whole`.

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
        TypeError: It has another type.

    Example:
        >>> instance("MonitoredSession", "coordinator", 3, dict)
        Traceback (most recent call last):
        ...
        TypeError: MonitoredSession requires a dict (or None) as coordinator, got 3.
    """
    return _checked(isinstance(value, kind), who, f"a {kind.__name__}", name, value, optional=True)


def path(who: str, name: str, value: Any, *, optional: bool = False) -> Any:
    """Returns a path as text. The arguments are as in `whole`; `optional` allows None.

    Raises:
        TypeError: It is neither text nor an `os.PathLike` of text.

    Example:
        >>> path("CheckpointSaverHook", "checkpoint_dir", 5)
        Traceback (most recent call last):
        ...
        TypeError: CheckpointSaverHook requires a path as checkpoint_dir, got 5.
    """
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    return _checked(isinstance(found, str), who, "a path", name, found, optional)


def text(who: str, name: str, value: Any, *, optional: bool = False) -> Any:
    """Returns text. The arguments are as in `path`.

    Raises:
        TypeError: It is not text.
    """
    return _checked(isinstance(value, str), who, "text", name, value, optional)


def function(who: str, name: str, value: Any, *, optional: bool = False) -> Any:
    """Returns a function or another callable. The arguments are as in `path`.

    Raises:
        TypeError: It cannot be called.

    Example:
        >>> function("FeedFnHook", "feed_fn", None)
        Traceback (most recent call last):
        ...
        TypeError: FeedFnHook requires a function as feed_fn, got None.
    """
    return _checked(callable(value), who, "a function", name, value, optional)


def several(who: str, name: str, value: Any, *, optional: bool = False) -> list[Any]:
    """Returns the items of a list or another iterable; for None, if `optional`, an empty list.

    Raises:
        TypeError: It is not iterable, or it is text.

    Example:
        >>> several("Saver", "var_list", 5)
        Traceback (most recent call last):
        ...
        TypeError: Saver requires a list as var_list, got 5.
    """
    if optional and value is None:
        return []
    is_several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    return list(_checked(is_several, who, "a list", name, value, optional))


def mapping(who: str, name: str, value: Any, *, optional: bool = False) -> Any:
    """Returns a dict, or another mapping. The arguments are as in `path`.

    Raises:
        TypeError: It is not a mapping.
    """
    return _checked(isinstance(value, Mapping), who, "a dict", name, value, optional)


def having(who: str, name: str, value: Any, kind: str, attribute: str, *, optional: bool = False) -> Any:
    """Returns an object with an attribute, such as an object of a class or a stand-in for one.

    Args:
        who: As in `whole`.
        name: As in `whole`.
        value: As in `whole`.
        kind: The requirement, for the message.
        attribute: The name of the required attribute.
        optional: Whether None is allowed.

    Raises:
        TypeError: It lacks that attribute.

    Example:
        >>> having("Saver.save", "sess", None, "a session", "run")
        Traceback (most recent call last):
        ...
        TypeError: Saver.save requires a session as sess, got None.
    """
    return _checked(hasattr(value, attribute), who, kind, name, value, optional)


def _checked(is_right: bool, who: str, what: str, name: str, value: Any, optional: bool) -> Any:
    if not (is_right or (optional and value is None)):
        raise TypeError(f"{who} requires {what}{' (or None)' if optional else ''} as {name}, got {value!r}.")
    return value


def _check_least(who: str, name: str, value: float, at_least: float | None) -> None:
    if at_least is not None and value < at_least:
        raise ValueError(f"{who} requires {name} >= {at_least}, got {value}.")
