"""What a loop keeps in memory between two sessions, so that the next one goes on where the last one was left."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax

from hookline.graph import GraphKeys
from hookline.session import Session

FROM_MEMORY = "restored from memory"
"""How the `origin` of a session begins that goes on from it."""


@dataclasses.dataclass
class Memory:
    """All that a checkpoint would hold.

    Attributes:
        step: The global step.
        values: By name of the variable. Those arrays are in the hands of the user, too.
        positions: How far the training has come in its iterators, by name.
        hook_states: What hooks keep.
    """

    step: int
    values: dict[str, Any]
    positions: dict[str, Any]
    hook_states: Mapping[str, Any]

    @classmethod
    def of(cls, session: Session) -> Self:
        """Takes it from a session that makes no further run."""
        engine = session.lowlevel
        values, positions = engine.values_with_positions(
            engine.variables(GraphKeys.GLOBAL_VARIABLES), engine.iterators()
        )
        for position in positions.values():
            position.saved()
        where = {name: position.value for name, position in positions.items()}
        return cls(session.global_step, values, where, dict(engine.hook_states()))

    def give_to(self, session: Session) -> None:
        """Has a new session go on from it.

        Raises:
            RuntimeError: Somebody has given the arrays away.
        """
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(self.values)):
            raise RuntimeError(
                f"Loop cannot go on from step {self.step} in memory: arrays of the state that it returned were deleted "
                f"or donated since. Call it with copies of them, or give run() a logdir to go on from."
            )
        session.lowlevel.load(self.values, positions=self.positions)
        session.lowlevel.restored_hook_states = dict(self.hook_states)
        session.origin = f"{FROM_MEMORY}, as it was left at step {self.step}"
