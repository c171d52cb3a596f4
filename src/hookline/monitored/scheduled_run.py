"""ScheduledRun: the decision on the run that is next or under way."""

from __future__ import annotations


class ScheduledRun:
    """The decision on the run that is next or under way; a schedule has one, and changes it before each run.

    Args:
        number: The number of runs made before.
        capacity: The largest number of steps of a run.
        reach: The global step.
        in_full_runs: Whether firings that are late by some runs are delivered at the end of a full run.

    Attributes:
        in_full_runs: As above.
        number: The number of the run, from 1 on; of several steps, that of the last one.
        attempt: The number of the attempt at a run, from 1 on.
        gain: The increase of the global step in one of its steps; None if only the device knows it.
        reach: The expected global step after the run; in a graph without one, the number of the run.
        step: The global step after the run; None if it is not known.
        firing: The hooks that fire, as bits.
        repeats: Whether it may hold several steps.
        room: The number of steps that it may hold.
        begins_at: The global step before it; None if it is not known.
        is_called: Whether a hook that sees single steps is called on it.
    """

    def __init__(self, number: int, capacity: int, reach: int, *, in_full_runs: bool) -> None:
        self._capacity, self.in_full_runs = capacity, in_full_runs
        self.number, self.attempt, self.reach = number, 0, reach
        self.gain: int | None = None
        self.step: int | None = None
        self.firing = 0
        self.repeats, self.room, self.is_called = False, 1, False
        self.begins_at: int | None = None

    def steps_left(self, number: int) -> int:
        """Returns the number of steps to the end of a full run, counted from the step with this number."""
        return self._capacity - (number - 1) % self._capacity

    def delay(self, late: int, *, stacked: bool) -> int:
        """Returns the delay in runs of a firing that is `late` runs late; it may end with a full run.

        Args:
            late: The least delay in runs.
            stacked: Whether its hook takes rows. These may come before the end of a full run, if something else has
                ended the run.
        """
        if not self.in_full_runs or not self.gain:
            return late
        number = self.reach // self.gain
        here = self.steps_left(number) - 1 if stacked else 0
        after = here + late
        return after + self.steps_left(number + after) - 1
