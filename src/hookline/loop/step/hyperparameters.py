"""Compares the hyperparameters of a state with those of the script, and finds the learning rates of a loop."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline import log
from hookline.coordination import Coordinator, process_group
from hookline.graph import Tensor, Variable, op, placement
from hookline.hooks import SessionRunHook
from hookline.hooks.reporting.console import ConsoleHook
from hookline.loop.step.optimizer_state import learning_rates, schedule_counts, short_name
from hookline.loop.step.optimizer_steps import StepCounter, leaf_tensor
from hookline.loop.step.state_forms import is_function
from hookline.loop.step_call import function_name
from hookline.loop.warm_start import set_leaves
from hookline.paths import flatten_with_paths, is_path_prefix
from hookline.session import Session
from hookline.session.origin import FROM_MEMORY
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)


_FROM_SCRIPT = "CheckpointOptions(restore_hyperparams=False)"


class HyperparametersHook(SessionRunHook):
    """Reports the hyperparameters of `optax.inject_hyperparams` that differ between a checkpoint and the script.

    It logs them, and the console of a training that goes on shows them.

    Unless `keep_checkpoint_values` is set, it sets them to the script's: when a training resumes, in a new process or
    in memory, and when a recovery goes back to an earlier step. Callbacks: `begin` and `after_create_session`.

    Args:
        state: The variable of the state.
        given: The initial state, or the function that makes it.
        indices: The leaf indices of the hyperparameters in the state, at least one, by path.

    Attributes:
        keep_checkpoint_values: Whether a training resumes with the hyperparameters of the checkpoint.
    """

    def __init__(self, state: Variable, given: Any, indices: Mapping[str, int]) -> None:
        self._state, self._leaf_indices = state, indices
        # If a function makes the state, only its hyperparameters are computed, and only when they are needed.
        self._script_values: dict[str, Any] = {
            path: leaf_tensor(state.initial_value, index, state.spec)
            if is_function(given)
            else _host_scalar(jax.tree.leaves(given)[index])
            for path, index in self._leaf_indices.items()
        }
        self.keep_checkpoint_values = True
        self._set_at_step: int | None = None

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._set_at_step = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compares the hyperparameters, if the state came from a checkpoint or from memory."""
        if not session.origin.startswith(("restored", "begun with")):
            return
        is_first = self._set_at_step is None
        if not is_first and (self.keep_checkpoint_values or session.global_step > (self._set_at_step or 0)):
            return  # A recovery: the checkpoint has the values that this hook set, and later changes of the step.
        self._set_at_step = session.global_step
        leaves = jax.tree.leaves(session.backend.borrow_value(self._state))
        found = {path: leaves[index] for path, index in self._leaf_indices.items()}
        computed = session.run(
            {path: value for path, value in self._script_values.items() if isinstance(value, Tensor)}
        )
        given = self._script_values | computed
        different = {path: value for path, value in given.items() if _host_scalar(value) != _host_scalar(found[path])}
        if process_group.is_primary():
            for path in different:
                before = "the previous run" if session.origin.startswith(FROM_MEMORY) else "the checkpoint"
                text = self._difference_text(path, before, _host_scalar(found[path]), _host_scalar(given[path]))
                _logger.info("Loop: %s", text)
                console = session.hook_data.get(ConsoleHook)
                is_shown = log.is_shown(_logger, logging.INFO, sys.stderr)
                if console is not None and not coord.should_stop() and not is_shown:
                    console.show(session, text)
        if different and not self.keep_checkpoint_values:
            set_leaves(session, self._state, different)

    def _difference_text(self, path: str, before: str, saved: Any, given: Any) -> str:
        name = f"{path.rpartition('/')[2]} ({path})"
        if not self.keep_checkpoint_values:
            return f"{name} is {given!s}, as in the script; in {before} it is {saved!s}."
        return f"{name} is {saved!s}, as in {before}; in the script it is {given!s}. {_FROM_SCRIPT} takes the script's."


