"""MovingAverages: the exponential moving averages (EMA) of a loop's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hookline import arguments
from hookline.graph import Tensor, Variable, op, update
from hookline.loop.load import AVERAGE
from hookline.loop.step.optimizer_state import optimizer_leaf_mask
from hookline.loop.step.optimizer_steps import OptimizerSteps
from hookline.loop.step.state_forms import NnxState, PytreeState, accumulator_mask
from hookline.paths import flatten_with_paths, is_path_prefix
from hookline.session import Session


class MovingAverages:
    """Exponential moving averages (EMA) of a state.

    Each optimizer step moves them by the fraction `1 - decay` towards the new values. They are a variable called
    `average`, a tree like the state with None for leaves without an average. Averages of 16-bit floats are kept in
    float32, because small updates would be lost.

    Args:
        ema: As in `Loop`.
        state: The variable of the state.
        after: The state after the step.
        form: The form of the state. Its metrics are not averaged.
        steps: The optimizer steps.

    Attributes:
        variable: The variable of the averages.
        update_op: The operation that updates the averages in a step.
        averaged: The state with averages in place of the averaged leaves.

    Raises:
        TypeError, ValueError: As in `Loop`.
    """

    def __init__(
        self, ema: Any, state: Variable, after: Tensor, form: PytreeState | NnxState, steps: OptimizerSteps
    ) -> None:
        self._decays = decays = _decays(ema, state.spec, accumulator_mask(form))
        shardings = None
        if state.shardings:
            kept = [
                sharding if decay is not None else None for sharding, decay in zip(state.shardings, decays, strict=True)
            ]
            shardings = jax.tree.structure(state.spec).unflatten(kept)
        initial = op(self._averaged_leaves, name="initial_average")(state.initial_value)
        self.variable = Variable(initial, name=AVERAGE, trainable=False, sharding=shardings)
        named = zip(flatten_with_paths(state.spec)[0], decays, strict=True)
        ended = [steps.update_mask(path) for (path, _), decay in named if decay is not None]
        self.update_op = update(self.variable, self._update, after, ended, name="average")
        self.averaged = op(self.merge_into, name="averaged")(state, self.variable)

    def _averaged_leaves(self, values: Any) -> Any:
        """Returns the averaged leaves of a state, in float32 or wider."""
        leaves, structure = jax.tree.flatten(values)
        pairs = zip(leaves, self._decays, strict=True)
        return structure.unflatten(
            [None if decay is None else leaf.astype(_at_least_float32(leaf)) for leaf, decay in pairs]
        )

    def _update(self, averages: Any, values: Any, ended: list[Any]) -> Any:
        decays = [decay for decay in self._decays if decay is not None]
        old, structure = jax.tree.flatten(averages)
        moved = [
            before - (1 - decay) * (before - value)
            for before, value, decay in zip(old, jax.tree.leaves(self._averaged_leaves(values)), decays, strict=True)
        ]
        triples = zip(old, moved, ended, strict=True)
        return structure.unflatten([new if end is None else jnp.where(end, new, kept) for kept, new, end in triples])

    def merge_into(self, values: Any, averages: Any) -> Any:
        """Returns a state with averages in place of the averaged leaves."""
        leaves, structure = jax.tree.flatten(values)
        new = iter(jax.tree.leaves(averages))
        pairs = zip(leaves, self._decays, strict=True)
        return structure.unflatten([leaf if decay is None else next(new).astype(leaf.dtype) for leaf, decay in pairs])

    def reset(self, session: Session, state: Variable) -> None:
        """Sets the averages to the current values of the state."""
        values = jax.tree.map(jnp.copy, self._averaged_leaves(session.backend.borrow_value(state)))
        session.backend.load({self.variable.op.name: values}, owned=True)

    def to_user(self, session: Session, form: PytreeState | NnxState, values: Any) -> Any:
        """Returns the averaged state of a session that is about to be closed, as the user's state."""
        return form.to_state(self.merge_into(values, session.backend.borrow_value(self.variable)))


def _decays(ema: Any, spec: Any, metrics: list[bool]) -> list[float | None]:
    """Returns the decay of each leaf; None for a leaf without an average, such as those marked in `metrics`."""
    named = flatten_with_paths(spec)[0]
    can_be = {
        path: jnp.issubdtype(leaf.dtype, jnp.inexact) and not is_metric
        for (path, leaf), is_metric in zip(named, metrics, strict=True)
    }
    if isinstance(ema, Mapping):
        if not ema:
            raise ValueError("Loop requires a decay for at least one part of the state as ema, got an empty dict.")
        parts = {str(part).strip("/"): _decay(decay) for part, decay in ema.items()}
        for part in parts:
            if not any(is_path_prefix(part, path) for path in can_be if can_be[path]):
                raise ValueError(
                    f"Loop: ema names the part {part!r}, and the state has no floating point arrays there. It has: "
                    f"{', '.join(path for path in can_be if can_be[path])}."
                )
        found = []
        for path in can_be:
            part = max((part for part in parts if is_path_prefix(part, path)), key=len, default=None)
            found.append(None if part is None or not can_be[path] else parts[part])
        return found
    decay = _decay(ema)
    own = optimizer_leaf_mask(spec)
    found = [decay if can_be[path] and not is_slot else None for path, is_slot in zip(can_be, own, strict=True)]
    if not any(each is not None for each in found):
        raise ValueError("Loop: ema averages floating point arrays, and the state has none outside its optimizer.")
    return found


def _decay(given: Any) -> float:
    decay = arguments.check_number("Loop", "ema", given, at_least=0)
    if decay >= 1:
        raise ValueError(f"Loop requires a decay from 0 to below 1 as ema, such as 0.999, got {given!r}.")
    return float(decay)


def _at_least_float32(leaf: Any) -> Any:
    return jnp.promote_types(leaf.dtype, jnp.float32)
