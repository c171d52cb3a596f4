"""Work in which something comes before one of its instructions."""

from __future__ import annotations

import sys
from collections.abc import Callable


def come_before(instruction: int, is_counted: Callable[[str], bool], come: Callable[[], None], work: Callable) -> bool:
    """Does the work, and calls `come` before the given one of the instructions in files that count.

    Returns whether the work had that many.
    """
    left = instruction

    def trace(frame, event, arg):
        nonlocal left
        if not is_counted(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                come()
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 checks when tracing is enabled whether a frame needs it.
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return left <= 0
