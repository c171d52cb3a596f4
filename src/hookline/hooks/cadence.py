"""The trigger for the cadence arguments of a hook."""

from __future__ import annotations

from hookline import arguments
from hookline.hooks.timers import SecondOrStepTimer
from hookline.hooks.trigger import Trigger


class DefaultSteps(int):
    """A default number of steps, distinct from the same number given by a user."""


def chosen_trigger(
    who: str,
    trigger: Trigger | None,
    steps: tuple[str, int | None],
    secs: tuple[str, float | None],
    *,
    both: bool = False,
) -> Trigger:
    """Returns the trigger for the arguments of a hook: a trigger, or a named cadence in steps or in seconds.

    With `both`, a hook may have both cadences, and fires at whichever comes first.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: No cadence is given, or too many.
    """
    arguments.instance(who, "trigger", trigger, Trigger)
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
    if steps[1] is not None:
        arguments.whole(who, steps[0], steps[1], at_least=1)
    if secs[1] is not None:
        arguments.number(who, secs[0], secs[1], at_least=0)
    if trigger is not None:
        return trigger
    if len(given) == 2:
        return SecondOrStepTimer(every_secs=secs[1]) | SecondOrStepTimer(every_steps=steps[1])
    return SecondOrStepTimer(every_secs=secs[1], every_steps=steps[1])
