"""The memory of a loop between two sessions, from which the next one resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax

from hookline import log
from hookline.checkpoint import lineage
from hookline.checkpoint.lineage import Lineage
from hookline.graph import GraphKeys
from hookline.loop.passes import Made
from hookline.session import Session
from hookline.session.origin import FROM_MEMORY

_logger = log.of(__name__)


@dataclasses.dataclass
class Memory:
    """The content of a checkpoint, in memory.

    Attributes:
        step: The global step.
        values: The values of variables, by name. The user has references to these arrays, too.
        positions: The positions of iterators, by name.
        hook_states: The states of hooks.
        passes: The passes over the data.
        lineage: That of the last save; None if there was none.
    """

    step: int
    values: dict[str, Any]
    positions: dict[str, Any]
    hook_states: Mapping[str, Any]
    passes: Made
    lineage: Lineage | None = None

    @classmethod
    def of(cls, session: Session, passes: Made) -> Self:
        """Takes the content from a session that makes no further run."""
        engine = session.lowlevel
        values, positions = engine.values_with_positions(
            engine.variables(GraphKeys.GLOBAL_VARIABLES), engine.iterators()
        )
        for position in positions.values():
            position.saved()
        where = {name: position.value for name, position in positions.items()}
        return cls(session.global_step, values, where, dict(engine.hook_states()), passes, lineage.last_of(session))

    def warn_left(self, session: Session, logdir: str | None) -> None:
        """Warns if a session begins at another step, which is that of a checkpoint."""
        if session.global_step != self.step:
            _logger.warning(
                "Loop: it goes on from the checkpoint in '%s', at step %d, and not from step %d, where it stopped.",
                logdir,
                session.global_step,
                self.step,
            )

    def give_to(self, session: Session) -> None:
        """Resumes a new session from the memory.

        Raises:
            RuntimeError: The user has donated or deleted the arrays.
        """
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(self.values)):
            raise RuntimeError(
                f"Loop cannot go on from step {self.step} in memory: arrays of the returned state were deleted or "
                f"donated since. Donate copies of them, or give run() a logdir with a checkpoint."
            )
        session.lowlevel.load(self.values, positions=self.positions)
        session.lowlevel.restored_hook_states = dict(self.hook_states)
        lineage.restored(session, self.lineage)
        session.origin = FROM_MEMORY
