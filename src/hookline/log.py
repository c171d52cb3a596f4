"""Loggers of hookline: what a name in a log line could do to a terminal is escaped."""

from __future__ import annotations

import logging
import traceback

from hookline.escapes import HAZARD, escaped


def of(name: str) -> logging.Logger:
    """Returns the logger of a module.

    Example:
        >>> of("hookline.mine").name
        'hookline.mine'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape)  # Once: a logger does not take the same one twice.
    return logger


def _escape(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    if HAZARD.search(text):
        record.msg, record.args = escaped(text), None
    if record.exc_info and record.exc_info[0] is not None:
        record.exc_text = escaped("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True
