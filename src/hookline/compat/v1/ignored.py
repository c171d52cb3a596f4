"""Arguments that TensorFlow has and that have no effect here: said once, at INFO."""

from __future__ import annotations

import functools
import logging
from typing import Any

_logger = logging.getLogger(__name__)


def ignored(who: str, **given: Any) -> None:
    """Says of each argument that was given, once in a process, that it is taken without effect.

    Args:
        who: The function or class that takes them.
        **given: The arguments by name; those that are false or None were not given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            _say(who, name)


@functools.cache
def _say(who: str, name: str) -> None:
    _logger.info("%s: %s is taken, without effect.", who, name)
