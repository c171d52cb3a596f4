"""Faults: invalid arguments of operations that only the device can see, and a compiled program cannot refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

DETAILS = 4
"""The number of integers that describe a fault."""


class Fault(NamedTuple):
    """A condition of an operation's arguments under which a run is an error.

    The device checks it in each run that computes the operation, and keeps the first fault, as a latch does. The
    session raises the error when it reads its latches, at the latest in `Session.settle`. Nothing waits for it.

    Args:
        found: A function of the arguments, in the form of `Operation.bind`. It returns a vector of `int32`: 1 if the
            condition holds, else 0, and `DETAILS` integers that describe the fault.
        told: A function of these integers. It returns the text of the error.
    """

    found: Callable[[Any], Any]
    told: Callable[..., str]