def _host_scalar(value: Any) -> Any:
    return np.asarray(placement.addressable_data(value) if isinstance(value, jax.Array) else value)[()]


NAME = "learning_rate"


def learning_rates_of(
    given: Any, state: Tensor, after: Tensor, global_step: Tensor, counter: StepCounter | None, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Returns the learning rates of the step, by the names of their metrics; none if they are not known.

    Args:
        given: A schedule, a function from the count of updates so far to the rate; a dict of them by parts of the
            state; or None for the rates in `optax.inject_hyperparams`.
        state: The state before the step.
        after: The state after the step. With `optax.inject_hyperparams` it contains the rate of the step.
        global_step: The global step before the step, for a state without a count.
        counter: The step counter of the state, for an optimizer without a count.
        names: The parameters of the step, by the keys of their parts of the state.

    Raises:
        TypeError: A schedule is not a function, or does not return a number for a count.
        ValueError: A schedule may be that of several optimizers, or a part has no optimizer with a count.
    """
    if given is None:
        found = learning_rates(state.spec)
        return {
            NAME if len(found) == 1 else f"{NAME}/{short_name(path, names)}": leaf_tensor(after, index, state.spec)
            for path, index in found.items()
        }
    counts = schedule_counts(state.spec)
    if isinstance(given, Mapping):
        if not given:
            raise ValueError("Loop requires a schedule for at least one optimizer as learning_rate, got an empty dict.")
        keys = {name: key for key, name in names.items()}
        return {
            f"{NAME}/{part}": _rate_tensor(schedule, state, _optimizer_count(str(part), keys, counts))
            for part, schedule in given.items()
        }
    if len(counts) > 1:
        example = ", ".join(f"{short_name(path, names)!r}: ..." for path in counts)
        raise ValueError(
            f"Loop: the schedule of learning_rate gets the count of an optimizer, and the state has {len(counts)}: "
            f"{', '.join(counts)}. Give one for each: learning_rate={{{example}}}."
        )
    index = next(iter(counts.values()), None if counter is None else counter.leaf_index)
    return {NAME: _rate_tensor(given, state, index, global_step)}


def _optimizer_count(part: str, keys: Mapping[str, str], counts: Mapping[str, int]) -> int:
    """Returns the leaf index of the count of the only optimizer in a part of the state."""
    first, slash, rest = part.strip("/").partition("/")
    path = keys.get(first, first) + slash + rest
    found = [index for optimizer, index in counts.items() if is_path_prefix(path, optimizer)]
    if len(found) != 1:
        raise ValueError(
            f"Loop: learning_rate names the part {part!r}, and the state has {len(found) or 'no'} optimizers with a "
            f"count there. It has: {', '.join(counts) or 'none at all'}."
        )
    return found[0]


def _rate_tensor(
    schedule: Callable[[Any], Any], state: Tensor, index: int | None, global_step: Tensor | None = None
) -> Tensor:
    if not callable(schedule):
        raise TypeError(
            f"Loop requires a schedule as learning_rate, a function from a count of updates to a rate, or a dict of "
            f"them, got {schedule!r}."
        )
    count = global_step if index is None else leaf_tensor(state, index, state.spec)
    assert count is not None, "Without an index the caller gives the global step."
    refusal = f"Loop requires a schedule that returns one number for a count, and {function_name(schedule)} does not"
    try:
        made = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), count.spec.dtype))
    except Exception as error:
        raise TypeError(f"{refusal}: {error}") from error
    if getattr(made, "shape", None) != ():
        raise TypeError(f"{refusal}.")
    counted = "the global step" if index is None else flatten_with_paths(state.spec)[0][index][0]
    _logger.info("Loop: %s, the schedule of learning_rate, gets %s.", function_name(schedule), counted)
    return op(calls_user_code(lambda count: jnp.asarray(schedule(count))), name=NAME)(count)
