"""Runs: the folders that the commands look into."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from hookline.errors import NotFoundError

T = TypeVar("T")

_LOOKS = 5
_OF_A_RUN = ("checkpoint", "graph.txt")


@contextlib.contextmanager
def examined() -> Iterator[None]:
    """Has JAX use the CPU alone, for a run may have the other devices, and lets the command alone say what is broken.

    Hookline logs it as well. TensorStore has Python print a stack trace for each read that ends after another one has
    failed, when nobody waits for it any more.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    logger = logging.getLogger("hookline")
    level, print_error = logger.level, sys.excepthook

    def print_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if str(error) != "Event loop is closed":
            print_error(kind, error, trace)

    logger.setLevel(logging.CRITICAL)
    sys.excepthook = print_others
    try:
        yield
    finally:
        logger.setLevel(level)
        sys.excepthook = print_error


def looked_again(look: Callable[[], T]) -> T:
    """Returns what `look` returns, and has it look again if a run has removed the checkpoint that it was looking at."""
    for _ in range(_LOOKS - 1):
        with contextlib.suppress(NotFoundError):
            return look()
    return look()


def folder(path: str) -> str:
    """Returns the path of a folder in its normal form.

    Raises:
        NotFoundError: There is none.
    """
    if not os.path.isdir(path):
        there = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise NotFoundError(None, None, f"'{path}' {there}.")
    return os.path.normpath(path)


def event_files(directory: str) -> dict[str, list[str]]:
    """Returns the event files in a folder and below it, sorted, by their folders; checkpoints are not searched.

    In TensorBoard, too, each of these folders is a run.
    """
    found: dict[str, list[str]] = {}
    for below, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not os.path.exists(os.path.join(below, name, "hookline.json")))
        if names := sorted(name for name in files if "tfevents" in name):
            found[below] = [os.path.join(below, name) for name in names]
    return found


def no_run(directory: str, lacks: str) -> NotFoundError:
    """Returns the error that says that a folder is no run; it names those below that may be meant."""
    entries = sorted(os.listdir(directory))
    below = [os.path.join(directory, name) for name in entries if is_run(os.path.join(directory, name))]
    message = f"'{directory}' {'is empty' if not entries else f'is not a run: {lacks}'}."
    if below:
        message += f" Did you mean {', '.join(below[:5])}{' ...' if below[5:] else ''}?"
    return NotFoundError(None, None, message)


def is_run(directory: str) -> bool:
    """Returns whether a folder has a file that a run writes."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return any(name in _OF_A_RUN or "tfevents" in name for name in names)
