"""How far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Callable

import jax


class RunAhead:
    """Makes the host wait where it is too many runs ahead of the device.

    Looking at each run would cost more than a short step. So it marks a run each half of the bound, and lets the host
    go past a mark only when the device has passed the one before.

    Args:
        max_runs: The bound.
    """

    __slots__ = ("_every", "_mark", "_runs")

    def __init__(self, max_runs: int) -> None:
        self._every = max_runs // 2
        self._runs = 0
        self._mark: jax.Array | None = None

    def ran(self, token: Callable[[], jax.Array | None]) -> None:
        """Counts a run.

        Args:
            token: Gives an array that is there once the run is computed, and that no later run takes; None if there is
                none.
        """
        self._runs += 1
        if self._runs >= self._every:
            self._runs = 0
            mark, self._mark = self._mark, token()
            if mark is not None and not mark.is_deleted():
                mark.block_until_ready()
