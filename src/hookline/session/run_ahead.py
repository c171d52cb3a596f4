"""How far the host runs ahead of the device."""

from __future__ import annotations

from typing import Any

import jax

# About as long as copying a number takes: to sleep and be woken would take the host several times as long.
_POLLS = 10


class RunAhead:
    """Makes the host wait where it is too many runs ahead of the device.

    Looking at each run would cost more than a short step. So a look marks a run each half of the bound, and lets the
    host go on only when the device has passed the mark before. The host then starts half of the bound in a row: that
    takes much less of the processor than to be woken for each run, as by JAX's own bound of 32 computations. Where the
    device has computed everything there is nothing to mark, and the next look is after three quarters of the bound.

    Args:
        max_runs: The bound.

    Attributes:
        left: How many runs there may be until the next look. The session counts.
        latest: The execution of the latest run that `Repeat` has made: it leaves the look to the run after it.
    """

    __slots__ = ("_long", "_mark", "_rest", "_short", "latest", "left")

    def __init__(self, max_runs: int) -> None:
        self._short = self.left = max_runs // 2
        self._long = max_runs * 3 // 4
        self._rest = max_runs - self._long
        self._mark: Any = None
        self.latest: Any = None

    def is_there(self, array: Any) -> bool:
        """Whether an array of the latest run is computed. Where the device has kept up so far, it is given a moment."""
        if _is_there(array):
            return True
        if hasattr(array, "is_ready") and (self._mark is None or _is_there(self._mark)):
            for _ in range(_POLLS):
                if array.is_ready():
                    return True
        return False

    def mark(self, token: jax.Array | None) -> None:
        """Marks a run, and waits for the one that was marked before.

        Args:
            token: An array that is there once the run is computed, and that no later run takes; None if all is there.
        """
        mark, self._mark = self._mark, token
        if token is None:
            self.left = self._long
        elif mark is None:  # It may be `_long` runs since all was there.
            self.left = self._rest
        else:
            self.left = self._short
            if not mark.is_deleted():
                mark.block_until_ready()

    def forget(self) -> None:
        """Lets go of the run that is marked."""
        self._mark = self.latest = None


def _is_there(array: Any) -> bool:
    """Whether an array is computed, or was deleted; False for a random key, which does not say."""
    # JAX crashes where it is asked whether a deleted array is ready.
    return array.is_deleted() or (hasattr(array, "is_ready") and array.is_ready())
