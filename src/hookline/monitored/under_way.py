"""UnderWay: one run, from the hooks' requests to the delivery of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.monitored.rider import Rider
from hookline.monitored.schedule import Schedule
from hookline.session import RunMetadata, RunOptions, Session

_Rest = tuple[Iterator[tuple[int, Rider]], Sequence[Any], RunOptions, RunMetadata]
"""The hooks that have not got the results yet, and the results."""


class UnderWay(SessionRunContext):
    """The context of one run on its way through the hooks; a run that a callback starts has its own."""

    _rest: _Rest | None = None

    def __init__(
        self,
        original_args: SessionRunArgs,
        session: Session,
        runs: int,
        schedule: Schedule,
        settle: Callable[[Schedule, SessionRunContext], None],
    ) -> None:
        # In one call, because each run that a hook is called on makes one of these.
        self.original_args, self.session, self.runs = original_args, session, runs
        self._schedule, self._settle = schedule, settle

    @property
    def expected_step(self) -> int | None:
        """See `SessionRunContext`."""
        return self._schedule.expected_step

    def settle(self) -> None:
        """See `SessionRunContext`."""
        # The hooks after one that settles in its after_run get their results first: it may wait for their work.
        if self._rest is not None:
            self.give(*self._rest)
        self._settle(self._schedule, self)

    def retire(self, hook: Any) -> None:
        """See `SessionRunContext`."""
        self._schedule.retire(hook)

    def ask(self, hook: SessionRunHook) -> SessionRunArgs | None:
        """See `SessionRunContext`."""
        return self._schedule.ask(hook, self)

    def deliver(self, hook: SessionRunHook, run_values: SessionRunValues) -> None:
        """See `SessionRunContext`."""
        self._schedule.deliver(hook, self, run_values)

    def give(
        self, after: Iterable[tuple[int, Rider]], watched: Sequence[Any], options: RunOptions, run_metadata: RunMetadata
    ) -> None:
        """Gives the results to the hooks that have not got them yet."""
        self._rest = after, watched, options, run_metadata = iter(after), watched, options, run_metadata
        try:
            for place, rider in after:
                results = watched[place] if place >= 0 else None
                if rider.after is not None:
                    rider.after(self, SessionRunValues(results, options, run_metadata))
                else:
                    self._schedule.deliver_to(rider, self, results, options, run_metadata)
        finally:
            self._rest = None  # Results must not outlive the run, though a hook may keep the context.
