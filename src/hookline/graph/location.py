"""The line of the user's code that made an operation."""

from __future__ import annotations

import sys

from hookline import notebooks


def user_location(hidden_modules: tuple[str, ...] = ()) -> str:
    """Returns the line of the nearest caller, for messages about the operation made there.

    Args:
        hidden_modules: Modules and packages whose lines are passed over, as those of this package are.
    """
    hidden = tuple(f"{name}." for name in (__name__.partition(".")[0], *hidden_modules))
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(hidden):
        frame = frame.f_back
    return notebooks.place(frame.f_code.co_filename, frame.f_lineno)
