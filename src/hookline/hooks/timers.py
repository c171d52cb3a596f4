"""When a hook fires: every so many steps, every so many seconds, either, or never."""

from __future__ import annotations

import abc
import sys

from hookline import arguments, clock

NEVER = sys.maxsize
"""The answer of `steps_until_trigger` that no training reaches."""


class Timer(abc.ABC):
    """Decides on which steps something fires. It only answers: whoever fires tells it so.

    Example:
        >>> timer = SecondOrStepTimer(every_steps=10)
        >>> fired = []
        >>> for step in range(1, 31):
        ...     if timer.should_trigger_for_step(step):
        ...         _ = timer.update_last_triggered_step(step)
        ...         fired.append(step)
        >>> fired
        [1, 11, 21]
    """

    @abc.abstractmethod
    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire at `step`: always if it never has, never twice at one step."""

    @abc.abstractmethod
    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it fired at `step`.

        Returns:
            The seconds and the steps since it last fired; both None the first time, and the first time after the step
            has moved back.
        """

    @abc.abstractmethod
    def last_triggered_step(self) -> int | None:
        """Returns the step at which it last fired, or None."""

    @abc.abstractmethod
    def rewind(self, step: int) -> None:
        """Moves back with a training that is at `step` again, because a recovery restored an older state.

        A cadence in steps keeps its phase: it fires where it would have fired without the interruption. A step that is
        not before the last triggered one changes nothing.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forgets everything: it has never fired."""

    @abc.abstractmethod
    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n, at least 1, for which it may fire at `step + n`; 1 where that is not knowable."""


class SecondOrStepTimer(Timer):
    """Fires every `every_secs` seconds or every `every_steps` steps, counted from the last time it fired.

    Args:
        every_secs: Seconds from one firing to the next; 0 fires at each new step.
        every_steps: Steps from one firing to the next, at least 1.

    Raises:
        TypeError: It is no number, or no whole one.
        ValueError: Not exactly one of the two is given, or it is out of range.

    Example:
        >>> timer = SecondOrStepTimer(every_steps=5)
        >>> timer.should_trigger_for_step(3)
        True
        >>> timer.update_last_triggered_step(3)
        (None, None)
        >>> timer.steps_until_trigger(3)
        5

    References:
        `tf.train.SecondOrStepTimer`. Differences: monotonic time; a step that moves back moves the timer back, where
        the reference stays silent until the old step is reached and reports negative rates.
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            given = "neither" if every_secs is None else "both"
            raise ValueError(f"SecondOrStepTimer requires exactly one of every_secs or every_steps, got {given}.")
        if every_secs is not None:
            arguments.number("SecondOrStepTimer", "every_secs", every_secs, at_least=0)
        if every_steps is not None:
            every_steps = arguments.whole("SecondOrStepTimer", "every_steps", every_steps, at_least=1)
        self._every_secs = every_secs
        self._every_steps = every_steps
        self.reset()

    def reset(self) -> None:
        """Forgets everything: it has never fired."""
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._last_secs = 0.0
        self._rewound = False

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire at `step`."""
        last = self._last_step
        if last is None:
            return True
        if step < last:
            # Nobody told, so this is the first look at the rewound training: `step` itself may be due.
            self.rewind(step - 1)
            return self.should_trigger_for_step(step)
        if self._every_steps is not None:
            return step - last >= self._every_steps
        assert self._every_secs is not None
        return step != last and clock.monotonic() >= self._last_secs + self._every_secs

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it fired at `step`; see `Timer`."""
        now = clock.monotonic()
        elapsed = None, None
        if self._last_step is None or self._first_step is None:
            self._first_step = step
        elif step >= self._last_step and not self._rewound:
            elapsed = now - self._last_secs, step - self._last_step
        self._last_step, self._last_secs, self._rewound = step, now, False
        return elapsed

    def last_triggered_step(self) -> int | None:
        """Returns the step at which it last fired, or None."""
        return self._last_step

    def rewind(self, step: int) -> None:
        """Moves back with a training that is at `step` again; see `Timer`."""
        if self._last_step is None or self._first_step is None or step >= self._last_step:
            return
        if step < self._first_step:
            self.reset()
            return
        if self._every_steps is None:
            self._last_step = step
        else:
            periods = -((step - self._last_step) // self._every_steps)
            self._last_step -= periods * self._every_steps
        self._rewound = True

    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n for which it may fire at `step + n`."""
        if self._last_step is None or self._every_steps is None or step < self._last_step:
            return 1
        return max(1, self._last_step + self._every_steps - step)


class EitherTimer(Timer):
    """Fires when any of its timers would, and all of them then count from there.

    Args:
        *timers: At least one. They belong to this timer from now on.

    Example:
        >>> timer = EitherTimer(SecondOrStepTimer(every_secs=600), SecondOrStepTimer(every_steps=1000))
        >>> timer.should_trigger_for_step(1)
        True

    References:
        None in `tf.train`, which refuses two cadences at once.
    """

    def __init__(self, *timers: Timer) -> None:
        if not timers:
            raise ValueError("EitherTimer requires at least one timer, got none.")
        self._timers = timers

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire at `step`."""
        return any(timer.should_trigger_for_step(step) for timer in self._timers)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it fired at `step`; see `Timer`."""
        elapsed = [timer.update_last_triggered_step(step) for timer in self._timers]
        return elapsed[0]

    def last_triggered_step(self) -> int | None:
        """Returns the step at which it last fired, or None."""
        return self._timers[0].last_triggered_step()

    def rewind(self, step: int) -> None:
        """Moves back with a training that is at `step` again; see `Timer`."""
        for timer in self._timers:
            timer.rewind(step)

    def reset(self) -> None:
        """Forgets everything: it has never fired."""
        for timer in self._timers:
            timer.reset()

    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n for which it may fire at `step + n`."""
        return min(timer.steps_until_trigger(step) for timer in self._timers)


def either_timer(every_secs: float | None = None, every_steps: int | None = None) -> Timer | None:
    """Returns a timer of one cadence, of both (whichever comes first), or None for none.

    Example:
        >>> either_timer(every_steps=5).steps_until_trigger(0)
        1
        >>> either_timer() is None
        True
    """
    timers: list[Timer] = []
    if every_secs is not None:
        timers.append(SecondOrStepTimer(every_secs=every_secs))
    if every_steps is not None:
        timers.append(SecondOrStepTimer(every_steps=every_steps))
    if len(timers) > 1:
        return EitherTimer(*timers)
    return timers[0] if timers else None


class NeverTriggerTimer(Timer):
    """Never fires.

    Example:
        >>> NeverTriggerTimer().should_trigger_for_step(1)
        False

    References:
        `tf.train.NeverTriggerTimer`.
    """

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire at `step`."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Notes that it fired at `step`; see `Timer`."""
        return None, None

    def last_triggered_step(self) -> int | None:
        """Returns the step at which it last fired, or None."""
        return None

    def rewind(self, step: int) -> None:
        """Does nothing: there is nothing to move back."""

    def reset(self) -> None:
        """Does nothing: there is nothing to forget."""

    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n for which it may fire at `step + n`."""
        return NEVER
