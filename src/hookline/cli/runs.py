"""Runs: the folders that the commands read."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

from hookline.errors import NotFoundError

T = TypeVar("T")

_LOOKS = 5
_OF_A_RUN = ("checkpoint", "graph.txt")


@contextlib.contextmanager
def examined() -> Iterator[None]:
    """Restricts JAX to the CPU, because a run may use the other devices, and silences the log.

    The command reports broken checkpoints itself. For each read that ends after another one has failed, TensorStore has
    Python print a stack trace, possibly after the command, so these are left out until the process ends.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    logger = logging.getLogger("hookline")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _OfOthers):
        sys.unraisablehook = _OfOthers(sys.unraisablehook)
    try:
        yield
    finally:
        logger.setLevel(level)


class _OfOthers:
    """Passes errors on to `hook`, except those of TensorStore's reads whose event loop has ended."""

    def __init__(self, hook: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._hook = hook

    def __call__(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._hook(unraisable)


def looked_again(look: Callable[[], T]) -> T:
    """Returns the result of `look`, and repeats it if the training has removed the checkpoint meanwhile."""
    for _ in range(_LOOKS - 1):
        with contextlib.suppress(NotFoundError):
            return look()
    return look()


def folder(path: str) -> str:
    """Returns the path of a folder in its normal form.

    Raises:
        NotFoundError: The folder does not exist.
        ValueError: The path is empty text.
    """
    path = normal(path)
    if not os.path.isdir(path):
        there = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise NotFoundError.from_message(f"'{path}' {there}.{_neighbours(path)}")
    return path


def _neighbours(path: str) -> str:
    """Returns a sentence with the checkpoints beside a path with such a name; empty if there are none."""
    from hookline.checkpoint import layout

    parent, base = os.path.split(layout.base_of(path))
    names = [name for name in layout.names(parent or os.curdir) if layout.base_of(name) == base != name]
    names.sort(key=lambda name: int(name.rpartition("-")[2]))
    return f" There are {', '.join(names)}." if names and base != os.path.basename(path) else ""


def normal(path: str) -> str:
    """Returns a path in its normal form; raises `ValueError` for empty text, as of an unset shell variable."""
    if not path:
        raise ValueError("a folder is required, got ''. The current one is '.'.")
    return os.path.normpath(path)


def event_files(directory: str) -> dict[str, list[str]]:
    """Returns the event files in a folder and below it, sorted, by folder; checkpoints are not searched.

    In TensorBoard, too, each of these folders is a run.
    """
    found: dict[str, list[str]] = {}
    for below, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not os.path.exists(os.path.join(below, name, "hookline.json")))
        if names := sorted(name for name in files if "tfevents" in name):
            found[below] = [os.path.join(below, name) for name in names]
    return found


def no_run(directory: str, lacks: str) -> NotFoundError:
    """Returns the error for a folder that is no run, with suggestions from below it."""
    from hookline.checkpoint import layout

    entries = os.listdir(directory)
    inside = (os.path.join(directory, name) for name in sorted(layout.folders(directory)))
    below = [path for path in inside if is_run(path)]
    message = f"'{directory}' {'is empty' if not entries else f'is not a run: {lacks}'}."
    if below:
        message += f" Did you mean {', '.join(below[:5])}{' ...' if below[5:] else ''}?"
    return NotFoundError.from_message(message)


def is_run(directory: str) -> bool:
    """Returns whether a folder has a file of a run."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return any(name in _OF_A_RUN or "tfevents" in name for name in names)
