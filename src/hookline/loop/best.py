"""The better of two values of a metric."""

from __future__ import annotations

from typing import Literal, NamedTuple

Mode = Literal["min", "max"]

# The last words of names that show the mode; other metrics need it as an argument.
_SMALLER = ("loss", "error", "mse", "mae", "rmse", "nll", "perplexity")
_LARGER = ("accuracy", "acc", "precision", "recall", "f1", "auc", "bleu")


class Best(NamedTuple):
    """The best value of a metric so far, and its global step."""

    value: float
    step: int


def known_mode(metric: str) -> Mode | None:
    """Returns whether smaller or larger values of a metric are better, if its name shows it.

    Example:
        >>> known_mode("loss"), known_mode("top/accuracy"), known_mode("score")
        ('min', 'max', None)
    """
    word = metric.replace("/", "_").rpartition("_")[2].lower()
    return "min" if word in _SMALLER else "max" if word in _LARGER else None


def mode_of(who: str, metric: str, mode: str | None) -> Mode:
    """Returns whether smaller or larger values of a metric are better.

    Raises:
        ValueError: `mode` is neither "min" nor "max"; or it is not given, and the name does not show it.
    """
    if mode is not None and mode not in ("min", "max"):
        raise ValueError(f"{who} requires 'min' or 'max' as mode, got {mode!r}.")
    found = mode or known_mode(metric)
    if found is None:
        raise ValueError(
            f"{who}: the name {metric!r} does not show whether small or large values are better: give mode='min' or "
            f"mode='max'."
        )
    return found  # type: ignore[return-value]


def is_better(mode: Mode, value: float, best: float | None, by: float = 0.0) -> bool:
    """Returns whether a value is better than the best so far by more than `by`; NaN never is."""
    if value != value:
        return False
    if best is None:
        return True
    return value < best - by if mode == "min" else value > best + by
