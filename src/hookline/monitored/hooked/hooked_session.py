"""HookedSession: one run of the graph with the hooks around it; and RunContext, which the hooks get of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hookline import arguments
from hookline.coordination.coordinator import caller
from hookline.graph import Operation, Tensor
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.monitored.hooked.fast_path import FastPath, Make
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.hooked.schedule import Schedule
from hookline.monitored.hooked.session_hook import SessionHook
from hookline.monitored.hooked.several_steps import SeveralSteps, in_rows
from hookline.monitored.session_in_step import InStep
from hookline.monitored.stop_request import StopRequest
from hookline.session import CHANGED, CachedStep, RunMetadata, RunOptions, Session
from hookline.signals import preemption
from hookline.summary.writer_cache import SCOPE

_NO_OPTIONS = RunOptions()

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
        found = self._schedule.by_hook.get(id(hook))
        return super().ask(hook) if found is None else found.request(self._schedule.run, self)

    def deliver(self, hook: SessionRunHook, run_values: SessionRunValues) -> None:
        """See `SessionRunContext`."""
        found = self._schedule.by_hook.get(id(hook))
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


class HookedSession:
    """A raw session with hooks around its runs.

    A run calls `before_run` of the hooks in list order, runs the caller's fetches and theirs at once, and calls
    `after_run` in list order. Hooks that override neither are called when they fire; see `Schedule`.

    Args:
        session: The raw session.
        hooks: The hooks.
        stop: Keeps a hook's request to stop; a new one by default.
        fast_path: The fast path, which makes the runs that need no decision; a new one by default.
        steps_per_run: The largest number of steps of a run. Each of them counts as a run.
        in_step: The agreement with the other processes; None if there are none.

    References:
        The hooked session inside `tf.train.MonitoredSession`.
    """

    def __init__(
        self,
        session: Session,
        hooks: HookList,
        stop: StopRequest | None = None,
        fast_path: FastPath | None = None,
        steps_per_run: int = 1,
        in_step: InStep | None = None,
    ) -> None:
        self._in_step = in_step
        if in_step is not None:
            in_step.meet_while(lambda: self._at_callbacks)
        self.raw, self._low = session, session.lowlevel
        self._stop = stop or StopRequest()
        self._fast_path = fast_path or FastPath()
        self._hooks = hooks
        self._steps_per_run = steps_per_run
        self._several = SeveralSteps(session, self._stop, steps_per_run)
        self._schedule: Schedule | None = None
        self._at_callbacks = False
        self._context: RunContext | None = None  # Of the run under way.
        self._failed_inside = False
        self._runs_before = self._stop.runs
        # The metadata that hooks get of runs that record none: one object, which stays empty.
        self._no_metadata = RunMetadata()

    def use(self, hooks: HookList) -> Schedule:
        """Uses these hooks from the next run on; their declarations are read, and their triggers started."""
        self.end_fast_path()
        self._schedule = schedule = Schedule(
            self.raw,
            hooks,
            self._schedule,
            runs=self._stop.runs,
            steps_per_run=self._steps_per_run,
            in_step=self._in_step,
        )
        self._hooks = hooks
        self.raw.hook_data[HookedSession] = self
        return schedule

    def recall(self, hook: Any) -> None:
        """Starts to call a retired hook on each run again, from the next one on."""
        if self._schedule is not None:
            self._schedule.recall(hook)
            self._fast_path.interrupt()

    def settle(self) -> None:
        """Completes all requests of hooks so far; see `SessionRunContext.settle`."""
        self._between_runs(Schedule.settle, self._stop.request)

    def deliver_arrived(self) -> None:
        """Calls late hooks whose values have arrived."""
        runs = self._stop.runs
        self._between_runs(lambda schedule, context: schedule.deliver_late(context, runs), self._stop.request)

    def salvage(self) -> None:
        """Calls late hooks whose values have arrived, after the loss of the session and before a new one.

        Raises:
            Exception: The error of a hook.
        """
        # As after a failed attempt: the run is retried before the stop takes effect.
        runs = self._stop.runs
        self._between_runs(
            lambda schedule, context: schedule.deliver_late(context, runs, is_lost=True), self._stop.carry
        )

    def _between_runs(
        self, work: Callable[[Schedule, SessionRunContext], None], stop: Callable[[str, str], None]
    ) -> None:
        """Does some work for hooks with its own context; `stop` is called if one of them requests a stop."""
        if self._schedule is not None:
            context = RunContext(SessionRunArgs(None), self.raw, self._stop.runs, self._schedule)
            try:
                work(self._schedule, context)
            finally:
                if context.stop_requested:
                    stop(context.stop_asked_by, context.stop_is_final)

    @property
    def at_rest(self) -> bool:
        """Whether the variables are those after the last completed run: no run has failed half-way since.

        A run that failed in the callback of a hook, or after it had changed variables, counts as half-way.
        """
        return not self._failed_inside

    @property
    def final_stop(self) -> str:
        """The reason for which a hook has requested a final stop, also in the run under way; empty without one.

        Processes in step must agree on a stop before it counts.
        """
        asked = "" if self._context is None or self._stop.agree is not None else self._context.stop_is_final
        return self._stop.final or asked

    @property
    def has_run(self) -> bool:
        """Whether it has made a run."""
        return self._stop.runs + self._fast_path.made > self._runs_before

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Runs the caller's fetches with the hooks.

        Returns:
            The results of the caller's fetches.

        Raises:
            RuntimeError: A hook has requested the stop; or two hooks feed the same tensor.
            BaseException: The error of the run or a callback; errors of the engine are mapped to `hookline.errors`.
        """
        if self._in_step is not None:
            self._in_step.reserve()
            preemption.check()
            self._in_step.use()
        if self._stop.requested:
            raise RuntimeError("Run called even after should_stop requested.")
        if self._fast_path.is_open:
            self.end_fast_path()
        self._at_callbacks = self._failed_inside = False
        writes = self._low.writes
        try:
            schedule = self._schedule or self.use(self._hooks)
            run = schedule.run
            requests = schedule.decide(fetches, feed_dict, self._stop.runs + 1, self._several.available)
            # A latch has latched, or deferred values have arrived.
            has_news = self._low.latched_count != schedule.latched_count
            for results in schedule.awaited:
                has_news = has_news or results.is_ready()
            if run.repeats:
                self._several.check(feed_dict, options, run_metadata)
            if has_news or requests.hooks or schedule.overdue:
                args = SessionRunArgs(fetches, None if feed_dict is None else dict(feed_dict), options)
                result = self._run_with(schedule, requests, args, feed_dict, run_metadata, has_news=has_news)
            elif run.repeats:
                result, _ = self._several.run(schedule, requests, fetches, schedule.limited(None), None)
            else:
                limited = options if self.raw.step_limit is None else schedule.limited(options)
                result, _ = self._make_run(requests, fetches, feed_dict, limited, run_metadata)
            self._stop.runs += run.room
            fast_runs = schedule.finish()
            if schedule.stood > 1:
                self._stop.warn_of_stillness(self.raw.global_step)
            may_continue = options is None and not self._stop.requested and self._in_step is None
            if fast_runs is not None and may_continue:
                make = self._make_of(schedule, fetches, fed=bool(feed_dict))
                self._fast_path.begin(self._low, fetches, fast_runs, make, feeds=bool(feed_dict))
            return result
        except BaseException as exc:  # Whether the variables are those of a whole run must be known.
            mapped = self._failed(exc, writes)
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__ or exc

    def failed_on_fast_path(self, error: BaseException) -> BaseException:
        """Ends the fast path, on which a run has failed with this error; returns it as `run` would have raised it."""
        self.end_fast_path()
        return self._failed(error, self._fast_path.writes)

    def _failed(self, error: BaseException, writes: int) -> BaseException:
        """Notes a run that has failed, and the session's count of writes before it; returns its error, mapped."""
        self._failed_inside = self._at_callbacks or self._low.writes != writes
        return self._low.map_error(error)

    def end_fast_path(self) -> None:
        """Ends the fast path, and counts its runs."""
        made = self._fast_path.end()
        self._stop.runs += made
        if made and self._schedule is not None:
            self._schedule.count_fast_runs(made)

    def _make_of(self, schedule: Schedule, fetches: Any, *, fed: bool) -> Make:
        """Returns the function that makes the runs on the fast path."""
        callers = schedule.callers
        if schedule.run.repeats:
            hook_fetches = callers.hook_fetches if callers.has_fetches else None
            return self._low.cached_step(fetches, hook_fetches, self._steps_per_run).run
        if not (fed or callers.hooks):
            step = callers.known_step if callers.known_fetches is fetches else self._find_step(callers, fetches)
            if step is not None:
                return step.run
        return partial(self._make, schedule, callers, SessionRunArgs(fetches))

    def _make(
        self,
        schedule: Schedule,
        callers: MergedRequests,
        args: SessionRunArgs,
        feed_dict: Mapping[Any, Any] | None,
        expected: int | None,
        following: float,
    ) -> Any:
        """Makes a run on the fast path that needs more than a program: hooks are called on it, or it has feeds."""
        if expected is not None and self._low.known_step != expected:
            return CHANGED
        if feed_dict:
            args = SessionRunArgs(args.fetches, dict(feed_dict))
        outer = SCOPE.set(self._fast_path.scope)
        try:
            if not callers.hooks:
                return self._make_run(callers, args.fetches, feed_dict, None, None)[0], None, 1
            schedule.begin_fast_run()
            result = self._run_with(schedule, callers, args, feed_dict, None, fast_runs=self._fast_path.made)
            if schedule.callers is not callers or schedule.overdue:
                self._fast_path.interrupt()
            return result, None, 1
        finally:
            SCOPE.reset(outer)

    def _run_with(
        self,
        schedule: Schedule,
        requests: MergedRequests,
        args: SessionRunArgs,
        feed_dict: Mapping[Any, Any] | None,
        run_metadata: RunMetadata | None,
        *,
        has_news: bool = False,
        fast_runs: int = 0,
    ) -> Any:
        """Makes a run with hooks around it."""
        runs, run = self._stop.runs + fast_runs, schedule.run
        context = RunContext(args, self.raw, runs, schedule)
        fetches, options = args.fetches, args.options
        self._at_callbacks = True
        self._context = context
        try:
            if has_news:
                schedule.deliver_late(context, runs)
                schedule.deliver_latched(context)
            if requests.may_request:
                requests.ask(run, context)
            self._at_callbacks = False
            if self.raw.step_limit is not None:
                options = schedule.limited(options)  # A hook may have moved the step.
            if requests.options:
                options = requests.merged_options(options)
            has_requests = requests.has_requests or run.repeats
            if run_metadata is None and has_requests and options is not None and _wants_metadata(options):
                run_metadata = RunMetadata()
            if run.repeats:
                self._several.check_feeders(requests)
                result, hook_results = self._several.run(schedule, requests, fetches, options, run_metadata)
            else:
                result, hook_results = self._make_run(requests, fetches, feed_dict, options, run_metadata)
            if requests.stacked and not run.repeats:
                hook_results = in_rows(requests, hook_results)
            self._at_callbacks = True
            context.give(
                schedule.receivers(requests), hook_results, options or _NO_OPTIONS, run_metadata or self._no_metadata
            )
            if run.waits:
                schedule.deliver_late(context, runs + run.room)
            self._at_callbacks = False
        except BaseException:  # A stop that a hook has requested must not be lost with the run.
            if context.stop_requested:
                self._stop.carry(context.stop_asked_by, context.stop_is_final)
            raise
        finally:
            self._context = None
            if requests.feeders or requests.stale:
                requests.forget_feeds()
        if context.stop_requested or self._stop.carried:
            self._stop.request(context.stop_asked_by, context.stop_is_final)
            self._fast_path.interrupt()
        return result

    def _make_run(
        self,
        requests: MergedRequests,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes a run of one step, with what hooks request; returns the results of the caller and of the hooks."""
        feeds = requests.merged_feeds(feed_dict, self.raw.graph) if requests.feeders else feed_dict
        if options is None and run_metadata is None and not feeds and self._in_step is None:
            step = requests.known_step if requests.known_fetches is fetches else self._find_step(requests, fetches)
            if step is not None:
                result, hook_results, _ = step.run()
                return result, hook_results if requests.has_fetches else requests.hook_fetches.fetches
        if not requests.has_fetches:
            return self.raw.run(fetches, feeds, options, run_metadata), requests.hook_fetches.fetches
        try:
            if self._in_step is not None:
                self._in_step.asks(requests.asking)
            return self._low.run_with_hook_fetches(fetches, requests.hook_fetches, feeds, options, run_metadata)
        except (KeyError, TypeError, ValueError) as exc:
            requests.blame(exc, self.raw.graph)
            raise
        finally:
            if self._in_step is not None:
                self._in_step.asks("")

    def _find_step(self, requests: MergedRequests, fetches: Any) -> CachedStep | None:
        """Finds the cached step of runs with these requests and no feeds; None if they are more than a program."""
        hook_fetches = requests.hook_fetches if requests.has_fetches else None
        try:
            step = self._low.cached_step(fetches, hook_fetches)
        except (KeyError, TypeError, ValueError):  # The run itself raises the error.
            return None
        if isinstance(fetches, Tensor | Operation | str) and (step is None or step.is_kept):
            requests.known_fetches, requests.known_step = fetches, step
        return step


def recall(hook: Any, session: Session) -> None:
    """Calls a hook that has retired (`SessionRunContext.retire`) on each run of this raw session again."""
    hooked = session.hook_data.get(HookedSession)
    if hooked is not None:
        hooked.recall(hook)


def _wants_metadata(options: RunOptions) -> bool:
    """Returns whether a run with these options records metadata; with a step limit, whether it was applied."""
    return (
        options.last_step is not None
        or options.trace_level > 0
        or options.output_partition_graphs
        or bool(options.debug_tensor_watches)
    )
