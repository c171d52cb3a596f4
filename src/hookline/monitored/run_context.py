"""RunContext: the context of one run, from the requests of the hooks to the delivery of their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookline import arguments
from hookline.coordination.coordinator import caller
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.monitored.schedule import Schedule
from hookline.monitored.session_hook import SessionHook
from hookline.session import RunMetadata, RunOptions, Session

_Rest = tuple[Iterator[tuple[int, SessionHook]], Sequence[Any], RunOptions, RunMetadata]
"""The hooks without their results so far, and the results."""


class RunContext(SessionRunContext):
    """The context of one run, for its hooks; a run that a callback starts has its own.

    Args:
        original_args: The request of the caller.
        session: The raw session.
        runs: The number of runs made before.
        schedule: The schedule of the session.

    Attributes:
        stop_asked_by: The code that has called `request_stop` first, in words.
        stop_is_final: The reason of the first final request; empty without one.
    """

    _rest: _Rest | None = None
    stop_asked_by = stop_is_final = ""

    def __init__(self, original_args: SessionRunArgs, session: Session, runs: int, schedule: Schedule) -> None:
        # In one call, because each run with a hook makes such a context.
        self.original_args, self.session, self.runs, self._schedule = original_args, session, runs, schedule

    @property
    def expected_step(self) -> int | None:
        """See `SessionRunContext`."""
        return self._schedule.expected_step

    def settle(self) -> None:
        """See `SessionRunContext`."""
        # The hooks after one that settles in its after_run get their results first: it may wait for their work.
        if self._rest is not None:
            self.give(*self._rest)
        self._schedule.settle(self)

    def request_stop(self, *, final: str | None = None) -> None:
        """See `SessionRunContext`."""
        why = arguments.text("request_stop", "final", final, optional=True)
        self.stop_requested, self.stop_asked_by = True, self.stop_asked_by or caller()
        self.stop_is_final = self.stop_is_final or why or ""

    def retire(self, hook: Any) -> None:
        """See `SessionRunContext`."""
        self._schedule.retire(hook)

    def ask(self, hook: SessionRunHook) -> SessionRunArgs | None:
        """See `SessionRunContext`."""
        found = self._schedule.find(hook)
        return super().ask(hook) if found is None else found.request(self._schedule.run, self)

    def deliver(self, hook: SessionRunHook, run_values: SessionRunValues) -> None:
        """See `SessionRunContext`."""
        found = self._schedule.find(hook)
        if found is None:
            super().deliver(hook, run_values)
        else:
            found.deliver(self._schedule.run, self, *run_values)

    def give(
        self,
        after: Iterable[tuple[int, SessionHook]],
        hook_results: Sequence[Any],
        options: RunOptions,
        run_metadata: RunMetadata,
    ) -> None:
        """Gives the results to each hook, unless it has got them already.

        Example:
            Four hooks in list order, of which the second saves a checkpoint, and settles first:

                Count.after_run            gets its results
                Save.after_run             calls settle(): the rest is given now
                    Check.after_run        gets its results, so the checkpoint holds its state of this step
                    Print.on_trigger       fires
                    late firings, latches  of this run and of earlier ones
                Save.after_run             goes on, and saves; after it nothing is left to give
        """
        rest, run = iter(after), self._schedule.run
        self._rest = rest, hook_results, options, run_metadata
        try:
            for place, hook in rest:
                results = hook_results[place] if place >= 0 else None
                if hook.after is not None:
                    hook.after(self, SessionRunValues(results, options, run_metadata))
                else:
                    hook.deliver(run, self, results, options, run_metadata)
        finally:
            self._rest = None  # Results must not outlive the run, though a hook may keep the context.
