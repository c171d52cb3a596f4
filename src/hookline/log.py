"""Loggers of hookline, and text shown so that no terminal acts on it: a name may come from anywhere."""

from __future__ import annotations

import logging
import re
import traceback

# Control characters but tab and newline, those that turn the direction of text, other line ends, and lone surrogates,
# which cannot be printed.
HAZARD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_IN_A_LINE = re.compile(f"{HAZARD.pattern}|[\t\n]")


def escaped(text: str) -> str:
    r"""Returns a text of one or more lines with what a terminal would act on as escapes.

    Example:
        >>> print(escaped("model\x1b[2J\nä"))
        model\x1b[2J
        ä
    """
    return HAZARD.sub(_escape, text)


def in_a_line(text: str) -> str:
    r"""Returns the same of a text that has to stay in its line.

    Example:
        >>> print(in_a_line("model\n0 errors"))
        model\n0 errors
    """
    return _IN_A_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def of(name: str) -> logging.Logger:
    """Returns the logger of a module.

    Example:
        >>> of("hookline.mine").name
        'hookline.mine'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)  # Once: a logger does not take the same one twice.
    return logger


def _escape_record(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if HAZARD.search(text):
        record.msg, record.args = escaped(text), None
    if record.exc_info and record.exc_info[0] is not None:
        record.exc_text = escaped("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True
