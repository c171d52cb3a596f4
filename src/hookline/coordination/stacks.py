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
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_WAITING = tuple(f"{folder}{os.sep}" for folder in (os.path.dirname(clock.__file__), *jax_internals.SOURCES))


def describe_line(innermost: FrameType) -> str:
    """Describes the innermost line of code of a thread outside of libraries."""
    frames = list(_frames_by_owner(innermost))
    found = [frame for wanted in ("user", "package") for owner, frame in frames if owner == wanted]
    return f"at {_line(next(iter(found), innermost))}"


def is_in_own_code(innermost: FrameType) -> bool:
    """Returns whether code of the user, or a library that it has called, runs in a thread."""
    return next((owner for owner, _ in _frames_by_owner(innermost) if owner != "python"), "") in ("user", "package")


def stacks_of_all_threads(first: int) -> str:
    """Returns the stacks of all Python threads as text, the latest call last.

    Threads that run only code of hookline and JAX, or only that of another library, have one line each, at the end.

    Args:
        first: The thread whose stack comes first.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    whole, short = [], []
    for ident in sorted(frames, key=lambda ident: ident != first):
        name = f"Thread {names.get(ident, 'not made by threading')}"
        by_owner = [(owner, frame) for owner, frame in _frames_by_owner(frames[ident]) if owner != "python"]
        if ident == first or len({owner for owner, _ in by_owner}) > 1 or "user" in dict(by_owner):
            whole.append(f"{name} ({ident}):\n{''.join(traceback.format_stack(frames[ident]))}")
        else:
            short.append(f"{name}: {_line(next((frame for _, frame in by_owner), frames[ident]))}")
    return "\n".join([*whole, *short])


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_qualname}"


def _frames_by_owner(innermost: FrameType) -> Iterator[tuple[str, FrameType]]:
    """Yields the frames of a thread, and whose code each is: "hookline" and JAX, "python", a "package", or "user"."""
    frame: FrameType | None = innermost
    while frame is not None:
        yield _owner(frame.f_code.co_filename), frame
        frame = frame.f_back


def _owner(file: str) -> str:
    if file.startswith(_WAITING):
        return "hookline"
    if any(folder in file for folder in _PACKAGES):
        return "package"
    return "python" if file.startswith((_STANDARD, "<frozen ")) else "user"
