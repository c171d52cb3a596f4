"""The line of the user's code that made an operation."""

from __future__ import annotations

import sys

from hookline import notebooks
from hookline.graph.front_end import FrontEnd


def user_location(front_end: FrontEnd) -> str:
    """Returns the line of the nearest caller, for messages about the operation made there.

    Lines of this package are left out, and those of the package of the graph's front end, unless that is a script.
    """
    packages = {module.partition(".")[0] for module in (__name__, type(front_end).__module__)} - {"__main__"}
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in packages:
        frame = frame.f_back
    return notebooks.place(frame.f_code.co_filename, frame.f_lineno)
