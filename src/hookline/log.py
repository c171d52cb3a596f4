"""Gives hookline its loggers, and escapes control characters in text: a logged name may come from any file."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any

# Control characters other than tab and newline, characters that change the text's direction, other line ends, and lone
# surrogates, which cannot be printed.
UNSAFE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_UNSAFE_IN_LINE = re.compile(f"{UNSAFE_CHARACTERS.pattern}|[\t\n]")


def escape_text(text: str) -> str:
    r"""Escapes the control characters in a text of one or more lines, so that a terminal does not act on them.

    Example:
        >>> print(escape_text("model\x1b[2J\nä"))
        model\x1b[2J
        ä
    """
    return UNSAFE_CHARACTERS.sub(_escape, text)


def escape_line(text: str) -> str:
    r"""Does the same as `escape_text`, and escapes tabs and newlines: the text stays one line.

    Example:
        >>> print(escape_line("model\n0 errors"))
        model\n0 errors
    """
    return _UNSAFE_IN_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def get_logger(name: str) -> logging.Logger:
    """Returns the logger of a module.

    Example:
        >>> get_logger("hookline.mine").name
        'hookline.mine'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)  # A logger adds the same filter once only.
    return logger


def is_shown(logger: logging.Logger, level: int, file: Any) -> bool:
    """Returns whether a handler writes a logger's records of a level to a file, such as `sys.stderr`.

    Example:
        >>> import sys
        >>> is_shown(get_logger("hookline.mine"), logging.INFO, sys.stderr)
        False
    """
    found: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while found is not None:
        for handler in found.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is file and handler.level <= level:
                return True
        found = found.parent if found.propagate else None
    return False


def _escape_record(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if UNSAFE_CHARACTERS.search(text):
        record.msg, record.args = escape_text(text), None
    if record.exc_info and record.exc_info[0] is not None:
        record.exc_text = escape_text("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True
