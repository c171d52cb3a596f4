"""TensorFlow's arguments that have no effect here: logged once, at INFO."""

from __future__ import annotations

import functools
from typing import Any

from hookline.extend import log

_logger = log.get_logger("hookline.tf1")


def ignored(who: str, **given: Any) -> None:
    """Logs for each given argument, once in a process, that it is taken without effect.

    Args:
        who: The function or class that takes them.
        **given: The arguments by name; those that are false, empty or None were not given.
    """
    for name, value in given.items():
        if value is not None and value is not False and not (isinstance(value, str) and value == ""):
            _say(who, name)


def unknown(who: str, given: dict[str, Any], *known: str) -> None:
    """Logs for each of some further arguments that it has no effect, and refuses others.

    Raises:
        TypeError: An argument is not among the known ones.
    """
    strange = given.keys() - set(known)
    if strange:
        raise TypeError(f"{who} got an unexpected keyword argument {sorted(strange)[0]!r}.")
    ignored(who, **given)


@functools.cache
def _say(who: str, name: str) -> None:
    _logger.info("%s: %s is taken, without effect.", who, name)


@functools.cache
def say_once(what: str, why: str = "JAX chooses the device and manages its memory") -> None:
    """Logs, once in a process, that something is taken without effect."""
    _logger.info("%s is taken, but has no effect: %s.", what, why)
