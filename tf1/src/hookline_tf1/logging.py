"""`tf.logging`: messages of hookline, its hooks and the script, with one level."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from logging import DEBUG, ERROR, FATAL, INFO, WARN
from typing import Any

from hookline_tf1._machinery.namespaces import offered

__all__ = [
    "DEBUG",
    "ERROR",
    "FATAL",
    "INFO",
    "WARN",
    "debug",
    "error",
    "fatal",
    "flush",
    "get_verbosity",
    "info",
    "log",
    "log_every_n",
    "log_first_n",
    "log_if",
    "set_verbosity",
    "vlog",
    "warn",
    "warning",
]

_logger = logging.getLogger("hookline")
_calls: Counter[tuple[str, int]] = Counter()


def get_logger() -> logging.Logger:
    """Returns hookline's logger, which writes to standard error unless the program adds a handler.

    References:
        `tf.get_logger`, with the logger `tensorflow`.
    """
    if not _logger.handlers and not logging.root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        handler.addFilter(lambda record: not logging.root.handlers)
        _logger.addHandler(handler)
    return _logger


def set_verbosity(v: int | str) -> None:
    """Sets the lowest level to log: `INFO`, `WARN`, ...; hooks log their values at `INFO`."""
    get_logger().setLevel(v)


def get_verbosity() -> int:
    """Returns the lowest level to log."""
    return get_logger().getEffectiveLevel()


def log(level: int, msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at a level."""
    _log(level, msg, *args, **kwargs)


def debug(msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at the level `DEBUG`."""
    _log(DEBUG, msg, *args, **kwargs)


def info(msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at the level `INFO`."""
    _log(INFO, msg, *args, **kwargs)


def warning(msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at the level `WARN`."""
    _log(WARN, msg, *args, **kwargs)


warn = warning


def error(msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at the level `ERROR`."""
    _log(ERROR, msg, *args, **kwargs)


def fatal(msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at the level `FATAL`; the program continues."""
    _log(FATAL, msg, *args, **kwargs)


def vlog(level: int, msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message at a level."""
    _log(level, msg, *args, **kwargs)


def log_if(level: int, msg: str, condition: Any, *args: Any) -> None:
    """Logs a message if a condition holds."""
    if condition:
        _log(level, msg, *args)


def log_every_n(level: int, msg: str, n: int, *args: Any) -> None:
    """Logs the first and then every n-th message of a line of code."""
    if (_count_of_caller() - 1) % n == 0:
        _log(level, msg, *args)


def log_first_n(level: int, msg: str, n: int, *args: Any) -> None:
    """Logs the first n messages of a line of code."""
    if _count_of_caller() <= n:
        _log(level, msg, *args)


def flush() -> None:
    """Flushes the handlers."""
    for handler in get_logger().handlers:
        handler.flush()


def _log(level: int, msg: str, *args: Any, **kwargs: Any) -> None:
    """Logs a message with the location of the caller's caller."""
    get_logger().log(level, msg, *args, **{"stacklevel": 3, **kwargs})


def _count_of_caller() -> int:
    """Counts the calls from the line of code that called the calling function."""
    frame = sys._getframe(2)
    location = frame.f_code.co_filename, frame.f_lineno
    _calls[location] += 1
    return _calls[location]


__getattr__, __dir__ = offered("tf.logging", lambda: __all__)
