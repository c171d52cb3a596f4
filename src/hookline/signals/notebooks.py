"""IPython's shell, in a notebook or a terminal, found without importing IPython."""

from __future__ import annotations

import sys
from typing import Any


def ipython_shell() -> Any | None:
    """Returns the IPython shell of this process, in a notebook or a terminal; None without one.

    Example:
        >>> ipython_shell() is None
        True
    """
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get is None else get()


def describe_location(filename: str, line: int) -> str:
    """Describes a line of code by its file, or by its cell in a notebook.

    Example:
        >>> describe_location("train.py", 3)
        'train.py:3'
    """
    name_of = getattr(getattr(ipython_shell(), "compile", None), "format_code_name", None)
    cell = None if name_of is None else name_of(filename)
    return f"{filename}:{line}" if cell is None else f"{' '.join(cell)}, line {line}"
