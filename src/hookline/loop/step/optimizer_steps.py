"""The step counters in a state: comparison with the global step, and the steps that end an optimizer step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments, log
from hookline.checkpoint.directory import leaves as paths
from hookline.graph import Tensor, op
from hookline.hooks import Firing, SessionRunHook, first_then_every
from hookline.loop.step.optimizer_state import optimizer_paths, schedule_counts, short_name, update_counts
from hookline.loop.step_call import function_name
from hookline.paths import is_path_prefix
from hookline.signals.interrupts import calls_user_code

_logger = log.get_logger(__name__)


# `TrainState.step`, the `step` of an NNX optimizer in a tuple, the "step" of a dict.
_COUNTER = re.compile(r"(\d+/)?step")
_EVERY_STEPS = 100


class StepCounter(NamedTuple):
    """A step counter in a state.

    Attributes:
        path: The path of its leaf.
        leaf_index: The index of its leaf.
        like: A state of this structure.
    """

    path: str
    leaf_index: int
    like: Any

    def tensor_in(self, state: Tensor) -> Tensor:
        """Returns the counter as a part of the tensor of a state."""
        return leaf_tensor(state, self.leaf_index, self.like)


def leaf_tensor(state: Tensor, index: int, like: Any) -> Tensor:
    """Returns a leaf of a tensor as a tensor of its own, so that a fetch reads no other leaf.

    Args:
        state: The tensor; its own structure may be unknown.
        index: The index of the leaf.
        like: A tree of the same structure.
    """
    for key in jax.tree.leaves_with_path(like)[index][0]:
        if hasattr(key, "name"):
            state = getattr(state, key.name)
        else:
            state = state[getattr(key, "key", getattr(key, "idx", None))]
    return state


def find_step_counter(values: Any, parts: Iterable[Any] = ()) -> StepCounter | None:
    """Finds the step counter of a state: an integer called `step`, near the top.

    Args:
        values: The state.
        parts: The names of its parts, if these are separate parameters of the step.
    """
    in_parts = {f"{part}/step" for part in parts}
    for index, (path, leaf) in enumerate(paths.flatten_with_paths(values)[0]):
        if (
            (_COUNTER.fullmatch(path) or path in in_parts)
            and np.shape(leaf) == ()
            and jnp.issubdtype(leaf.dtype, jnp.integer)
        ):
            return StepCounter(path, index, values)
    return None


class CounterHook(SessionRunHook):
    """Warns if the step counter of the state differs from the global step.

    It compares them after the first step and every 100 steps, when the value is ready.

    Args:
        counter: The counter.
        path: Its path.
        optimizer_steps: Returns the number of optimizer steps up to a global step. A counter may count these.
    """

    deferred = True

    def __init__(self, counter: Tensor, path: str, optimizer_steps: Callable[[int], int]) -> None:
        self.fetches = counter
        self.trigger = first_then_every(_EVERY_STEPS)
        self._path, self._optimizer_steps = path, optimizer_steps
        self._difference = 0

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._difference = 0

    def on_trigger(self, firing: Firing) -> None:
        """Compares the counter with the global step."""
        step, counter = firing.global_step, int(np.asarray(firing.values))
        assert step is not None, "a trigger in steps"
        if (updates := self._optimizer_steps(step)) != step and abs(counter - updates) <= 1:
            return  # It counts optimizer steps, according to `steps_per_update`.
        if counter - step != self._difference:
            self._difference = counter - step
            _logger.warning(
                "Loop: the state counts %d steps at %r, and the global step is %d. Schedules use the first, "
                "checkpoints and summaries the second. They differ if a step does not increment its counter by one, "
                "and after on_nan skipped updates or rolled back.",
                counter,
                self._path,
                step,
            )


NAME = "optimizer_step"
_REMEDY = "Give Loop(steps_per_update=...) the every_k_schedule of optax.MultiSteps, such as 4"


class OptimizerSteps:
    """Computes which steps of a loop end an optimizer step, for steps that accumulate gradients.

    Example:
        `optax.MultiSteps(optimizer, 4)` accumulates gradients in steps 1 to 3, and updates the parameters in step 4.
        Its `gradient_step` is 1 after step 4, and 2 after step 8. Averages are updated in these two steps only.

    Args:
        steps_per_update: As in `Loop`.
        state: The state before a step.
        after: The state after the step.
        global_step: The global step before the step.
        names: The parameters of the step, by the keys of their parts of the state.

    Attributes:
        counts: The paths of the update counts in the state; empty if it has no `optax.MultiSteps`.
        description: How optimizer steps are counted, in words; empty if each step is an optimizer step.

    Raises:
        TypeError, ValueError: As in `Loop`.
    """

    def __init__(
        self, steps_per_update: Any, state: Tensor, after: Tensor, global_step: Tensor, names: Mapping[str, str]
    ) -> None:
        self._state, self._after, self._global_step, self._names = state, after, global_step, names
        self._optimizers = optimizer_paths(state.spec)
        self._count_indices = update_counts(state.spec)
        self.counts = list(self._count_indices)
        self._given = _checked(steps_per_update, self.counts)
        self._update_ends = np.zeros(1, int)
        self._updated: dict[int | None, Tensor] = {}
        self.description = ""
        if self.counts or self._accumulates:
            counted = " and ".join(f"{path} (optax.MultiSteps)" for path in self.counts)
            self.description = (
                f"optimizer steps are counted by {counted or f'the global step, one for each {self._given}'}; ema and "
                f"{NAME} go by that, and last_step, cadences and checkpoints by the global step, one for each batch"
            )

    @property
    def _accumulates(self) -> bool:
        return callable(self._given) or (self._given or 1) > 1

    def count_tensors(self) -> dict[str, Tensor]:
        """Returns the counts of optimizer steps after the step, by name; none if each step is an optimizer step."""
        if self.counts:
            found = {
                path: leaf_tensor(self._after, index, self._state.spec) for path, index in self._count_indices.items()
            }
            return {
                NAME if len(found) == 1 else f"{NAME}/{short_name(path, self._names)}": count
                for path, count in found.items()
            }
        if not self._accumulates:
            return {}
        return {NAME: op(lambda step: (step + 1) // self._given, name=NAME)(self._global_step)}

    def update_mask(self, path: str) -> Tensor | None:
        """Returns whether the step ends an optimizer step for an array of the state; None if each step does.

        The optimizer of an array is in the same part of the state: two train states `g` and `d` have one each.

        Raises:
            ValueError: Several optimizers may be the array's.
        """
        index, is_every = self._count_for(path)
        if is_every:
            return None
        if index not in self._updated:
            if index is None:
                self._updated[None] = op(lambda step: (step + 1) % self._given == 0, name="updated")(self._global_step)
            else:
                counts = [leaf_tensor(values, index, self._state.spec) for values in (self._state, self._after)]
                self._updated[index] = op(lambda before, after: before != after, name="updated")(*counts)
        return self._updated[index]

    def _count_for(self, path: str) -> tuple[int | None, bool]:
        """Returns the index of the count for an array, None for the global step; and whether each step is an update."""
        shared = {optimizer: _common_depth(optimizer, path) for optimizer in self._optimizers}
        nearest = [optimizer for optimizer in shared if shared[optimizer] == max(shared.values())]
        found = [count for count in self.counts if any(is_path_prefix(optimizer, count) for optimizer in nearest)]
        if len(nearest) == len(found) == 1:
            return self._count_indices[found[0]], False
        if isinstance(self._given, int) and (found or not self.counts):
            return None, self._given == 1
        if not found:
            return None, True
        raise ValueError(
            f"Loop: the average of {path} is updated with the steps of its optimizer, which may be "
            f"{' or '.join(nearest)} (counts of optax.MultiSteps: {', '.join(found)}). Put the parameters and their "
            f"optimizer into one part of the state, such as {{'generator': {{'params': ..., 'opt_state': ...}}}}; or "
            f"give the number of steps of one optimizer step, such as steps_per_update=4."
        )

    def check_hook(self) -> OptimizerStepHook | None:
        """Returns a hook that compares `steps_per_update` with the count in the state; None without both."""
        indices = self._count_indices or schedule_counts(self._state.spec)
        if not self._accumulates or len(indices) != 1:
            return None
        ((path, index),) = indices.items()
        return OptimizerStepHook(leaf_tensor(self._after, index, self._state.spec), path, self)

    def updates_at(self, step: int) -> int:
        """Returns the number of optimizer steps up to a global step, by `steps_per_update`."""
        if not callable(self._given):
            return step // (self._given or 1)
        while self._update_ends[-1] <= step:
            first = len(self._update_ends) - 1
            self._update_ends = np.append(
                self._update_ends, self._update_ends[-1] + np.cumsum(self._update_lengths(first, first + 1000))
            )
        return int(np.searchsorted(self._update_ends, step, side="right")) - 1

    def step_of(self, update: int) -> int:
        """Returns the global step that ends an optimizer step, as in `Loop.step_of_update`."""
        arguments.check_int("Loop.step_of_update", "update", update, at_least=0)
        if callable(self._given):
            return int(self._update_lengths(0, update).sum())
        if self._given is None and self.counts:
            raise ValueError(
                f"Loop.step_of_update: {' and '.join(self.counts)} (optax.MultiSteps) does not say how many steps an "
                f"optimizer step has. {_REMEDY}."
            )
        return update * (self._given or 1)

    def _update_lengths(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """Returns the number of steps in each optimizer step of a range."""
        given = calls_user_code(lambda count: jnp.asarray(self._given(count)))
        found = np.asarray(jax.vmap(given)(jnp.arange(first, last)), int)
        if (found < 1).any():
            raise ValueError(f"Loop requires numbers above 0 from steps_per_update, got {found.min()}.")
        return found


class OptimizerStepHook(SessionRunHook):
    """Warns if the optimizer steps in the state do not match `steps_per_update`, at most once in a session.

    It compares them after the first step and every 100 steps, when the value is ready.
    """

    deferred = True

    def __init__(self, count: Tensor, path: str, steps: OptimizerSteps) -> None:
        self.fetches = count
        self.trigger = first_then_every(_EVERY_STEPS)
        self._path, self._steps = path, steps
        self._warned = False

    def begin(self) -> None:
        """Forgets an earlier session."""
        self._warned = False

    def on_trigger(self, firing: Firing) -> None:
        """Compares the counts."""
        step, found = firing.global_step, int(np.asarray(firing.values))
        assert step is not None, "a trigger in steps"
        wanted = self._steps.updates_at(step)
        # A user's own accumulation may update in the first of its steps rather than in the last.
        if abs(found - wanted) > 1 and not self._warned:
            self._warned = True
            _logger.warning(
                "Loop: by steps_per_update there are %d optimizer steps up to the global step %d, and the optimizer "
                "has counted %d, at %r. %s. They also differ after skipped updates.",
                wanted,
                step,
                found,
                self._path,
                _REMEDY,
            )


def _checked(given: Any, counts: list[str]) -> Any:
    """Returns the checked argument `steps_per_update`."""
    if given is None or not callable(given):
        return None if given is None else arguments.check_int("Loop", "steps_per_update", given, at_least=1)
    if not counts:
        raise ValueError(
            "Loop takes a function as steps_per_update if the state has the count of optax.MultiSteps, and this state "
            "has none. Give a number of steps."
        )
    made = jax.eval_shape(lambda count: jnp.asarray(given(count)), jax.ShapeDtypeStruct((), "int32"))
    if made.shape != () or not jnp.issubdtype(made.dtype, jnp.integer):
        raise TypeError(
            f"Loop requires a function from a count of optimizer steps to an integer as steps_per_update, and "
            f"{function_name(given)} returns {made.dtype}{list(made.shape)}."
        )
    return given


def _common_depth(one: str, other: str) -> int:
    """Returns the number of leading keys that two paths have in common."""
    pairs = zip(one.split("/"), other.split("/"), strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), len(one.split("/")))
