"""The line of the user's code that made an operation."""

from __future__ import annotations

import sys

from hookline import notebooks


def user_location() -> str:
    """Returns the line of the nearest caller outside this package, for messages about the operation made there."""
    package = __name__.partition(".")[0]
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return notebooks.place(frame.f_code.co_filename, frame.f_lineno)
