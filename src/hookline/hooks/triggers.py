"""Makes triggers: `every`, `first_then_every`, `at_steps`, `first_run`, ..."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookline import arguments, clock
from hookline.graph import Operation
from hookline.graph.conditions import Latch
from hookline.hooks.epochs import EPOCH, Epoch, EpochEnds
from hookline.hooks.timers import SecondOrStepTimer
from hookline.hooks.trigger import NEVER, Trigger
from hookline.signals.interrupts import calls_user_code

if TYPE_CHECKING:
    from hookline.session import Session


class _StepSet(Trigger):
    """Fires on the steps of a set; `following` returns the next member after a step."""

    def __init__(self, following: Callable[[int], int], text: str, words: str = "") -> None:
        self._following, self._text, self._words = following, text, words or text

    def next_step(self, after: int) -> int:
        return self._following(after)

    def __repr__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._words


class _StepPredicate(Trigger):
    """Fires on the steps for which a predicate holds; `when_step` makes it."""

    _checks_each_step = True

    def __init__(self, predicate: Callable[[int], object]) -> None:
        self._predicate = predicate

    def next_step(self, after: int) -> int:
        return after + 1

    @calls_user_code
    def is_due(self, step: int) -> bool:
        return bool(self._predicate(step))

    def __repr__(self) -> str:
        return f"when_step({self._predicate!r})"


class _Seconds(Trigger):
    """Fires on the first run after a number of seconds; `every(secs=...)` makes it."""

    def __init__(self, secs: float) -> None:
        self._secs = secs

    @property
    def time_only(self) -> bool:
        return True

    def next_step(self, after: int) -> int:
        return after + 1

    def is_due(self, step: int) -> bool:
        return self.has_elapsed(self._secs)

    def should_trigger_for_step(self, step: int) -> bool:
        if self._base is None or step < self._base:
            self.start(step - 1)
        return step != self._fired_step and self.is_due(step)

    def steps_until_trigger(self, step: int) -> int:
        return NEVER

    def secs_until_trigger(self) -> float:
        return max(0.0, self._since_secs + self._secs - clock.monotonic())

    def __repr__(self) -> str:
        return f"every(secs={self._secs:g})"

    def __str__(self) -> str:
        return f"each {self._secs:g} seconds"


class OffSteps(Trigger):
    """A trigger that ignores the global step.

    It has no phase for checkpoints, and `start` does not reset it: after a step back, only the next firing has no
    `elapsed_*`.
    """

    @property
    def has_steps(self) -> bool:
        """False."""
        return False

    def next_step(self, after: int) -> int:
        """Returns `NEVER`."""
        return NEVER

    def start(self, step: int) -> None:
        """Records that the step moved back."""
        if self._fired_step is not None and step < self._fired_step:
            self._moved_back = True

    def get_state(self) -> dict[str, Any]:
        """Returns nothing."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Does nothing."""

    def _adopt_state(self, state: Mapping[str, Any]) -> None:
        pass


