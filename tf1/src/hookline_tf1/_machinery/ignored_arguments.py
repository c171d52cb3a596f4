"""Logs, once and at INFO, TensorFlow's arguments that have no effect here."""

from __future__ import annotations

import functools
from typing import Any

from hookline.extend import log

_logger = log.get_logger("hookline.tf1")


def ignored(who: str, **given: Any) -> None:
    """Logs once in a process, for each given argument, that it has no effect.

    Args:
        who: The function or class with these arguments.
        **given: The arguments by name; false, empty or None means not given.
    """
    for name, value in given.items():
        if value is not None and value is not False and not (isinstance(value, str) and value == ""):
            _log(who, name)


def unknown(who: str, given: dict[str, Any], *known: str) -> None:
    """Logs that each known argument has no effect, and refuses others.

    Raises:
        TypeError: An argument is unknown.
    """
    strange = given.keys() - set(known)
    if strange:
        raise TypeError(f"{who} got an unexpected keyword argument {sorted(strange)[0]!r}.")
    ignored(who, **given)


@functools.cache
def _log(who: str, name: str) -> None:
    _logger.info("%s: %s has no effect.", who, name)


@functools.cache
def log_once(what: str, why: str = "JAX chooses the device and manages its memory") -> None:
    """Logs, once in a process, that a function or option has no effect."""
    _logger.info("%s has no effect: %s.", what, why)
