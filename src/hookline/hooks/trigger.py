"""Decides when a hook fires: the base class of triggers, and their combinations `|` and `&`."""

from __future__ import annotations

import abc
import copy
import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookline import clock
from hookline.signals.interrupts import mark_user_class

if TYPE_CHECKING:
    from hookline.session import Session

NEVER = sys.maxsize
"""A step that no training run reaches."""

_MAX_CHECKED_STEPS = 10_000
# Without `last`, `firing_steps` ends at this step, or after this many steps on which the trigger could have fired but
# did not.
_LAST_STEP = NEVER // 2
_MAX_MISSES = 100_000


class Trigger(abc.ABC):
    """Decides when a hook fires, from the global step, the time, the count of runs, and the last firing.

    A trigger takes no action. The session calls `should_trigger_for_step` to decide whether a hook fires, and
    `update_last_triggered_step` after each firing. With `every(100)`, the hook of a training run that resumes at step
    150 fires at 200. A due step stays due until the trigger fires, so a run of several steps does not skip it: this
    trigger fires after a run from step 195 to 205.

    Two triggers can be combined. `a | b` fires whenever either would, and each keeps its own phase. `a & b` fires on
    the steps on which both are due: `every(3) & every(5)` fires at 15. In `a & b`, a trigger in steps is due only on
    its own steps, and a trigger in seconds stays due until the combination fires. Triggers that count runs or read a
    latch (a condition that the device checks in each run, see `latched`) have no steps, so `&` does not take them.

    A subclass defines `next_step`, and also `is_due` if the steps alone do not decide.

    Example:
        >>> from hookline.train import at_steps, every
        >>> trigger = every(10) | at_steps(3)
        >>> trigger.start(0)
        >>> fired = []
        >>> for step in range(1, 31):
        ...     if trigger.should_trigger_for_step(step):
        ...         _ = trigger.update_last_triggered_step(step)
        ...         fired.append(step)
        >>> fired
        [3, 10, 20, 30]

    References:
        The timers of `tf.train` (`SecondOrStepTimer`), with the same methods; combinations have no counterpart there.
    """

    # `_base` and `_checked_step` record which steps are past. A run of several steps must not skip a step on which the
    # trigger is due, and no step may fire twice. With every(100), in a training run resumed
    # at 150:
    #
    #   call or event                  _base   _checked_step
    #   start(150)                       150             150   no step up to 150 is due any more
    #   should_trigger_for_step(199)     150             199   returns False: no step in 151..199 is due
    #   should_trigger_for_step(230)     150             199   returns True: 200 is due
    #   the run fails, and is repeated   150             199   returns True again, because it has not fired
    #   update_last_triggered_step(230)  230             230
    #   start(210), after a restore      210             210   it fires at 300 next
    #
    # The step of the start or of the last firing; no step up to it is due any more.
    _base: int | None = None
    # The last step for which `should_trigger_for_step` returned False; steps up to it are not checked again.
    _checked_step: int = -1
    # The time of the last firing, or of the start.
    _since_secs: float = 0.0
    _fired_step: int | None = None
    _moved_back: bool = False
    # The result of `has_elapsed` in SPMD processes, which agree on it; None in a single process, which reads its clock.
    agreed: bool | None = None
    # Whether `next_step` returns steps that may not be due, so that each one is checked. After a large jump, such as a
    # restore, only the last `_MAX_CHECKED_STEPS` steps are checked.
    _checks_each_step: bool = False

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        mark_user_class(cls)

    @property
    def time_only(self) -> bool:
        """Whether only the time decides, regardless of the step."""
        return False

    @property
    def has_steps(self) -> bool:
        """Whether it reads the global step; if so, the graph must have one."""
        return not self.time_only

    @property
    def latches(self) -> tuple[Any, ...]:
        """The latches that make it fire; the session adds them to every run."""
        return ()

    @abc.abstractmethod
    def next_step(self, after: int) -> int:
        """Returns the smallest step greater than `after` on which the trigger can be due; `NEVER` if there is none."""

    def is_due(self, step: int) -> bool:
        """Returns whether the trigger is due now on `step`; called for steps that `next_step` returned."""
        return True

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether to fire on the run that ends at `step`; False once a firing at `step` is recorded."""
        if self._base is None or step < self._base:
            self.start(step - 1)
        assert self._base is not None
        low = max(self._base, min(self._checked_step, step - 1))
        due = self.next_step(max(low, step - _MAX_CHECKED_STEPS) if self._checks_each_step else low)
        while due <= step:
            if self.is_due(due):
                return True
            due = self.next_step(due)
        self._checked_step = step
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a firing at `step`.

        Returns:
            The seconds and the steps since the previous firing. Both are None for the first firing, and for the first
            one after the step moved back.
        """
        now = clock.monotonic()
        elapsed = None, None
        if self._fired_step is not None and not self._moved_back and step >= self._fired_step:
            elapsed = now - self._since_secs, step - self._fired_step
        self._base = self._checked_step = self._fired_step = step
        self._since_secs, self._moved_back = now, False
        self.agreed = None if self.agreed is None else False
        return elapsed

    def has_elapsed(self, secs: float) -> bool:
        """Returns whether `secs` seconds have passed since the last firing or the start; for use in `is_due`.

        In SPMD processes the chief's clock decides, and all processes get True in the same run.
        """
        return clock.monotonic() >= self._since_secs + secs if self.agreed is None else self.agreed

    def last_triggered_step(self) -> int | None:
        """Returns the step of the last firing, or None."""
        return self._fired_step

    def start(self, step: int) -> None:
        """Starts or resumes at `step`, or moves back to it.

        If the trigger has started at this step or an earlier one, nothing changes.
        """
        if self._base is None:
            self._since_secs = clock.monotonic()
        elif step >= self._base:
            return
        else:
            self._moved_back = True
        self._base = self._checked_step = step
        if self._fired_step is not None:
            self._fired_step = min(self._fired_step, step)

    def reset(self) -> None:
        """Forgets the start and all firings."""
        self._base = self._fired_step = None
        self._checked_step, self._since_secs, self._moved_back = -1, 0.0, False

    def on_new_session(self, session: Session) -> None:  # noqa: B027 - most do not care
        """Called for each new raw session, also after a recovery."""

    def steps_until_trigger(self, step: int) -> int:
        """Returns the smallest n, at least 1, for which it may fire at `step + n`, without regard to time."""
        following = self.next_step(step if self._base is None else max(self._base, min(self._checked_step, step)))
        return NEVER if following >= NEVER else max(1, following - step)

    def secs_until_trigger(self) -> float:
        """Returns in how many seconds it may fire even if the step of `steps_until_trigger` is not reached.

        Infinity if the time does not make it fire.
        """
        return math.inf

    def runs_until_trigger(self) -> int:
        """Returns in how many runs it may fire even if the step of `steps_until_trigger` is not reached.

        `NEVER` if the number of runs does not make it fire.
        """
        return NEVER

    def count_runs(self, runs: int) -> None:  # noqa: B027 - most do not count
        """Sets the number of the run to which the next calls refer; the first run of the hook is 1."""

    def clone(self) -> Trigger:
        """Returns a copy without a start or firings."""
        other = copy.copy(self)
        other.reset()
        return other

    def get_state(self) -> dict[str, Any]:
        """Returns the state for `set_state` and `resume`: a dict of numbers, and the `repr` of the trigger as text."""
        elapsed_secs = None if self._base is None else clock.monotonic() - self._since_secs
        return {
            "text": _description(self),
            "base_step": self._base,
            "checked_step": self._checked_step,
            "fired": self._fired_step,
            "elapsed_secs": elapsed_secs,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores a state, including the elapsed seconds."""
        self.reset()
        self._apply_state(state)

    def _apply_state(self, state: Mapping[str, Any]) -> None:
        for name in ("base_step", "checked_step", "fired", "elapsed_secs"):  # A string, say, would fail much later.
            if not isinstance(state[name], int | float | None):
                raise TypeError(f"{name} is {state[name]!r}, not a number")
        if state["base_step"] is not None:
            self._base, self._checked_step, self._fired_step = state["base_step"], state["checked_step"], state["fired"]
            self._since_secs = clock.monotonic() - state["elapsed_secs"]

    def resume(self, state: Mapping[str, Any], step: int | None, saved_step: int | None) -> None:
        """Resumes at `step` from a saved state, which may be that of another trigger if the script has changed.

        From the state of an equal trigger it resumes exactly. From another state it takes the last firing, and steps up
        to `step` are not due any more. If `every(100)` saved its state at step 250, `every(20)` next fires at 260.

        Args:
            state: The result of `get_state`.
            step: The global step now; None in a graph without one.
            saved_step: The global step at which the state was taken.
        """
        before, now = state.get("text"), _description(self)
        if before and now and before != now:
            self._adopt_state(state)
        else:
            self.set_state(state)
        if step is not None and (before is None or before != now or saved_step != step):
            self.skip_to(step)

    def check_up_to(self, step: int) -> None:
        """Checks the steps up to `step`, so that a checkpoint of `step` records whether one of them is due.

        Example:
            A GAN alternates two calls of `session.run`, and a hook counts only the generator's. At step 100, after a
            run of the discriminator, the hook is due but cannot fire. The checkpoint of step 100 records this: after a
            restore the hook fires in the next run of the generator.

            `every(20)` has fired at 240. A checkpoint of 250 records that steps up to 250 were checked: if a script
            resumes there with another cadence, no step up to 250 is due.
        """
        if self._base is not None and self._base <= step and not self.should_trigger_for_step(step):
            self._checked_step = max(self._checked_step, step)

    def skip_to(self, step: int) -> None:
        """Skips all steps up to `step`: they are not due any more."""
        if self._base is not None:
            self._checked_step = max(self._checked_step, step)

    def _adopt_state(self, state: Mapping[str, Any]) -> None:
        """Takes the last firing and the elapsed seconds from the state of another trigger.

        If that is a combination with a part equal to this trigger, takes the state of this part.
        """
        equal = [part for part in state.get("parts", ()) if part.get("text") == _description(self)]
        self.set_state(equal[0] if equal else state)

    def firing_steps(self, first: int, last: int | None) -> Iterator[int] | None:
        """Yields the steps after `first`, up to `last`, on which it fires; returns None if steps alone do not decide.

        Each firing is recorded in this trigger. If `last` is None, the steps also end once the trigger
        has not fired on 100,000 steps on which it could have.

        Example:
            >>> from hookline.train import every
            >>> list(every(100).firing_steps(0, 250))
            [100, 200]
        """
        for leaf in self.leaves():
            # A subclass that overrides a public method may depend on anything, so its steps cannot be predicted.
            own = [kind for kind in type(leaf).__mro__ if kind.__module__.partition(".")[0] != "hookline"]
            is_known = not any(name in vars(Trigger) and name[0] != "_" for kind in own for name in vars(kind))
            if not is_known or not leaf.has_steps or leaf.time_only or leaf.latches:
                return None
        self.start(first)
        return self._firing_steps(first, last)

    def _firing_steps(self, step: int, last: int | None) -> Iterator[int]:
        end, misses = _LAST_STEP if last is None else last, 0
        while (step := step + self.steps_until_trigger(step)) <= end and misses < _MAX_MISSES:
            if self.should_trigger_for_step(step):
                self.update_last_triggered_step(step)
                yield step
            elif last is None:
                misses += 1

    def leaves(self) -> list[Trigger]:
        """Returns the parts of a combined trigger, also of nested ones; for any other trigger, the trigger itself."""
        return [self]

    def __or__(self, other: Trigger) -> Trigger:
        return _AnyOf(self, other) if isinstance(other, Trigger) else NotImplemented

    def __and__(self, other: Trigger) -> Trigger:
        return _AllOf(self, other) if isinstance(other, Trigger) else NotImplemented


class _Composite(Trigger):
    """A combination of triggers; its state contains the states of the parts."""

    _symbol = ""

    def __init__(self, *parts: Trigger) -> None:
        # (a & b) & c has three parts.
        self.parts = parts = tuple(p for part in parts for p in (part.parts if type(part) is type(self) else (part,)))
        if len({id(leaf) for leaf in self.leaves()}) < len(self.leaves()):
            raise ValueError(f"{self!r} has the same trigger twice, but each part needs its own phase. Make two.")

    @property
    def has_steps(self) -> bool:
        return any(part.has_steps for part in self.parts)

    @property
    def latches(self) -> tuple[Any, ...]:
        return tuple(latch for part in self.parts for latch in part.latches)

    def leaves(self) -> list[Trigger]:
        return [leaf for part in self.parts for leaf in part.leaves()]

    @property
    def time_only(self) -> bool:
        return all(part.time_only for part in self.parts)

    def start(self, step: int) -> None:
        super().start(step)
        for part in self.parts:
            part.start(step)

    def reset(self) -> None:
        super().reset()
        for part in self.parts:
            part.reset()

    def on_new_session(self, session: Session) -> None:
        for part in self.parts:
            part.on_new_session(session)

    def clone(self) -> Trigger:
        other = copy.copy(self)
        other.parts = tuple(part.clone() for part in self.parts)
        Trigger.reset(other)
        return other

    def count_runs(self, runs: int) -> None:
        for part in self.parts:
            part.count_runs(runs)

    def runs_until_trigger(self) -> int:
        return min(part.runs_until_trigger() for part in self.parts)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"parts": [part.get_state() for part in self.parts]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        # Not `self.reset()`, which would reset the parts, too: a part that counts runs is not saved, so it must keep
        # its count.
        Trigger.reset(self)
        self._apply_state(state)
        for part, its_state in zip(self.parts, state["parts"], strict=True):
            part.set_state(its_state)

    def check_up_to(self, step: int) -> None:
        super().check_up_to(step)
        for part in self.parts:
            part.check_up_to(step)

    def skip_to(self, step: int) -> None:
        super().skip_to(step)
        for part in self.parts:
            part.skip_to(step)

    def _adopt_state(self, state: Mapping[str, Any]) -> None:
        Trigger.reset(self)
        self._apply_state(state)
        for part in self.parts:
            if _description(part) == state["text"]:
                part.set_state(state)
            else:
                part._adopt_state(state)

    def __repr__(self) -> str:
        return f"({f' {self._symbol} '.join(map(repr, self.parts))})"

    def __str__(self) -> str:
        return (" or " if self._symbol == "|" else " and ").join(map(str, self.parts))


def _description(trigger: Trigger) -> str:
    """Returns the `repr` of a trigger, to compare it across processes; empty if it has the address of an object."""
    text = repr(trigger)
    return "" if " at 0x" in text else text


def _is_due(part: Trigger, step: int) -> bool:
    # For a combined trigger, `is_due` checks the parts: to search for its next step may take long.
    on_step = isinstance(part, _Composite) or part.next_step(step - 1) == step
    return on_step and part.is_due(step)


class _AnyOf(_Composite):
    """Fires whenever a part would; made by `a | b`. A firing changes the phase of only the parts that were due."""

    _symbol = "|"

    def next_step(self, after: int) -> int:
        return min(part.next_step(after) for part in self.parts)

    def is_due(self, step: int) -> bool:
        return any(_is_due(part, step) for part in self.parts)

    def should_trigger_for_step(self, step: int) -> bool:
        # A list, so that all parts are called: each records the steps that it has checked.
        return any([part.should_trigger_for_step(step) for part in self.parts])

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a firing at `step` in the parts that are due; if none is, in all parts."""
        due = [part for part in self.parts if part.should_trigger_for_step(step)]
        for part in due or self.parts:
            part.update_last_triggered_step(step)
        return super().update_last_triggered_step(step)

    def steps_until_trigger(self, step: int) -> int:
        return min(part.steps_until_trigger(step) for part in self.parts)

    def secs_until_trigger(self) -> float:
        return min(part.secs_until_trigger() for part in self.parts)


class _AllOf(_Composite):
    """Fires on a step on which all parts are due; made by `a & b`."""

    _checks_each_step = True
    _symbol = "&"
    _MAX_TRIES = 50

    def __init__(self, *parts: Trigger) -> None:
        for part in parts:
            for leaf in part.leaves():
                if not leaf.has_steps and not leaf.time_only:
                    raise TypeError(
                        f"& requires triggers in steps or in seconds, got {leaf!r}, which has neither. Use |, or two "
                        "hooks."
                    )
        super().__init__(*parts)

    def next_step(self, after: int) -> int:
        """Returns the first step on which all parts can be due, or an earlier one if the search takes too long."""
        candidate = after + 1
        for _ in range(self._MAX_TRIES):
            following = max(part.next_step(candidate - 1) for part in self.parts)
            if following in (candidate, NEVER):
                return following
            candidate = following
        return candidate

    def is_due(self, step: int) -> bool:
        return all(_is_due(part, step) for part in self.parts)

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether all parts are due on one of the unchecked steps up to `step`."""
        if self._base is None or step < self._base:
            self.start(step - 1)
        if step == self._fired_step or not all(part.is_due(step) for part in self.parts if part.time_only):
            self._checked_step = step
            return False
        return self.time_only or super().should_trigger_for_step(step)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a firing at `step` in all parts."""
        for part in self.parts:
            part.update_last_triggered_step(step)
        return super().update_last_triggered_step(step)

    def steps_until_trigger(self, step: int) -> int:
        """Returns the number of steps until all parts may be due; `NEVER` if time alone decides."""
        return NEVER if self.time_only else super().steps_until_trigger(step)

    def secs_until_trigger(self) -> float:
        """Returns the seconds until all parts may be due, if the global step stays at the last checked step."""
        step = self._checked_step
        if self.time_only or step is None:
            return max(part.secs_until_trigger() for part in self.parts)
        if step == self._fired_step:
            return math.inf
        parts = (part for part in self.parts if part.time_only or not _is_due(part, step))
        return max((part.secs_until_trigger() for part in parts), default=0.0)
