"""Which lines of a package run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def reached(folder: str) -> Iterator[dict[str, set[int]]]:
    """Gives the lines that run inside the block, in all threads, by file below the folder."""
    lines: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        seen = lines.setdefault(frame.f_code.co_filename.removeprefix(folder).lstrip("/"), set())

        def each_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return each_line

        return each_line

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
