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
    """Checks that an argument is an integer, and returns it as an `int`.

    Args:
        who: The class or function that was called, for the message.
        name: The name of the argument.
        value: The given value.
        at_least: The smallest allowed value.

    Raises:
        TypeError: The value is not an integer, or is a bool.
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


def check_count(who: str, name: str, value: Any, at_least: int | None = None) -> int:
    """Does the same as `check_int` for a count that may be given as a float: `5e5` steps, a batch of `32.0`.

    Example:
        >>> check_count("StopAtStepHook", "last_step", 5e5)
        500000
        >>> check_count("StopAtStepHook", "last_step", 2.5)
        Traceback (most recent call last):
        ...
        TypeError: StopAtStepHook requires a whole number as last_step, got 2.5.
    """
    real = float(value) if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) else math.nan
    return check_int(who, name, int(real) if real.is_integer() else value, at_least)


def check_number(who: str, name: str, value: Any, at_least: float | None = None) -> float:
    """Checks that an argument is a number or infinity, and returns it as a float. The arguments are as in `check_int`.

    Raises:
        TypeError: The value is not a number.
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
    """Checks that an argument is an instance of a class, or None, and returns it.

    Args:
        who: As in `check_int`.
        name: As in `check_int`.
        value: As in `check_int`.
        kind: The class.
        what: The requirement, for the message; by default the name of the class.
        optional: Whether None is allowed.

    Raises:
        TypeError: The value has another type.

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
    """Checks that an argument is a path, and returns it as a string. The arguments are as in `check_optional`.

    Raises:
        TypeError: The value is neither a string nor an `os.PathLike` of one.

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
    """Returns the items of a list or another iterable as a list; an empty one for None, if `optional`.

    Raises:
        TypeError: The value is not iterable, or is a string.

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
    """Checks that an argument has an attribute, and returns it; a fake of the required class passes, too.

    Args:
        who: As in `check_int`.
        name: As in `check_int`.
        value: As in `check_int`.
        kind: The requirement, for the message.
        attribute: The name of the required attribute.
        optional: Whether None is allowed.

    Raises:
        TypeError: The value lacks that attribute.

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
