"""Timers: TensorFlow's triggers in steps or seconds, and the trigger that a hook's arguments define."""

from __future__ import annotations

import collections
import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

from hookline import arguments, clock
from hookline.hooks.epochs import EPOCH, Epoch, EpochEnds
from hookline.hooks.trigger import NEVER, Trigger

_MAX_REMEMBERED_FIRINGS = 1000


class SecondOrStepTimer(Trigger):
    """Fires the first time it is asked, then every `every_secs` seconds or `every_steps` steps after it last fired.

    Args:
        every_secs: Seconds from one firing to the next; 0 fires at each new step.
        every_steps: Steps from one firing to the next, at least 1.

    Attributes:
        every_secs, every_steps: As given.

    Raises:
        TypeError: The argument is not a number, or not a whole one.
        ValueError: Not exactly one of the two is given, or it is out of range.

    Example:
        >>> timer = SecondOrStepTimer(every_steps=100)
        >>> timer.should_trigger_for_step(1)
        True
        >>> timer.update_last_triggered_step(1)
        (None, None)
        >>> timer.steps_until_trigger(1)
        100

    References:
        `tf.train.SecondOrStepTimer`. Differences: monotonic time; a step that moves back moves the timer back, while
        the reference does not fire until the old step is reached, and reports negative rates.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            given = "neither" if every_secs is None else "both"
            raise ValueError(f"SecondOrStepTimer requires exactly one of every_secs or every_steps, got {given}.")
        if every_secs is not None:
            arguments.check_number("SecondOrStepTimer", "every_secs", every_secs, at_least=0)
        if every_steps is not None:
            every_steps = arguments.check_int("SecondOrStepTimer", "every_steps", every_steps, at_least=1)
        self.every_secs = every_secs
        self.every_steps = every_steps
        # The steps of the last firings, oldest first; with `_has_older_firings` it fired before them, too.
        self._fired_steps: collections.deque[int] = collections.deque(maxlen=_MAX_REMEMBERED_FIRINGS)
        self._has_older_firings = False
        # The number of steps after the last firing that count as passed, a multiple of `every_steps`; see `skip_to`.
        self._skipped_steps = 0

    @property
    def time_only(self) -> bool:
        """Whether it counts seconds."""
        return self.every_secs is not None

    def next_step(self, after: int) -> int:
        """Returns the smallest step greater than `after` on which it can be due."""
        if self._fired_step is None or self.every_steps is None:
            return after + 1
        last = self._fired_step + self._skipped_steps
        return last + max(1, (after - last) // self.every_steps + 1) * self.every_steps

    def is_due(self, step: int) -> bool:
        """Returns whether it has never fired, or the time has passed."""
        if self._fired_step is None or self.every_secs is None:
            return True
        return self.has_elapsed(self.every_secs)

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire at `step`: always the first time, never twice at one step."""
        last = self._fired_step
        if last is None:
            return True
        if step < last:
            # The training has moved back without a call of `start`: `step` may be due.
            self.start(step - 1)
            return self.should_trigger_for_step(step)
        if self.every_steps is not None:
            return step - last - self._skipped_steps >= self.every_steps
        return step != last and self.is_due(step)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a firing at `step`; see `Trigger`."""
        self._skipped_steps = 0
        self._has_older_firings |= len(self._fired_steps) == _MAX_REMEMBERED_FIRINGS
        self._fired_steps.append(step)
        return super().update_last_triggered_step(step)

    def start(self, step: int) -> None:
        """Moves back with a training that returned to an earlier step; see `Trigger`.

        It restores its state at that step, for the last 1000 firings. Before these, a cadence in steps keeps its phase.
        """
        if self._fired_step is None or step >= self._fired_step:
            return
        oldest, self._skipped_steps = self._fired_step, 0
        while self._fired_steps and self._fired_steps[-1] > step:
            oldest = self._fired_steps.pop()
        if self._fired_steps:
            self._fired_step = self._fired_steps[-1]
        elif not self._has_older_firings:
            self.reset()
            return
        elif self.every_steps is None:
            self._fired_step = step
        else:
            self._fired_step = oldest + (step - oldest) // self.every_steps * self.every_steps
        self._base = self._fired_step
        self._moved_back = True

    def reset(self) -> None:
        """Forgets all firings."""
        super().reset()
        self._fired_steps = collections.deque(maxlen=_MAX_REMEMBERED_FIRINGS)
        self._has_older_firings, self._skipped_steps = False, 0

    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n for which it may fire at `step + n`; see `Trigger`."""
        if self._fired_step is None or step < self._fired_step:
            return 1
        if self.every_steps is None:
            return NEVER
        steps = self._fired_step + self._skipped_steps + self.every_steps - step
        return steps if steps > 1 else 1

    def secs_until_trigger(self) -> float:
        """Returns the remaining seconds; infinity if it counts steps."""
        if self.every_secs is None:
            return math.inf
        if self._fired_step is None:
            return 0.0
        return max(0.0, self._since_secs + self.every_secs - clock.monotonic())

    def skip_to(self, step: int) -> None:
        """Skips all steps up to `step`; a cadence in steps keeps its phase."""
        super().skip_to(step)
        if self._fired_step is not None and self.every_steps is not None:
            self._skipped_steps = max(0, step - self._fired_step) // self.every_steps * self.every_steps

    def get_state(self) -> dict[str, Any]:
        """Returns the state; see `Trigger`."""
        return super().get_state() | ({"skipped_steps": self._skipped_steps} if self._skipped_steps else {})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state of another timer."""
        super().set_state(state)
        self._has_older_firings, self._skipped_steps = self._fired_step is not None, state.get("skipped_steps", 0)

    def __repr__(self) -> str:
        every = f"every_steps={self.every_steps}" if self.every_secs is None else f"every_secs={self.every_secs:g}"
        return f"SecondOrStepTimer({every})"

    def __str__(self) -> str:
        return f"each {self.every_steps} steps" if self.every_secs is None else f"each {self.every_secs:g} seconds"


class NeverTriggerTimer(Trigger):
    """Never fires.

    Example:
        >>> NeverTriggerTimer().should_trigger_for_step(1)
        False

    References:
        `tf.train.NeverTriggerTimer`.
    """

    @property
    def has_steps(self) -> bool:
        """False."""
        return False

    def next_step(self, after: int) -> int:
        """Returns `NEVER`."""
        return NEVER

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns False."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Returns `(None, None)`."""
        return None, None

    def __repr__(self) -> str:
        return "NeverTriggerTimer()"


