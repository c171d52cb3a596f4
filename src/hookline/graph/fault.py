"""Faults: what an operation must not be given, and a compiled program cannot refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

DETAILS = 4
"""How many integers tell of a fault."""


class Fault(NamedTuple):
    """A condition of an operation's arguments under which a run is an error.

    The device looks in each run that computes the operation. It keeps what it finds first, as it does for a latch, and
    the session raises that when it looks at its latches: `Session.settle` at the latest. Nothing waits for it.

    Args:
        found: Returns for the arguments, in the form of `Operation.bind`, a vector of `int32`: 1 or 0, for whether the
            condition holds, and `DETAILS` integers that tell of it.
        told: Returns for these what the error is to say.
    """

    found: Callable[[Any], Any]
    told: Callable[..., str]
