"""LatchedFirings: calls of hooks whose latch has latched."""

from __future__ import annotations

from collections.abc import Sequence

from hookline.hooks.base import Firing, SessionRunContext
from hookline.hooks.triggers import Latched
from hookline.monitored.hook_record import HookRecord
from hookline.session import RunMetadata, RunOptions, Session

_NO_OPTIONS = RunOptions()


class LatchedFirings:
    """Calls the hooks of a session whose latch has latched, once for each latch.

    Args:
        records: The hooks, each with its latches.
        session: The raw session.
        has_step: Whether the graph has a global step.

    Attributes:
        count: The session's count of latched latches at the last look.
    """

    def __init__(self, records: Sequence[HookRecord], session: Session, *, has_step: bool) -> None:
        self._records, self._session, self._has_step = records, session, has_step
        self.count = session.lowlevel.latched_count

    def deliver(self, context: SessionRunContext, *, wait: bool = False) -> None:
        """Calls the hooks whose latch has latched; with `wait`, it first waits for all runs so far."""
        count = self._session.lowlevel.latched_count
        elapsed: dict[Latched, tuple[float | None, int | None]] = {}  # Hooks may share a trigger.
        for record in self._records:
            for leaf, known in record.latches.items():
                step = self._session.latched(leaf.operation, wait=wait)
                record.latches[leaf] = step is not None
                if step is None or known:
                    continue
                # The other parts of its trigger keep their phases: the step may be long past.
                if leaf not in elapsed:
                    elapsed[leaf] = leaf.update_last_triggered_step(step)
                secs, steps = elapsed[leaf]
                about = (step, steps) if self._has_step else (None, None)
                record.on_trigger(Firing(None, *about, secs, _NO_OPTIONS, RunMetadata(), context))
        self.count = count
