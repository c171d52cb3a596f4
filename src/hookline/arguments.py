"""Checks arguments when they are given; messages name the caller, the requirement and the given value."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def check_int(who: str, name: str, value: Any, at_least: int | None = None) -> int:
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
        >>> check_int("StopAtStepHook", "last_step", "10")
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
    if at_least is not None and number < at_least:
        raise ValueError(f"{who} requires {name} >= {at_least}, got {number}.")
    return number


def check_steps(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Returns a whole number of steps, which may be given as a float. The arguments and errors are as in `whole`.

    Example:
        >>> check_steps("StopAtStepHook", "last_step", 5e5)
        500000
        >>> check_steps("StopAtStepHook", "last_step", 2.5)
        Traceback (most recent call last):
        ...
        TypeError: StopAtStepHook requires a whole number as last_step, got 2.5.
    """
    real = float(value) if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) else math.nan
    return check_int(who, name, int(real) if real.is_integer() else value, at_least)


def check_number(who: str, name: str, value: Any, at_least: float | None = None) -> float:
    """Returns a finite number, or infinity. The arguments are as in `whole`.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN, or too small.

    Example:
        >>> check_number("SecondOrStepTimer", "every_secs", float("nan"))
        Traceback (most recent call last):
        ...
        ValueError: SecondOrStepTimer requires a number as every_secs, got nan.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{who} requires a number as {name}, got {value!r}.")
    real = float(value)
    if math.isnan(real):
        raise ValueError(f"{who} requires a number as {name}, got nan.")
    if at_least is not None and real < at_least:
        raise ValueError(f"{who} requires {name} >= {at_least}, got {real}.")
    return real


def check_optional(who: str, name: str, value: Any, kind: Any, *, what: str = "", optional: bool = True) -> Any:
    """Returns an object of a class.

    Args:
        who: As in `whole`.
        name: As in `whole`.
        value: As in `whole`.
        kind: The class.
        what: The requirement, for the message; by default the name of the class.
        optional: Whether None is allowed.

    Raises:
        TypeError: It has another type.

    Example:
        >>> check_optional("MonitoredSession", "coordinator", 3, dict)
        Traceback (most recent call last):
        ...
        TypeError: MonitoredSession requires a dict (or None) as coordinator, got 3.
        >>> check_callable("FeedFnHook", "feed_fn", None)
        Traceback (most recent call last):
        ...
        TypeError: FeedFnHook requires a function as feed_fn, got None.
    """
    if isinstance(value, kind) or (optional and value is None):
        return value
    raise _refused(who, what or f"a {kind.__name__}", name, value, optional)


# As `check_optional`, but None is allowed only with `optional=True`.
check_str = functools.partial(check_optional, kind=str, what="text", optional=False)
check_callable = functools.partial(check_optional, kind=Callable, what="a function", optional=False)
check_mapping = functools.partial(check_optional, kind=Mapping, what="a dict", optional=False)


def check_path(who: str, name: str, value: Any, *, optional: bool = False) -> Any:
    """Returns a path as text. The arguments are as in `check_optional`.

    Raises:
        TypeError: It is neither text nor an `os.PathLike` of text.

    Example:
        >>> check_path("CheckpointSaverHook", "checkpoint_dir", 5)
        Traceback (most recent call last):
        ...
        TypeError: CheckpointSaverHook requires a path as checkpoint_dir, got 5.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return check_optional(who, name, value, str, what="a path", optional=optional)


def check_list(who: str, name: str, value: Any, *, optional: bool = False) -> list[Any]:
    """Returns the items of a list or another iterable; for None, if `optional`, an empty list.

    Raises:
        TypeError: It is not iterable, or it is text.

    Example:
        >>> check_list("Saver", "var_list", 5)
        Traceback (most recent call last):
        ...
        TypeError: Saver requires a list as var_list, got 5.
    """
    if optional and value is None:
        return []
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise _refused(who, "a list", name, value, optional)
    return list(value)


def check_has(who: str, name: str, value: Any, kind: str, attribute: str, *, optional: bool = False) -> Any:
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
        >>> check_has("Saver.save", "sess", None, "a session", "run")
        Traceback (most recent call last):
        ...
        TypeError: Saver.save requires a session as sess, got None.
    """
    if hasattr(value, attribute) or (optional and value is None):
        return value
    raise _refused(who, kind, name, value, optional)


def _refused(who: str, what: str, name: str, value: Any, optional: bool) -> TypeError:
    return TypeError(f"{who} requires {what}{' (or None)' if optional else ''} as {name}, got {value!r}.")
