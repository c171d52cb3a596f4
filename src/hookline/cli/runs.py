"""Finds the folders that the commands read, and computes norms and differences of arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from hookline.errors import NotFoundError

T = TypeVar("T")

_MAX_RETRIES = 5
OF_A_RUN = frozenset({"checkpoint", "graph.txt"})
"""Files of a run beside its checkpoints and event files."""

_BLOCK = 2**17


@contextlib.contextmanager
def quiet_on_cpu() -> Iterator[None]:
    """Restricts JAX to the CPU, because a training may use the other devices, and silences the log.

    The commands report broken checkpoints themselves. If a read of TensorStore ends after another one has failed,
    Python prints a stack trace, possibly after the command has ended; so these are suppressed until the process ends.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    logger = logging.getLogger("hookline")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _FilteringHook):
        sys.unraisablehook = _FilteringHook(sys.unraisablehook)
    try:
        yield
    finally:
        logger.setLevel(level)


class _FilteringHook:
    """Passes errors on to `hook`, except errors of TensorStore's reads after their event loop has ended."""

    def __init__(self, hook: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._hook = hook

    def __call__(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._hook(unraisable)


def retry_if_removed(function: Callable[[], T]) -> T:
    """Returns the result of `function`, and retries it if the training removed the checkpoint in the meantime."""
    for _ in range(_MAX_RETRIES - 1):
        with contextlib.suppress(NotFoundError):
            return function()
    return function()


def run_directory(path: str) -> str:
    """Returns the path of a folder in its normal form.

    Raises:
        NotFoundError: The folder does not exist.
        ValueError: The path is empty.
    """
    path = normalize_path(path)
    if not os.path.isdir(path):
        there = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise NotFoundError.from_message(f"'{path}' {there}.{_neighbours(path)}")
    return path


def _neighbours(path: str) -> str:
    """Returns a sentence with the checkpoints that have the base name of a path; empty if there are none."""
    from hookline.checkpoint.directory import layout

    parent, base = os.path.split(layout.base_path(path))
    names = [name for name in layout.checkpoint_names(parent or os.curdir) if layout.base_path(name) == base != name]
    names.sort(key=lambda name: int(name.rpartition("-")[2]))
    return f" There are {', '.join(names)}." if names and base != os.path.basename(path) else ""


def normalize_path(path: str) -> str:
    """Returns a path in its normal form; raises `ValueError` for an empty one, as from an unset shell variable."""
    if not path:
        raise ValueError("a folder is required, got ''. The current one is '.'.")
    return os.path.normpath(path)


def event_files(directory: str) -> dict[str, list[str]]:
    """Returns the event files in a folder and below it, sorted, by folder; checkpoints are not searched.

    Each of these folders is a run, as in TensorBoard.
    """
    found: dict[str, list[str]] = {}
    for below, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not os.path.exists(os.path.join(below, name, "hookline.json")))
        if names := sorted(name for name in files if "tfevents" in name):
            found[below] = [os.path.join(below, name) for name in names]
    return found


def not_a_run_error(directory: str, lacks: str) -> NotFoundError:
    """Returns the error for a folder that is not a run; the message suggests runs below it."""
    from hookline.checkpoint.directory import layout

    entries = os.listdir(directory)
    inside = (os.path.join(directory, name) for name in sorted(layout.subdirectories(directory)))
    below = [path for path in inside if is_run(path)]
    message = f"'{directory}' {'is empty' if not entries else f'is not a run: {lacks}'}."
    if below:
        message += f" Did you mean {', '.join(below[:5])}{' ...' if below[5:] else ''}?"
    return NotFoundError.from_message(message)


def is_run(directory: str) -> bool:
    """Returns whether a folder has a file of a run: a state file, `graph.txt`, or an event file."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return any(name in OF_A_RUN or "tfevents" in name for name in names)


@dataclasses.dataclass(frozen=True)
class ArrayStats:
    """The L2 norm of an array, and its numbers of NaNs and infinities, which the norm includes."""

    norm: float
    nans: int
    infs: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two arrays of the same shape.

    Attributes:
        largest: The largest absolute difference of two elements; NaN if only one of them is NaN.
        relative: The norm of the difference over the norm of the first array; infinite if only the latter is 0.
        elements: The number of elements that differ.
        total: The number of elements.
    """

    largest: float
    relative: float
    elements: int
    total: int


def array_stats(array: np.ndarray) -> ArrayStats:
    """Computes the norm of an array, and counts NaNs and infinities.

    Example:
        >>> array_stats(np.array([3.0, 4.0]))
        ArrayStats(norm=5.0, nans=0, infs=0)
    """
    norm, nans, infs = 0.0, 0, 0
    for block in _blocks(array):
        wide = _as_wide_dtype(block)
        nans += int(np.isnan(wide).sum())
        infs += int(np.isinf(wide).sum())
        norm = _hypot(norm, float(np.linalg.norm(wide)))
    return ArrayStats(norm, nans, infs)


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Compares two arrays of the same shape. A NaN equals a NaN.

    Example:
        >>> difference(np.array([3.0, 4.0, 0.0]), np.array([3.0, 4.5, 0.0]))
        Difference(largest=0.5, relative=0.1, elements=1, total=3)
    """
    largest, norm, before, elements = 0.0, 0.0, 0.0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        for one, other in zip(_blocks(a), _blocks(b), strict=True):
            wide, far = _as_wide_dtype(one), _as_wide_dtype(other)
            alike = (one == other) if one.dtype == other.dtype else (wide == far)
            same = np.asarray(alike, bool) | (np.isnan(wide) & np.isnan(far))
            apart = np.abs(np.where(same, 0, far - wide))
            elements += int(same.size - same.sum())
            largest = float(np.maximum(largest, apart.max()))
            norm, before = _hypot(norm, float(np.linalg.norm(apart))), _hypot(before, float(np.linalg.norm(wide)))
    relative = 0.0 if not elements else norm / before if before else math.inf
    return Difference(largest, relative, elements, a.size)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _as_wide_dtype(block: np.ndarray) -> np.ndarray:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)


def _hypot(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else math.hypot(one, other)