class Runs(OffSteps):
    """Fires on the first run, then a number of runs after the last firing; `every(runs=...)` makes it.

    Attributes:
        run: The number of the run to be asked about.

    Example:
        >>> trigger = Runs(2)
        >>> for run in range(1, 6):
        ...     trigger.count_runs(run)
        ...     if trigger.should_trigger_for_step(run):
        ...         _ = trigger.update_last_triggered_step(run)
        ...         print("fires on run", run)
        fires on run 1
        fires on run 3
        fires on run 5
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self.run = 0
        self._fired_run: int | None = None

    def count_runs(self, runs: int) -> None:
        """Sets the number of the run to be asked about."""
        self.run = runs

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether it has not fired yet, or enough runs have passed; a repeated run counts."""
        return self._fired_run in (None, self.run) or self.run - self._fired_run >= self._runs

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a firing on the run that led to `step`; see `Trigger`."""
        self._fired_run = self.run
        return super().update_last_triggered_step(step)

    def runs_until_trigger(self) -> int:
        """Returns the remaining runs."""
        return 1 if self._fired_run is None else max(1, self._fired_run + self._runs - self.run)

    def reset(self) -> None:
        """Forgets all runs."""
        super().reset()
        self.run, self._fired_run = 0, None

    def __repr__(self) -> str:
        return f"every(runs={self._runs})"

    def __str__(self) -> str:
        return f"each {self._runs} runs"


class FirstRun(OffSteps):
    """Fires on one run of each raw session, the first by default; `first_run` makes it."""

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self._restart()

    @property
    def has_run(self) -> bool:
        """Whether the raw session has begun a run."""
        return self._run > 0

    def on_new_session(self, session: Session) -> None:
        """Resets it for a new raw session."""
        self._restart()

    def _restart(self) -> None:
        self._is_due, self._run, self._runs_left = True, 0, self._number - 1

    def reset(self) -> None:
        """Forgets its firing."""
        super().reset()
        self._restart()

    def count_runs(self, runs: int) -> None:
        """Sets the number of the run, and so the number of runs left until its own."""
        self._run = self._run or runs
        self._runs_left = self._run + self._number - 1 - runs

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether its run is reached and it has not fired in this session."""
        return self._is_due and self._runs_left <= 0

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records the firing."""
        self._is_due = False
        return super().update_last_triggered_step(step)

    def runs_until_trigger(self) -> int:
        """Returns the number of runs left until its own; `NEVER` after it has fired."""
        return max(1, self._runs_left) if self._is_due else NEVER

    def __repr__(self) -> str:
        return "first_run()"


class Latched(OffSteps):
    """Fires when the session has read that a latch has latched; `latched` makes it.

    Attributes:
        operation: The latch, which is part of every run of the session.
    """

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    @property
    def latches(self) -> tuple[Operation, ...]:
        """The latch."""
        return (self.operation,)

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns False: the session reads the latch itself."""
        return False

    def __repr__(self) -> str:
        return f"latched({self.operation.name})"


