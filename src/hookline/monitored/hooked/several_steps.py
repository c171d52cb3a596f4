"""SeveralSteps: runs that hold several steps, with the requests of hooks; their values have a row for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.monitored.hooked.callbacks import describe
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.hooked.schedule import Schedule
from hookline.monitored.stop_request import StopRequest
from hookline.session import CHANGED, DeferredResults, RunMetadata, RunOptions, Session


class SeveralSteps:
    """Makes the runs of a session that hold several steps.

    Args:
        session: The raw session.
        stop: Counts the runs.
        steps_per_run: The largest number of steps of a run.
    """

    def __init__(self, session: Session, stop: StopRequest, steps_per_run: int) -> None:
        self._raw, self._low = session, session.lowlevel
        self._stop, self._steps_per_run = stop, steps_per_run

    def check(self, feed_dict: Any, options: Any, run_metadata: Any) -> None:
        """Checks the caller's request.

        Raises:
            ValueError: It has feeds, options or metadata.
        """
        for name, given in (("feed_dict", feed_dict), ("options", options), ("run_metadata", run_metadata)):
            if given:
                raise ValueError(
                    f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators: a run "
                    f"that advances the global step takes no {name}. Leave out steps_per_run."
                )

    def check_feeders(self, requests: MergedRequests) -> None:
        """Checks the requests of hooks.

        Raises:
            ValueError: A hook feeds.
        """
        for hook, _ in requests.feeders:
            raise ValueError(
                f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators, and the "
                f"{describe(hook)} feeds. Leave out steps_per_run."
            )

    def available(self, fetches: Any, most: int, to_come: float) -> int:
        """Returns the number of steps with batches, at most `most`; see `RepeatedStep.available`."""
        return self._low.cached_step(fetches, None, self._steps_per_run).available(most, to_come)

    def run(
        self,
        schedule: Schedule,
        requests: MergedRequests,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes as many steps as the schedule has room for; returns the results of the caller and of the hooks."""
        hook_fetches, run = requests.hook_fetches if requests.has_fetches else None, schedule.run
        try:
            step = self._low.cached_step(fetches, hook_fetches, self._steps_per_run)
            if options is None and step.holds_hook_fetches and not run.is_called:
                found = step.run(None, run.begins_at, most=run.room, exactly=True)
                if found is not CHANGED:
                    result, hook_results, _ = found
                    return result, hook_results if requests.has_fetches else requests.hook_fetches.fetches
            if self._low.known_step != run.begins_at:  # A hook or another thread has moved the step.
                schedule.shorten()
                options = schedule.limited(options)
            return self._run_last_apart(schedule, requests, fetches, options, run_metadata)
        except (KeyError, TypeError) as exc:
            requests.blame(exc, self._raw.graph)
            raise

    def _run_last_apart(
        self,
        schedule: Schedule,
        requests: MergedRequests,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes the last of several steps in a separate run, because its requests need more than the program."""
        of_each, parts, left = requests.of_each_step, [], schedule.run.room - 1
        try:
            while left:
                step = self._low.cached_step(fetches, of_each, self._steps_per_run)
                *results, made = step.run(most=left)
                parts.append(results)
                left -= made
            result, hook_results = self._low.run_with_hook_fetches(
                fetches, requests.hook_fetches, None, options, run_metadata
            )
        except BaseException:  # The steps that were made must be counted.
            made = schedule.run.room - 1 - left
            schedule.count_failed_steps(made)
            self._stop.runs += made
            raise
        parts.append((rows_of_one(result), in_rows(requests, hook_results)))
        stacked = [hook.stacked for hook in requests.hooks]
        of_hooks = [
            joined([part[1][place] for part in parts]) if stacked[place : place + 1] == [True] else last
            for place, last in enumerate(parts[-1][1])
        ]
        return joined([part[0] for part in parts]), of_hooks


def in_rows(requests: MergedRequests, results: Sequence[Any]) -> Sequence[Any]:
    """Returns the hooks' results of one step, as rows for those that take rows."""
    pairs = zip(requests.hooks, results, strict=False)  # The operations of every run come last.
    found = [rows_of_one(values) if hook.stacked else values for hook, values in pairs]
    return [*found, *results[len(found) :]]


def rows_of_one(values: Any) -> Any:
    """Returns the values of one step as a single row."""
    if isinstance(values, DeferredResults):
        return values.then(rows_of_one)
    return jax.tree.map(lambda leaf: leaf[None] if isinstance(leaf, jax.Array) else np.asarray(leaf)[None], values)


def joined(parts: Sequence[Any]) -> Any:
    """Concatenates the rows of several runs."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], DeferredResults):
        *others, last = parts
        return last.then(lambda values: joined([*(part.get() for part in others), values]))
    return jax.tree.map(lambda *rows: (jnp if isinstance(rows[0], jax.Array) else np).concatenate(rows), *parts)
