"""The code that asks for something, in words."""

from __future__ import annotations

import os
import sys

_ON_THE_WAY = ("hookline.monitored.", "hookline.coordination.", "hookline.hooks.base")


def caller() -> str:
    """Describes the hook, or the code of a user, that has called into the session, with its place."""
    frame = sys._getframe(1)
    while f"{frame.f_globals.get('__name__')}".startswith(_ON_THE_WAY) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_qualname}, {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
