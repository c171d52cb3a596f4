"""How far the host runs ahead of the device."""

from __future__ import annotations

import jax


class RunAhead:
    """Makes the host wait where it is too many runs ahead of the device.

    Looking at each run would cost more than a short step. So it marks a run each half of the bound, and lets the host
    go past a mark only when the device has passed the one before. The host then starts half of the bound in a row: that
    takes much less of the processor than to be woken for each run, as by JAX's own bound of 32 computations.

    Args:
        max_runs: The bound.

    Attributes:
        left: After how many runs the next one is to be marked. The session counts.
    """

    __slots__ = ("_every", "_mark", "left")

    def __init__(self, max_runs: int) -> None:
        self._every = self.left = max_runs // 2
        self._mark: jax.Array | None = None

    def mark(self, token: jax.Array | None) -> None:
        """Marks a run, and waits for the one that was marked before.

        Args:
            token: An array that is there once the run is computed, and that no later run takes; None if there is none.
        """
        self.left = self._every
        mark, self._mark = self._mark, token
        if mark is not None and not mark.is_deleted():
            mark.block_until_ready()

    def forget(self) -> None:
        """Lets go of the run that is marked."""
        self._mark = None
