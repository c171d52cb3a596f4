"""Checks: arguments of operations that only the device can refuse, and a compiled program does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Check(NamedTuple):
    """A condition of an operation's arguments under which a run is an error.

    The device checks it in each run that computes the operation, and keeps the first failure, as a latch does. The
    session raises the error when it reads its latches, at the latest in `Session.settle`. Nothing waits for it.

    Args:
        failed: A function of the arguments, in the form of `Operation.bind`. It returns a vector of `int32`: 1 if the
            check fails, else 0, and `DETAILS` integers that describe the failure.
        message: A function of these integers. It returns the text of the error.
    """

    failed: Callable[[Any], Any]
    message: Callable[..., str]

    DETAILS = 4
    """The number of integers that describe a failure."""
