"""IPython, and notebooks, if this process runs in one. Nothing is imported for that."""

from __future__ import annotations

import sys
from typing import Any


def shell() -> Any | None:
    """Returns the shell of IPython that this process runs in, be it a notebook's or a terminal's; else None.

    Example:
        >>> shell() is None
        True
    """
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get is None else get()


def place(filename: str, line: int) -> str:
    """Returns how to name a line of code: by its file, or by its cell, which has none that one could open.

    Example:
        >>> place("train.py", 3)
        'train.py:3'
    """
    name_of = getattr(getattr(shell(), "compile", None), "format_code_name", None)
    cell = None if name_of is None else name_of(filename)
    return f"{filename}:{line}" if cell is None else f"{' '.join(cell)}, line {line}"
