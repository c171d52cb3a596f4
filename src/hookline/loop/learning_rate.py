"""The learning rates of a loop, if its step does not return them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hookline import log
from hookline.graph import Tensor, op
from hookline.loop.counter import Counter, leaf_of
from hookline.loop.optimizer_state import learning_rates, part_of, schedule_counts
from hookline.loop.step import called
from hookline.paths import is_in, with_paths

_logger = log.of(__name__)

NAME = "learning_rate"


def learning_rates_of(
    given: Any, state: Tensor, after: Tensor, global_step: Tensor, counter: Counter | None, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Returns the learning rates of the step, by the names of their metrics; none if they are not known.

    Args:
        given: A schedule, a function from the count of updates so far to the rate; a dict of them by parts of the
            state; or None for the rates in `optax.inject_hyperparams`.
        state: The state before the step.
        after: The state after the step. Its optimizer state has the rate of the step.
        global_step: The global step before the step, for a state without a count.
        counter: The step counter of the state, for an optimizer without a count.
        names: The parameters of the step, by the keys of their parts of the state.

    Raises:
        TypeError: A schedule is no function, or does not return a number for a count.
        ValueError: Several optimizers may be meant, or a part has no optimizer with a count.
    """
    if given is None:
        found = learning_rates(state.spec)
        return {
            NAME if len(found) == 1 else f"{NAME}/{part_of(path, names)}": leaf_of(after, place, state.spec)
            for path, place in found.items()
        }
    counts = schedule_counts(state.spec)
    if isinstance(given, Mapping):
        if not given:
            raise ValueError("Loop requires a schedule for at least one optimizer as learning_rate, got an empty dict.")
        keys = {name: key for key, name in names.items()}
        return {
            f"{NAME}/{part}": _rate(schedule, state, _count_in(str(part), keys, counts))
            for part, schedule in given.items()
        }
    if len(counts) > 1:
        example = ", ".join(f"{part_of(path, names)!r}: ..." for path in counts)
        raise ValueError(
            f"Loop: the schedule of learning_rate gets the count of an optimizer, and the state has {len(counts)}: "
            f"{', '.join(counts)}. Give one for each: learning_rate={{{example}}}."
        )
    place = next(iter(counts.values()), None if counter is None else counter.place)
    return {NAME: _rate(given, state, place, global_step)}


def _count_in(part: str, keys: Mapping[str, str], counts: Mapping[str, int]) -> int:
    """Returns the count of the only optimizer in a part of the state."""
    first, slash, rest = part.strip("/").partition("/")
    path = keys.get(first, first) + slash + rest
    found = [place for optimizer, place in counts.items() if is_in(path, optimizer)]
    if len(found) != 1:
        raise ValueError(
            f"Loop: learning_rate names the part {part!r}, and the state has {len(found) or 'no'} optimizers with a "
            f"count there. It has: {', '.join(counts) or 'none at all'}."
        )
    return found[0]


def _rate(
    schedule: Callable[[Any], Any], state: Tensor, place: int | None, global_step: Tensor | None = None
) -> Tensor:
    if not callable(schedule):
        raise TypeError(
            f"Loop requires a schedule as learning_rate, a function from a count of updates to a rate, or a dict of "
            f"them, got {schedule!r}."
        )
    count = global_step if place is None else leaf_of(state, place, state.spec)
    assert count is not None, "Only a part has no other count."
    refusal = f"Loop requires a schedule that returns one number for a count, and {called(schedule)} does not"
    try:
        made = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), count.spec.dtype))
    except Exception as error:
        raise TypeError(f"{refusal}: {error}") from error
    if getattr(made, "shape", None) != ():
        raise TypeError(f"{refusal}.")
    counted = "the global step" if place is None else with_paths(state.spec)[0][place][0]
    _logger.info("Loop: %s, the schedule of learning_rate, gets %s.", called(schedule), counted)
    return op(lambda count: jnp.asarray(schedule(count)), name=NAME)(count)
