"""The stacks of threads: as text, and the line of the user's code in one."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

from hookline import clock, jax_internals

_STANDARD = f"{os.path.dirname(os.__file__)}{os.sep}"
_PACKAGES = tuple(f"{_STANDARD}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_WAITING = tuple(f"{folder}{os.sep}" for folder in (os.path.dirname(clock.__file__), *jax_internals.SOURCES))


def describe_line(innermost: FrameType) -> str:
    """Describes the innermost line of code of a thread outside of libraries."""
    frame = next((frame for owner, frame in _frames_by_owner(innermost) if owner == "user"), innermost)
    code = frame.f_code
    return f"at {os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_qualname}"


def is_in_own_code(innermost: FrameType) -> bool:
    """Returns whether code of the user, or a library that it has called, runs in a thread."""
    return next((owner for owner, _ in _frames_by_owner(innermost) if owner != "python"), "") == "user"


def stacks_of_all_threads() -> str:
    """Returns the stacks of all Python threads as text, the latest call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "not made by threading")
        parts.append(f"Thread {name} ({ident}):\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def _frames_by_owner(innermost: FrameType) -> Iterator[tuple[str, FrameType]]:
    """Yields the frames of a thread, and whose code each is: "hookline" and JAX, "python", or "user"."""
    frame: FrameType | None = innermost
    while frame is not None:
        file = frame.f_code.co_filename
        is_standard = file.startswith((_STANDARD, "<frozen ")) and not file.startswith(_PACKAGES)
        yield "hookline" if file.startswith(_WAITING) else "python" if is_standard else "user", frame
        frame = frame.f_back
