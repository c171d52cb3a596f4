"""RunPlan: the firings, programs, saves and stops of the next steps, as data and as a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SHOWN = 3
_WIDTH = 72


class HookPlan(NamedTuple):
    """The plan of one hook.

    Args:
        name: The name of its class.
        trigger: Its trigger, in words; empty without one.
        fires_at: The global steps after the runs in which it fires, as far as they are foreseen; in a graph without a
            global step, the numbers of these runs.
        fetches: The names of the fetches with which it fires.
        each_run: "before_run" and "after_run", if they are called on each run. Their requests are not foreseen.
        late: True if it is called when the values have arrived, or a number of runs; else False.
        unforeseen: Conditions that may fire it or keep it from firing and cannot be foreseen, as phrases.
        stops_at: The global step at which it stops the training; None without such a step.
        saves: Whether it saves checkpoints.
        at_end: Whether it is called when the session is closed.
    """

    name: str
    trigger: str
    fires_at: tuple[int, ...]
    fetches: tuple[str, ...]
    each_run: tuple[str, ...]
    late: bool | int
    unforeseen: tuple[str, ...]
    stops_at: int | None
    saves: bool
    at_end: bool


class ProgramPlan(NamedTuple):
    """One program of the step.

    Args:
        about: Its outputs and the variables that it writes, in words.
        runs: The number of runs that start it.
        first_at: The global step after the first of these runs; without a global step, the number of the run.
        is_compiled: Whether the session has compiled it already.
    """

    about: str
    runs: int
    first_at: int
    is_compiled: bool


class RunPlan(NamedTuple):
    """The plan of the next steps of a session; `str()` returns a table.

    Args:
        fetches: The names of the fetches.
        begins_at: The global step before the first run; in a graph without one, the number of runs made.
        ends_at: The global step after the last run; likewise.
        runs: The number of runs.
        hooks: The hooks, in calling order.
        programs: The distinct programs of the step, in the order of their first run.
        counts: The unit of `begins_at`, `ends_at` and `fires_at`: "step" or "run".
        is_over: Whether a hook stops the training within these steps.
        unforeseen: Conditions that may change the plan, as sentences.

    Example:
        >>> import hookline as hl
        >>> from hookline import train
        >>> with hl.Graph().as_default():
        ...     train_op = train.get_or_create_global_step().assign_add(1)
        ...     hooks = [train.StopAtStepHook(last_step=1000), train.StepCounterHook(every_n_steps=100)]
        ...     with train.MonitoredSession(hooks=hooks) as session:
        ...         plan = session.plan(steps=5000, fetches=train_op)
        >>> plan.ends_at, plan.is_over, len(plan.programs)
        (1000, True, 1)
        >>> print(plan.hooks[1].fires_at[:3])
        (1, 101, 201)
        >>> print(plan)
        Steps 0 to 1000 of global_step/assign_add:0, where the training ends: 1000 runs, 1 program of the step.
          StopAtStepHook   at step 1000
                           stops the training at step 1000
          StepCounterHook  each 100 from 1: 1, 101, ..., 901 (10 times)
        Programs:
          1000 runs from step 1, to be compiled: outputs global_step/assign_add:0; writes global_step
    """

    fetches: tuple[str, ...]
    begins_at: int
    ends_at: int
    runs: int
    hooks: tuple[HookPlan, ...]
    programs: tuple[ProgramPlan, ...]
    counts: str
    is_over: bool
    unforeseen: tuple[str, ...]

    def __str__(self) -> str:
        ending = ", where the training ends" if self.is_over else ""
        lines = [
            f"{self.counts.capitalize()}s {self.begins_at} to {self.ends_at} of {_short(self.fetches)}{ending}: "
            f"{_count(self.runs, 'run')}, {_count(len(self.programs), 'program')} of the step."
        ]
        width = max((len(hook.name) for hook in self.hooks), default=0)
        for hook in self.hooks:
            first, *rest = self._about(hook)
            lines += [f"  {hook.name:{width}}  {first}", *(f"  {'':{width}}  {line}" for line in rest)]
        if self.programs:
            lines.append("Programs:")
        for program in self.programs:
            state = "compiled already" if program.is_compiled else "to be compiled"
            begins = f"{_count(program.runs, 'run')} from {self.counts} {program.first_at}"
            lines.append(f"  {begins}, {state}: {program.about}")
        if self.unforeseen:
            lines += ["Not foreseen:", *(f"  {sentence}" for sentence in self.unforeseen)]
        return "\n".join(lines)

    def _about(self, hook: HookPlan) -> list[str]:
        lines = []
        if hook.trigger:
            lines.append(pattern(hook.fires_at, self.counts))
            if hook.fetches and hook.fires_at:
                late = f", for {hook.late} runs later" if type(hook.late) is int else ""
                lines.append(f"asks for {_short(hook.fetches)}{', for when they come' if hook.late is True else late}")
        if hook.each_run:
            lines.append(f"called on each run ({', '.join(hook.each_run)})")
        if hook.saves and hook.fires_at:
            lines.append("saves a checkpoint each time")
        if hook.stops_at is not None:
            lines.append(f"stops the training at step {hook.stops_at}")
        if hook.saves and hook.at_end:
            lines.append("saves at the end")
        if not lines and hook.at_end:
            lines.append("called at the end alone")
        return [*(lines or ["not called in a run"]), *(f"not foreseen: {sentence}" for sentence in hook.unforeseen)]


def pattern(numbers: Sequence[int], what: str) -> str:
    """Describes a series of steps or runs in a few words.

    Example:
        >>> pattern([100, 200, 300, 400, 500], "step")
        'each 100: 100, 200, ..., 500 (5 times)'
        >>> pattern([1, 101, 201, 301, 401], "step"), pattern([3, 10, 20], "step"), pattern([], "step")
        ('each 100 from 1: 1, 101, ..., 401 (5 times)', 'at steps 3, 10, 20', 'never in these steps')
    """
    if not numbers:
        return f"never in these {what}s"
    if len(numbers) <= _SHOWN:
        return f"at {what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    gaps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    shown = f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]} ({len(numbers)} times)"
    if len(gaps) > 1:
        return f"at {what}s {shown}"
    (gap,) = gaps
    return f"each {gap}{'' if numbers[0] % gap == 0 else f' from {numbers[0]}'}: {shown}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(names: Iterable[str]) -> str:
    names = list(names)
    text = ", ".join(names)
    if len(text) <= _WIDTH:
        return text or "nothing"
    return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else text
