"""HookedSession: makes runs with hooks around them; RunContext: the context of a run, for its hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hookline import arguments
from hookline.coordination.coordinator import caller
from hookline.graph import Operation, Tensor
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from hookline.monitored.hooked.fast_path import FastPath, FastRunFunction
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.hook_schedule import HookSchedule
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.hooked.multi_step import BEFORE_STEP, MultiStepRunner, add_row_axis
from hookline.monitored.hooked.scheduled_hook import ScheduledHook
from hookline.monitored.spmd_sync import SpmdSync
from hookline.monitored.stop_request import StopRequest
from hookline.session import STEP_MISMATCH, CachedStep, RunMetadata, RunOptions, Session
from hookline.signals import preemption
from hookline.summary.writer_cache import WRITER_SCOPE

_NO_OPTIONS = RunOptions()

_Undelivered = tuple[Iterator[tuple[int, ScheduledHook]], Sequence[Any], RunOptions, RunMetadata]
"""The hooks without their results so far, all results, the options and the metadata."""


class RunContext(SessionRunContext):
    """The context of one run, for its hooks.

    Args:
        original_args: The request of the caller.
        session: The raw session.
        runs: The number of earlier runs.
        schedule: The schedule of the session.

    Attributes:
        stop_requested_by: A description of the code that first called `request_stop`.
        final_stop_reason: The reason of the first final request; empty without one.
    """

    _undelivered: _Undelivered | None = None
    stop_requested_by = final_stop_reason = ""

    def __init__(self, original_args: SessionRunArgs, session: Session, runs: int, schedule: HookSchedule) -> None:
        # Without `super().__init__`, which takes time: each run with a hook creates a context.
        self.original_args, self.session, self.runs, self._schedule = original_args, session, runs, schedule

    @property
    def expected_step(self) -> int | None:
        """See `SessionRunContext`."""
        return self._schedule.expected_step

    def deliver_pending(self) -> None:
        """See `SessionRunContext`."""
        # If the after_run of a hook calls this, the later hooks first get their results: the hook may depend on them.
        if self._undelivered is not None:
            self.deliver_results(*self._undelivered)
        self._schedule.deliver_pending(self)

    def request_stop(self, *, final: str | None = None) -> None:
        """See `SessionRunContext`."""
        why = arguments.check_str("request_stop", "final", final, optional=True)
        self.stop_requested, self.stop_requested_by = True, self.stop_requested_by or caller()
        self.final_stop_reason = self.final_stop_reason or why or ""

    def stop_callbacks(self, hook: Any) -> None:
        """See `SessionRunContext`."""
        self._schedule.stop_callbacks(hook)

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

    def deliver_results(
        self,
        hooks: Iterable[tuple[int, ScheduledHook]],
        hook_results: Sequence[Any],
        options: RunOptions,
        run_metadata: RunMetadata,
    ) -> None:
        """Gives the hooks their results, each hook once.

        Example:
            The second of four hooks saves a checkpoint, and delivers pending results first:

                Count.after_run               gets its results
                Save.after_run                calls deliver_pending(), which calls the others first:
                    Check.after_run           gets its results, so the checkpoint has its state of this step
                    Print.on_trigger          fires
                    deferred hooks, latches   of this run and earlier ones
                Save.after_run                continues, and saves; then no hook is left
        """
        rest, run = iter(hooks), self._schedule.run
        self._undelivered = rest, hook_results, options, run_metadata
        try:
            for index, hook in rest:
                results = hook_results[index] if index >= 0 else None
                if hook.after_run is not None:
                    hook.after_run(self, SessionRunValues(results, options, run_metadata))
                else:
                    hook.deliver(run, self, results, options, run_metadata)
        finally:
            self._undelivered = None  # Results must not outlive the run, though a hook may keep the context.


class HookedSession:
    """Makes the runs of a raw session with hooks around them.

    It calls every `before_run` in list order, runs the caller's and the hooks' fetches together, and calls every
    `after_run` in list order. A hook that overrides neither is called when it fires; see `HookSchedule`.

    Args:
        session: The raw session.
        hooks: The hooks.
        stop: Records a hook's request to stop; a new one by default.
        fast_path: The fast path, for the runs before which no trigger is asked; a new one by default.
        steps_per_run: The maximum number of steps of a run. Each step counts as a run.
        spmd: Synchronises the SPMD processes; None in a single process.

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
        spmd: SpmdSync | None = None,
    ) -> None:
        self._spmd = spmd
        if spmd is not None:
            spmd.set_in_hooks(lambda: self._in_callbacks)
        self.raw, self._backend = session, session.backend
        self._stop = stop or StopRequest()
        self._fast_path = fast_path or FastPath()
        self._hooks = hooks
        self._steps_per_run = steps_per_run
        self._multi_step = MultiStepRunner(session, self._stop, steps_per_run)
        self._schedule: HookSchedule | None = None
        self._before_step: Callable[[Mapping[Any, Any] | None], None] | None = None
        self._in_callbacks = False
        self._context: RunContext | None = None  # Of the run under way.
        self._failed_midway = False
        self._runs_before = self._stop.runs
        # Hooks of runs that record no metadata get this object, which stays empty.
        self._no_metadata = RunMetadata()

    def set_hooks(self, hooks: HookList) -> HookSchedule:
        """Replaces the hooks from the next run on: reads their declarations, and starts their triggers."""
        self.end_fast_path()
        self._schedule = schedule = HookSchedule(
            self.raw,
            hooks,
            self._schedule,
            runs=self._stop.runs,
            steps_per_run=self._steps_per_run,
            spmd=self._spmd,
        )
        self._hooks = hooks
        self._multi_step.before_step = self._before_step = self.raw.hook_data.get(BEFORE_STEP)
        self.raw.hook_data[HookedSession] = self
        return schedule

    def resume_callbacks(self, hook: Any) -> None:
        """Resumes the run callbacks of a hook, from the next run on."""
        if self._schedule is not None:
            self._schedule.resume_callbacks(hook)
            self._fast_path.stop()

    def deliver_pending(self) -> None:
        """Delivers all results that hooks wait for; see `SessionRunContext.deliver_pending`."""
        self._call_between_runs(HookSchedule.deliver_pending, self._stop.request)

    def deliver_ready(self) -> None:
        """Calls the deferred hooks whose values are ready."""
        runs = self._stop.runs
        self._call_between_runs(lambda schedule, context: schedule.deliver_deferred(context, runs), self._stop.request)

    def deliver_after_loss(self) -> None:
        """Calls the deferred hooks whose values are ready, after the session is lost and before a new one is made.

        Raises:
            Exception: The error of a hook.
        """
        # If a hook requests a stop, the failed run is retried first, and the stop takes effect after it.
        runs = self._stop.runs
        self._call_between_runs(
            lambda schedule, context: schedule.deliver_deferred(context, runs, session_lost=True),
            self._stop.request_after_retry,
        )

    def _call_between_runs(
        self, work: Callable[[HookSchedule, SessionRunContext], None], request_stop: Callable[[str, str], None]
    ) -> None:
        """Calls `work` with the schedule and a new context; calls `request_stop` if a hook then requests a stop."""
        if self._schedule is not None:
            context = RunContext(SessionRunArgs(None), self.raw, self._stop.runs, self._schedule)
            try:
                work(self._schedule, context)
            finally:
                if context.stop_requested:
                    request_stop(context.stop_requested_by, context.final_stop_reason)

    @property
    def is_state_consistent(self) -> bool:
        """Whether the variables have their values after the last completed run.

        They have not if a run failed in the callback of a hook, or after it had changed variables.
        """
        return not self._failed_midway

    @property
    def final_stop_reason(self) -> str:
        """The reason of a final stop that a hook has requested, also in the run under way; empty without one.

        In SPMD processes a request counts only when all have agreed on the stop.
        """
        asked = "" if self._context is None or self._stop.propose is not None else self._context.final_stop_reason
        return self._stop.final_reason or asked

    @property
    def has_run(self) -> bool:
        """Whether this session has made a run."""
        return self._stop.runs + self._fast_path.num_runs > self._runs_before

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
            RuntimeError: A stop was requested, or two hooks feed the same tensor.
            BaseException: The error of the run or a callback; errors of the JAX runtime become `hookline.errors`.
        """
        if self._spmd is not None:
            self._spmd.reserve_run()
            preemption.check()
            self._spmd.use_reservation()
        if self._stop.requested:
            raise RuntimeError("Run called even after should_stop requested.")
        if self._fast_path.is_active:
            self.end_fast_path()
        self._in_callbacks = self._failed_midway = False
        writes = self._backend.write_count
        try:
            schedule = self._schedule or self.set_hooks(self._hooks)
            run = schedule.run
            requests = schedule.plan_run(fetches, feed_dict, self._stop.runs + 1, self._multi_step.available_steps)
            # Whether hooks must be called before this run: a latch is set, or deferred values are ready.
            has_ready_results = self._backend.latched_count != schedule.latched_count
            for results in schedule.pending_results:
                has_ready_results = has_ready_results or results.is_ready()
            if run.is_multi_step:
                self._multi_step.check_caller(feed_dict, options, run_metadata)
            if has_ready_results or requests.hooks or schedule.ask_now:
                args = SessionRunArgs(fetches, None if feed_dict is None else dict(feed_dict), options)
                result = self._run_with_hooks(
                    schedule, requests, args, feed_dict, run_metadata, has_ready_results=has_ready_results
                )
            elif run.is_multi_step:
                result, _ = self._multi_step.run(schedule, requests, fetches, schedule.options_with_limit(None), None)
            else:
                limited = options if self.raw.step_limit is None else schedule.options_with_limit(options)
                result, _ = self._run_once(requests, fetches, feed_dict, limited, run_metadata)
            self._stop.runs += run.num_steps
            fast_runs = schedule.finish_run()
            if schedule.stalled_runs > 1:
                self._stop.warn_stalled(self.raw.global_step)
            may_continue = options is None and not self._stop.requested and self._spmd is None
            may_continue = may_continue and self._before_step is None
            if fast_runs is not None and may_continue:
                make = self._fast_run_function(schedule, fetches, fed=bool(feed_dict))
                self._fast_path.begin(self._backend, fetches, fast_runs, make, allow_feeds=bool(feed_dict))
            return result
        except BaseException as exc:  # Also after a Ctrl-C, `is_state_consistent` must be right.
            mapped = self._note_failure(exc, writes)
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__ or exc

    def handle_fast_path_failure(self, error: BaseException) -> BaseException:
        """Ends the fast path after a run on it has failed; returns the error that `run` would have raised."""
        self.end_fast_path()
        return self._note_failure(error, self._fast_path.writes_before)

    def _note_failure(self, error: BaseException, writes: int) -> BaseException:
        """Records a failed run, given the count of writes to variables before it; returns the mapped error."""
        self._failed_midway = self._in_callbacks or self._backend.write_count != writes
        return self._backend.map_error(error)

    def end_fast_path(self) -> None:
        """Ends the fast path, and counts its runs."""
        made = self._fast_path.end()
        self._stop.runs += made
        if made and self._schedule is not None:
            self._schedule.count_fast_runs(made)

    def _fast_run_function(self, schedule: HookSchedule, fetches: Any, *, fed: bool) -> FastRunFunction:
        """Returns the function that makes the runs on the fast path."""
        always_called = schedule.always_called
        if schedule.run.is_multi_step:
            hook_fetches = always_called.hook_fetches if always_called.has_fetches else None
            return self._backend.cached_step(fetches, hook_fetches, self._steps_per_run).run
        if not (fed or always_called.hooks):
            step = (
                always_called.known_step
                if always_called.known_fetches is fetches
                else self._find_step(always_called, fetches)
            )
            if step is not None:
                return step.run
        return partial(self._run_fast, schedule, always_called, SessionRunArgs(fetches))

    def _run_fast(
        self,
        schedule: HookSchedule,
        always_called: MergedRequests,
        args: SessionRunArgs,
        feed_dict: Mapping[Any, Any] | None,
        expected_step: int | None,
        max_runs: float,
    ) -> Any:
        """Makes a run on the fast path that needs more than the call of a program: it has hooks or feeds."""
        if expected_step is not None and self._backend.known_step != expected_step:
            return STEP_MISMATCH
        if feed_dict:
            args = SessionRunArgs(args.fetches, dict(feed_dict))
        outer = WRITER_SCOPE.set(self._fast_path.scope)
        try:
            if not always_called.hooks:
                return self._run_once(always_called, args.fetches, feed_dict, None, None)[0], None, 1
            schedule.begin_fast_run()
            result = self._run_with_hooks(
                schedule, always_called, args, feed_dict, None, fast_runs=self._fast_path.num_runs
            )
            if schedule.always_called is not always_called or schedule.ask_now:
                self._fast_path.stop()
            return result, None, 1
        finally:
            WRITER_SCOPE.reset(outer)

    def _run_with_hooks(
        self,
        schedule: HookSchedule,
        requests: MergedRequests,
        args: SessionRunArgs,
        feed_dict: Mapping[Any, Any] | None,
        run_metadata: RunMetadata | None,
        *,
        has_ready_results: bool = False,
        fast_runs: int = 0,
    ) -> Any:
        """Makes a run with hooks around it."""
        runs, run = self._stop.runs + fast_runs, schedule.run
        context = RunContext(args, self.raw, runs, schedule)
        fetches, options = args.fetches, args.options
        self._in_callbacks = True
        self._context = context
        try:
            if has_ready_results:
                schedule.deliver_deferred(context, runs)
                schedule.deliver_latched(context)
            if requests.may_request:
                requests.collect(run, context)
            self._in_callbacks = False
            if self.raw.step_limit is not None:
                options = schedule.options_with_limit(options)  # A hook may have set the step.
            if requests.options:
                options = requests.merged_options(options)
            has_requests = requests.has_requests or run.is_multi_step
            if run_metadata is None and has_requests and options is not None and _wants_metadata(options):
                run_metadata = RunMetadata()
            if run.is_multi_step:
                self._multi_step.check_feeders(requests)
                result, hook_results = self._multi_step.run(schedule, requests, fetches, options, run_metadata)
            else:
                result, hook_results = self._run_once(requests, fetches, feed_dict, options, run_metadata)
            if requests.any_stacked and not run.is_multi_step:
                hook_results = add_row_axis(requests, hook_results)
            self._in_callbacks = True
            context.deliver_results(
                schedule.receivers(requests), hook_results, options or _NO_OPTIONS, run_metadata or self._no_metadata
            )
            if run.has_deferred:
                schedule.deliver_deferred(context, runs + run.num_steps)
            self._in_callbacks = False
        except BaseException:  # A stop that a hook has requested must not be lost with the run.
            if context.stop_requested:
                self._stop.request_after_retry(context.stop_requested_by, context.final_stop_reason)
            raise
        finally:
            self._context = None
            if requests.hook_feeds or requests.stale:
                requests.drop_feeds()
        if context.stop_requested or self._stop.requested_for_retry:
            self._stop.request(context.stop_requested_by, context.final_stop_reason)
            self._fast_path.stop()
        return result

    def _run_once(
        self,
        requests: MergedRequests,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes a run of one step with the hooks' requests; returns the results of the caller and of the hooks."""
        feeds = requests.merged_feeds(feed_dict, self.raw.graph) if requests.hook_feeds else feed_dict
        if self._before_step is not None and self._schedule is not None and self._schedule.run.step_delta != 0:
            self._before_step(feeds)
        if options is None and run_metadata is None and not feeds and self._spmd is None:
            step = requests.known_step if requests.known_fetches is fetches else self._find_step(requests, fetches)
            if step is not None:
                result, hook_results, _ = step.run()
                return result, hook_results if requests.has_fetches else requests.hook_fetches.fetches
        if not requests.has_fetches:
            return self.raw.run(fetches, feeds, options, run_metadata), requests.hook_fetches.fetches
        try:
            if self._spmd is not None:
                self._spmd.set_fetching_hooks(requests.fetching_hooks)
            return self._backend.run_with_hook_fetches(fetches, requests.hook_fetches, feeds, options, run_metadata)
        except (KeyError, TypeError, ValueError) as exc:
            requests.attribute_error(exc, self.raw.graph)
            raise
        finally:
            if self._spmd is not None:
                self._spmd.set_fetching_hooks("")

    def _find_step(self, requests: MergedRequests, fetches: Any) -> CachedStep | None:
        """Finds the cached step for runs with these requests and no feeds; None if they need more than a program."""
        hook_fetches = requests.hook_fetches if requests.has_fetches else None
        try:
            step = self._backend.cached_step(fetches, hook_fetches)
        except (KeyError, TypeError, ValueError):  # The run itself raises the error.
            return None
        if isinstance(fetches, Tensor | Operation | str) and (step is None or step.is_cacheable):
            requests.known_fetches, requests.known_step = fetches, step
        return step


def resume_callbacks(hook: Any, session: Session) -> None:
    """Resumes the callbacks of a hook after `SessionRunContext.stop_callbacks`, for this raw session.

    Example:
        >>> import hookline as hl
        >>> from hookline.extend import resume_callbacks
        >>> class Once(hl.train.SessionRunHook):
        ...     def after_run(self, run_context, run_values):
        ...         print("run", run_context.runs)
        ...         run_context.stop_callbacks(self)
        >>> once, value = Once(), hl.constant(1)
        >>> with hl.train.MonitoredSession(hooks=[once]) as sess:
        ...     _ = sess.run(value), sess.run(value)
        ...     resume_callbacks(once, sess.raw_session())
        ...     _ = sess.run(value)
        run 0
        run 2
    """
    hooked = session.hook_data.get(HookedSession)
    if hooked is not None:
        hooked.resume_callbacks(hook)


def _wants_metadata(options: RunOptions) -> bool:
    """Returns whether a run with these options records metadata, such as whether a step limit applied."""
    return (
        options.last_step is not None
        or options.trace_level > 0
        or options.output_partition_graphs
        or bool(options.debug_tensor_watches)
    )