def every(
    steps: int | Epoch | None = None, *, secs: float | None = None, runs: int | None = None, epochs: int | None = None
) -> Trigger:
    """Returns a trigger that fires every `steps` global steps, `secs` seconds, `runs` runs, or `epochs` epochs.

    Args:
        steps: 100 fires on the first run to reach or pass 100, 200, 300, ...; a training resumed at 150 fires at 200.
            "epoch" is the same as `epochs=1`.
        secs: Seconds from the start to the first firing, and from one firing to the next.
        runs: 100 fires on the first run of this process and then 100 runs after each firing: on runs 1, 101, 201. A
            recovery does not reduce the count, and checkpoints do not hold it.
        epochs: 2 fires at the end of epochs 2, 4, 6, ..., for a `train.Loop` whose data resume and have a known length.
            If not, the start of the session raises `ValueError`.

    Raises:
        TypeError: The argument is not a number, or not a whole one.
        ValueError: Not exactly one of the four is given, or it is out of range.

    Example:
        >>> trigger = every(100)
        >>> trigger.start(150)
        >>> trigger.steps_until_trigger(150), trigger.should_trigger_for_step(203)
        (50, True)
        >>> every(1000) | every(secs=600)
        (every(1000) | every(secs=600))

    References:
        `every_steps` and `every_secs` of clu's periodic actions; `every_n_iter` of `tf.train.LoggingTensorHook`.
    """
    counts = {"steps": steps, "secs": secs, "runs": runs, "epochs": epochs}
    given = [name for name, value in counts.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"every requires exactly one of steps, secs, runs or epochs, got {' and '.join(given) or 'none'}."
        )
    if secs is not None:
        arguments.check_number("every", "secs", secs, at_least=0)
        return _Seconds(secs)
    if runs is not None:
        return Runs(arguments.check_int("every", "runs", runs, at_least=1))
    if epochs is not None or steps == EPOCH:
        return EpochEnds(1 if epochs is None else arguments.check_int("every", "epochs", epochs, at_least=1))
    if isinstance(steps, str):
        raise TypeError(f"every requires a whole number or {EPOCH!r} as steps, got {steps!r}.")
    n = arguments.check_int("every", "steps", steps, at_least=1)
    return _StepSet(lambda after: (max(after, 0) // n + 1) * n, f"every({n})", f"each {n} steps")


def first_then_every(steps: int | None = None, *, secs: float | None = None) -> Trigger:
    """Returns a trigger that fires on the first run, and then `steps` or `secs` after each firing.

    Args:
        steps: 100 fires at 1, 101, 201, ..., where `every(100)` fires at 100, 200, 300. `save_steps=100` of a hook
            means this.
        secs: Seconds from one firing to the next; the first run fires.

    Raises:
        TypeError: The argument is not a number, or not a whole one.
        ValueError: Not exactly one of the two is given, or it is out of range.

    Example:
        >>> trigger = first_then_every(100)
        >>> trigger.should_trigger_for_step(1), trigger.update_last_triggered_step(1), trigger.steps_until_trigger(1)
        (True, (None, None), 100)

    References:
        `tf.train.SecondOrStepTimer`, the class of the trigger.
    """
    if (steps is None) == (secs is None):
        raise ValueError(
            f"first_then_every requires exactly one of steps or secs, got {'neither' if steps is None else 'both'}."
        )
    if steps is not None:
        arguments.check_int("first_then_every", "steps", steps, at_least=1)
    if secs is not None:
        arguments.check_number("first_then_every", "secs", secs, at_least=0)
    return SecondOrStepTimer(every_secs=secs, every_steps=steps)


def first_run() -> Trigger:
    """Returns a trigger that fires on the first run of each raw session, also after a recovery.

    Example:
        >>> trigger = first_run()
        >>> trigger.should_trigger_for_step(1), trigger.update_last_triggered_step(1)
        (True, (None, None))
        >>> trigger.should_trigger_for_step(2)
        False
    """
    return FirstRun()


def latched(operation: Operation) -> Trigger:
    """Returns a trigger that fires when a condition was true on the device; no run waits for it.

    The latch is part of every run of the monitored session. The hook fires once, when the session reads that the latch
    has latched: at the latest before a save, at the end, or `SessionConfig.max_runs_ahead` runs later. Then
    `firing.values` is None, and `firing.global_step` is the step after the first run in which the condition was true.

    Args:
        operation: The result of `hookline.latch`.

    Raises:
        TypeError: It is no latch.

    Example:
        >>> import hookline as hl
        >>> with hl.Graph().as_default():
        ...     latched(hl.latch(hl.constant(2.0) > 1.0, name="above"))
        latched(above)
    """
    if not isinstance(operation, Latch):
        raise TypeError(f"latched requires an operation of hookline.latch, got {operation!r}.")
    return Latched(operation)


def at_steps(*steps: int) -> Trigger:
    """Returns a trigger that fires on the first run to reach or pass each of the given steps.

    Example:
        >>> at_steps(10, 100, 1000).steps_until_trigger(10)
        90
    """
    members = sorted({arguments.check_int("at_steps", "steps", step, at_least=0) for step in steps})
    if not members:
        raise ValueError("at_steps requires one step or more, got none.")

    def following(after: int) -> int:
        index = bisect.bisect_right(members, after)
        return members[index] if index < len(members) else NEVER

    return _StepSet(following, f"at_steps({', '.join(map(str, members))})")


def log_spaced(per_decade: int = 3) -> Trigger:
    """Returns a trigger that fires on steps evenly spaced on a logarithmic scale: often at first, then more rarely.

    Args:
        per_decade: The number of steps from one power of ten to the next; the powers of ten are among them.

    Example:
        >>> trigger = log_spaced(per_decade=3)
        >>> [step for step in range(1, 120) if trigger.next_step(step - 1) == step]
        [1, 2, 5, 10, 22, 46, 100]
    """
    arguments.check_int("log_spaced", "per_decade", per_decade, at_least=1)

    def following(after: int) -> int:
        power = max(0, math.floor(math.log10(max(after, 1)) * per_decade) - 1)
        while (member := round(10 ** (power / per_decade))) <= after:
            power += 1
        return member

    return _StepSet(following, f"log_spaced(per_decade={per_decade})")


def when_step(predicate: Callable[[int], object]) -> Trigger:
    """Returns a trigger that fires on the steps for which `predicate(step)` is true.

    The steps are not known beforehand, so the session asks this trigger on every run. The predicate may be called more
    than once for a step, even before the run that leads there, so it should have no side effects. If the global step
    jumps, only the last 10,000 steps are checked.

    Example:
        >>> trigger = when_step(lambda step: step < 10 or step % 100 == 0)
        >>> [step for step in (8, 9, 10, 99, 100) if trigger.is_due(step)]
        [8, 9, 100]
    """
    if not callable(predicate):
        raise TypeError(f"when_step requires a function of the step, got {predicate!r}.")
    return _StepPredicate(predicate)