class DefaultSteps(int):
    """A default number of steps, distinct from the same number given by a user."""


def trigger_from_arguments(
    who: str,
    trigger: Trigger | None,
    steps: tuple[str, int | Epoch | None],
    secs: tuple[str, float | None],
    *,
    both: bool = False,
) -> Trigger:
    """Returns the trigger for the arguments of a hook: a trigger, or a named cadence in steps or in seconds.

    Steps may be "epoch", for `every(epochs=1)`. With `both`, a hook may have both cadences, and fires at whichever
    comes first.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: No cadence is given, or too many.
    """
    arguments.check_optional(who, "trigger", trigger, Trigger)
    if trigger is not None and isinstance(steps[1], DefaultSteps):
        steps = steps[0], None
    given = [name for name, value in (steps, secs, ("trigger", trigger)) if value is not None]
    if len(given) != 1 and not (both and given and trigger is None):
        default = f" ({int(steps[1])} unless you pass None)" if isinstance(steps[1], DefaultSteps) else ""
        wanted = f"{steps[0]}{default}, {secs[0]}, both or trigger" if both else None
        raise ValueError(
            f"{who} requires {wanted or f'exactly one of {steps[0]}{default}, {secs[0]} or trigger'}, "
            f"got {', '.join(given) or 'none'}."
        )
    if steps[1] is not None and steps[1] != EPOCH:
        arguments.check_int(who, steps[0], steps[1], at_least=1)
    if secs[1] is not None:
        arguments.check_number(who, secs[0], secs[1], at_least=0)
    if trigger is not None:
        return trigger
    parts: list[Trigger] = [] if secs[1] is None else [SecondOrStepTimer(every_secs=secs[1])]
    if steps[1] is not None:
        parts.append(EpochEnds(1) if steps[1] == EPOCH else SecondOrStepTimer(every_steps=steps[1]))
    return functools.reduce(operator.or_, parts)
