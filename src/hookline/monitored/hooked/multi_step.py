"""MultiStepRunner: makes runs of several steps with hooks; the results have a row for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.monitored.hooked.callbacks import describe
from hookline.monitored.hooked.hook_schedule import HookSchedule
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.stop_request import StopRequest
from hookline.session import STEP_MISMATCH, DeferredResults, RunMetadata, RunOptions, Session

BEFORE_STEP = "before step"
"""The key in `hook_data` of a function to call with the feeds before each step, also in a run of several."""


class MultiStepRunner:
    """Makes a session's runs of several steps.

    Args:
        session: The raw session.
        stop: Counts the runs.
        steps_per_run: The maximum number of steps of a run.

    Attributes:
        before_step: A function to call with the feeds before each step, which is then launched alone, by the same
            program; or None.
    """

    before_step: Callable[[Any], None] | None = None

    def __init__(self, session: Session, stop: StopRequest, steps_per_run: int) -> None:
        self._raw, self._backend = session, session.backend
        self._stop, self._steps_per_run = stop, steps_per_run

    def check_caller(self, feed_dict: Any, options: Any, run_metadata: Any) -> None:
        """Checks that the caller passes no feeds, options or metadata.

        Raises:
            ValueError: The caller passes one of these.
        """
        for name, given in (("feed_dict", feed_dict), ("options", options), ("run_metadata", run_metadata)):
            if given:
                raise ValueError(
                    f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators: a run "
                    f"that advances the global step takes no {name}. Leave out steps_per_run."
                )

    def check_feeders(self, requests: MergedRequests) -> None:
        """Checks that no hook feeds a tensor.

        Raises:
            ValueError: A hook does.
        """
        for hook, _ in requests.hook_feeds:
            raise ValueError(
                f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators, and the "
                f"{describe(hook)} feeds. Leave out steps_per_run."
            )

    def available_steps(self, fetches: Any, max_steps: int, steps_until_due: float) -> int:
        """Returns the number of steps for which there are batches, at most `max_steps`.

        See `RepeatedStep.await_batches`.
        """
        return self._backend.cached_step(fetches, None, self._steps_per_run).await_batches(max_steps, steps_until_due)

    def run(
        self,
        schedule: HookSchedule,
        requests: MergedRequests,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes as many steps as the schedule allows; returns the results of the caller and of the hooks."""
        hook_fetches, run = requests.hook_fetches if requests.has_fetches else None, schedule.run
        try:
            step = self._backend.cached_step(fetches, hook_fetches, self._steps_per_run)
            if options is None and step.computes_hook_fetches and not run.has_per_step_hook:
                if self.before_step is not None and self._backend.known_step == run.start_step:
                    return self._run_singly(self.before_step, schedule, requests, step)
                found = step.run(None, run.start_step, max_steps=run.num_steps, exactly=True)
                if found is not STEP_MISMATCH:
                    result, hook_results, _ = found
                    return result, hook_results if requests.has_fetches else requests.hook_fetches.fetches
            if self._backend.known_step != run.start_step:  # A hook or another thread has set the step.
                schedule.limit_to_one_step()
                options = schedule.options_with_limit(options)
            return self._run_last_separately(schedule, requests, fetches, options, run_metadata)
        except (KeyError, TypeError) as exc:
            requests.attribute_error(exc, self._raw.graph)
            raise

    def _run_singly(
        self, before_step: Callable[[Any], None], schedule: HookSchedule, requests: MergedRequests, step: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Makes the steps of a run with the program of that run, one in each launch."""
        parts = []
        for _ in range(schedule.run.num_steps):
            before_step(None)
            *results, _ = step.run(max_steps=1)
            parts.append(results)
        result, hook_results = _join(requests, parts)
        return result, hook_results if requests.has_fetches else requests.hook_fetches.fetches

    def _run_last_separately(
        self,
        schedule: HookSchedule,
        requests: MergedRequests,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes several steps, the last one in a separate run: the hooks' requests need more than the program."""
        of_each, parts, left = requests.per_step_fetches, [], schedule.run.num_steps - 1
        try:
            while left:
                step = self._backend.cached_step(fetches, of_each, self._steps_per_run)
                if self.before_step is not None:
                    self.before_step(None)
                *results, made = step.run(max_steps=left if self.before_step is None else 1)
                parts.append(results)
                left -= made
            if self.before_step is not None:
                self.before_step(None)
            result, hook_results = self._backend.run_with_hook_fetches(
                fetches, requests.hook_fetches, None, options, run_metadata
            )
        except BaseException:  # Also after a Ctrl-C, the completed steps must be counted.
            made = schedule.run.num_steps - 1 - left
            schedule.count_failed_steps(made)
            self._stop.runs += made
            raise
        parts.append((as_single_row(result), add_row_axis(requests, hook_results)))
        return _join(requests, parts)


def _join(requests: MergedRequests, parts: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Returns the results of a run from those of its parts: the rows of all parts, and the last values."""
    stacked = [hook.stacked for hook in requests.hooks]
    of_hooks = [
        concat_rows([part[1][index] for part in parts]) if stacked[index : index + 1] == [True] else last
        for index, last in enumerate(parts[-1][1])
    ]
    return concat_rows([part[0] for part in parts]), of_hooks


def add_row_axis(requests: MergedRequests, results: Sequence[Any]) -> Sequence[Any]:
    """Adds a leading axis to the results of one step, for the hooks that are `stacked`."""
    pairs = zip(requests.hooks, results, strict=False)  # The operations of every run come last.
    found = [as_single_row(values) if hook.stacked else values for hook, values in pairs]
    return [*found, *results[len(found) :]]


def as_single_row(values: Any) -> Any:
    """Adds a leading axis of size 1 to the values of one step."""
    if isinstance(values, DeferredResults):
        return values.then(as_single_row)
    return jax.tree.map(lambda leaf: leaf[None] if isinstance(leaf, jax.Array) else np.asarray(leaf)[None], values)


def concat_rows(parts: Sequence[Any]) -> Any:
    """Concatenates the rows of several runs."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], DeferredResults):
        *others, last = parts
        return last.then(lambda values: concat_rows([*(part.get() for part in others), values]))
    return jax.tree.map(lambda *rows: (jnp if isinstance(rows[0], jax.Array) else np).concatenate(rows), *parts)
