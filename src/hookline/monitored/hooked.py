"""HookedSession: one run of the graph with the hooks around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from hookline import preemption
from hookline.hooks.base import SessionRunArgs, SessionRunContext
from hookline.monitored.callbacks import describe
from hookline.monitored.hook_list import HookList
from hookline.monitored.in_step import InStep
from hookline.monitored.quiet import Make, Quiet
from hookline.monitored.ridership import Ridership
from hookline.monitored.rows import joined, rows_of_one
from hookline.monitored.schedule import Schedule
from hookline.monitored.stop_request import StopRequest
from hookline.monitored.under_way import UnderWay
from hookline.session import CHANGED, CachedStep, HookFetches, RunMetadata, RunOptions, Session
from hookline.summary.writer_cache import SCOPE

_logger = logging.getLogger(__name__)

_NO_OPTIONS = RunOptions()


class _Known(NamedTuple):
    """The cached step of a run with hooks, which is valid as long as their requests are the same.

    Args:
        step: The cached step.
        watched: The hooks' fetches.
    """

    step: CachedStep
    watched: HookFetches


class HookedSession:
    """A raw session with hooks around its runs.

    A run calls `before_run` of the hooks in list order, runs the caller's fetches and theirs at once, and calls
    `after_run` in list order. Hooks that override neither are called when they fire; see `Schedule`.

    Args:
        session: The raw session.
        hooks: The hooks.
        stop: Keeps a hook's request to stop; a new one by default.
        quiet: The fast path, which makes the runs that need no decision; a new one by default.
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
        quiet: Quiet | None = None,
        steps_per_run: int = 1,
        in_step: InStep | None = None,
    ) -> None:
        self._in_step = in_step
        if in_step is not None:
            in_step.meet_while(lambda: self._at_callbacks)
        self.raw, self._low = session, session.lowlevel
        self._stop = stop or StopRequest()
        self._quiet = quiet or Quiet()
        self._hooks = hooks
        self._steps_per_run = steps_per_run
        self._schedule: Schedule | None = None
        self._at_callbacks = False
        self._failed_inside = False
        self._passed = 0
        self._runs_before = self._stop.runs
        # The metadata that hooks get of runs that record none: one object, which stays empty.
        self._no_metadata = RunMetadata()

    def use(self, hooks: HookList) -> Schedule:
        """Uses these hooks from the next run on; their declarations are read, and their triggers started."""
        self.let_go()
        before = self._schedule
        if before is not None:
            before.let_pass(self._passed)
            self._passed = 0
        self._schedule = schedule = Schedule(
            self.raw,
            hooks,
            before,
            runs=self._stop.runs,
            steps_per_run=self._steps_per_run,
            in_step=self._in_step,
        )
        self._hooks = hooks
        self.raw.hook_data[HookedSession] = self
        return schedule

    @property
    def schedule(self) -> Schedule:
        """The schedule, between two runs."""
        self.let_go()
        schedule = self._schedule or self.use(self._hooks)
        schedule.let_pass(self._passed)
        self._passed = 0
        return schedule

    @property
    def steps_per_run(self) -> int:
        """How many steps one of its runs may hold."""
        return self._steps_per_run

    @property
    def runs(self) -> int:
        """How many runs the monitored session has made."""
        return self._stop.runs + self._quiet.made

    def recall(self, hook: Any) -> None:
        """Starts to call a retired hook on each run again, from the next one on."""
        if self._schedule is not None:
            self._schedule.recall(hook)
            self._quiet.interrupt()

    def settle(self) -> None:
        """Completes all requests of hooks so far; see `SessionRunContext.settle`."""
        self._between_runs(self._settle, self._stop.request)

    def _settle(self, schedule: Schedule, context: SessionRunContext) -> None:
        self.raw.settle()
        schedule.deliver_late(context)
        schedule.look_at_latches(context, wait=True)

    def deliver_arrived(self) -> None:
        """Calls late hooks whose values have arrived."""
        self._between_runs(
            lambda schedule, context: schedule.deliver_late(context, self._stop.runs), self._stop.request
        )

    def salvage(self) -> None:
        """Calls late hooks whose values have arrived, after the loss of the session and before a new one.

        Raises:
            Exception: The error of a hook.
        """
        # As after a failed attempt: the run is retried before the stop takes effect.
        self._between_runs(
            lambda schedule, context: schedule.deliver_late(context, self._stop.runs, is_lost=True), self._stop.carry
        )

    def _between_runs(self, work: Callable[[Schedule, SessionRunContext], None], stop: Callable[[], None]) -> None:
        """Does some work for hooks with its own context; `stop` is called if one of them requests a stop."""
        if self._schedule is not None:
            context = UnderWay(SessionRunArgs(None), self.raw, self._stop.runs, self._schedule, self._settle)
            try:
                work(self._schedule, context)
            finally:
                if context.stop_requested:
                    stop()

    @property
    def at_rest(self) -> bool:
        """Whether the variables are those after the last completed run: no run has failed half-way since.

        A run that failed in the callback of a hook, or after it had changed variables, counts as half-way.
        """
        return not self._failed_inside

    @property
    def has_run(self) -> bool:
        """Whether it has made a run."""
        return self.runs > self._runs_before

    def should_stop(self) -> bool:
        """Returns whether a hook has requested the stop."""
        return self._stop.requested or self._stop.carried

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
            RuntimeError: A hook has requested the stop; or two feed the same tensor.
            BaseException: The error of the run or a callback; errors of the engine are mapped to `hookline.errors`.
        """
        if self._in_step is not None:
            self._in_step.reserve()
            preemption.check()
            self._in_step.use()
        if self._stop.requested:
            raise RuntimeError("Run called even after should_stop requested.")
        if self._quiet.is_open:
            self.let_go()
        self._at_callbacks = self._failed_inside = False
        writes = self._low.writes
        try:
            schedule = self._schedule or self.use(self._hooks)
            passed, self._passed = self._passed, 0
            riders = schedule.decide(fetches, feed_dict, self._stop.runs + 1, passed, self._available)
            has_news = self._low.latched_count != schedule.alarms  # A latch has latched, or late values have arrived.
            for results in schedule.awaited:
                has_news = has_news or results.is_ready()
            if schedule.repeats:
                self._check_plain(feed_dict, options, run_metadata)
            if has_news or riders.riding or schedule.overdue:
                args = _args(fetches, feed_dict, options)
                result = self._run_with(schedule, riders, args, feed_dict, run_metadata, has_news=has_news)
            elif schedule.repeats:
                result, _ = self._run_several(schedule, riders, fetches, schedule.limited(None), None)
            else:
                limited = options if self.raw.step_limit is None else schedule.limited(options)
                result = self._run_alone(riders, fetches, feed_dict, limited, run_metadata)
            self._stop.runs += schedule.room
            foreseen = schedule.finish()
            if schedule.still:
                self._stop.warn_of_stillness(self.raw.global_step)
            capacity = self._steps_per_run if schedule.repeats else 1
            may_pass = options is None and not self._stop.requested and self._in_step is None
            if foreseen is not None and foreseen.runs >= capacity and may_pass:
                make = self._make_of(schedule, fetches, fed=bool(feed_dict))
                self._quiet.begin(self._low, fetches, foreseen, make, feeds=bool(feed_dict), capacity=capacity)
            return result
        except BaseException as exc:
            self._failed_inside = self._at_callbacks or self._low.writes != writes
            mapped = self._low.map_error(exc)
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__ or exc

    def raise_as_run(self, error: BaseException) -> NoReturn:
        """Raises the error of a run on the fast path, as `run` would have raised it."""
        self.let_go()
        self._failed_inside = self._at_callbacks or self._low.writes != self._quiet.writes
        mapped = self._low.map_error(error)
        if mapped is error:
            raise error
        raise mapped from mapped.__cause__ or error

    def let_go(self) -> None:
        """Ends the fast path, and counts its runs."""
        made = self._quiet.end()
        self._stop.runs += made
        self._passed += made

    def _make_of(self, schedule: Schedule, fetches: Any, *, fed: bool) -> Make:
        """Returns the function that makes the foreseen runs."""
        callers = schedule.callers
        watched = callers.watched if callers.watches or callers.riding else None
        if schedule.repeats:
            step = self._low.repeated_step(fetches, watched, self._steps_per_run)
            return partial(self._quiet.make_several, step, self._steps_per_run)
        is_more = fed or callers.stale or callers.feeders or callers.options
        step = None if is_more else self._low.cached_step(fetches, watched)
        if step is not None and not callers.riding:
            return step.run_program
        known = None if step is None else _Known(step, callers.watched)
        return partial(self._make, schedule, callers, SessionRunArgs(fetches), known)

    def _make(
        self,
        schedule: Schedule,
        callers: Ridership,
        args: SessionRunArgs,
        known: _Known | None,
        feed_dict: Mapping[Any, Any] | None,
        expected: int | None,
    ) -> Any:
        """Makes a foreseen run that needs more than a program: hooks that are called on it, or summary writers."""
        if expected is not None and self._low.known_step != expected:
            return CHANGED
        if feed_dict:
            args = _args(args.fetches, feed_dict, None)
        outer = SCOPE.set(self._quiet.scope)
        try:
            if not callers.riding:
                return (self._run_alone(callers, args.fetches, feed_dict, None, None),)
            schedule.go_on()
            result = self._run_with(schedule, callers, args, feed_dict, None, known, passed=self._quiet.made)
            if schedule.callers is not callers or schedule.overdue:
                self._quiet.interrupt()
            return (result,)
        finally:
            SCOPE.reset(outer)

    def _run_alone(
        self,
        riders: Ridership,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> Any:
        """Makes a run without hooks, with the operations of every run."""
        if riders.watches:
            return self._low.run_with_hook_fetches(fetches, riders.watched, feed_dict, options, run_metadata)[0]
        return self.raw.run(fetches, feed_dict, options, run_metadata)

    def _run_with(
        self,
        schedule: Schedule,
        riders: Ridership,
        args: SessionRunArgs,
        feed_dict: Mapping[Any, Any] | None,
        run_metadata: RunMetadata | None,
        known: _Known | None = None,
        *,
        has_news: bool = False,
        passed: int = 0,
    ) -> Any:
        """Makes a run with hooks around it."""
        runs = self._stop.runs + passed
        context = UnderWay(args, self.raw, runs, schedule, self._settle)
        fetches, options = args.fetches, args.options
        self._at_callbacks = True
        try:
            if has_news:
                schedule.deliver_late(context, runs)
                schedule.look_at_latches(context)
            if riders.may_ask:
                riders.ask(context)
            self._at_callbacks = False
            if self.raw.step_limit is not None:
                options = schedule.limited(options)  # A hook may have moved the step.
            if known is not None and known.watched is riders.watched and options is None:
                result, watched = known.step.run_program()
            elif schedule.repeats:
                self._check_feeders(riders)
                options = riders.merged_options(options) if riders.options else options
                if run_metadata is None and options is not None and _records(options):
                    run_metadata = RunMetadata()
                result, watched = self._run_several(schedule, riders, fetches, options, run_metadata)
            elif riders.asks:
                result, watched, options, run_metadata = self._run_watched(
                    riders, fetches, feed_dict, options, run_metadata
                )
            else:
                result, watched = self.raw.run(fetches, feed_dict, options, run_metadata), riders.watched.fetches
            if riders.stacked and not schedule.repeats:
                watched = riders.in_rows(watched)
            self._at_callbacks = True
            context.give(schedule.came_out(riders), watched, options or _NO_OPTIONS, run_metadata or self._no_metadata)
            if schedule.waits:
                schedule.deliver_late(context, runs + schedule.room)
            self._at_callbacks = False
        except BaseException:
            if context.stop_requested:
                self._stop.carry()
            raise
        finally:
            if riders.feeders or riders.stale:
                riders.forget_feeds()
        if context.stop_requested or self._stop.carried:
            self._stop.request()
            self._quiet.interrupt()
        return result

    def _check_plain(self, feed_dict: Any, options: Any, run_metadata: Any) -> None:
        for name, given in (("feed_dict", feed_dict), ("options", options), ("run_metadata", run_metadata)):
            if given:
                raise ValueError(
                    f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators: a run "
                    f"that advances the global step takes no {name}. Leave out steps_per_run."
                )

    def _check_feeders(self, riders: Ridership) -> None:
        for hook, _ in riders.feeders:
            raise ValueError(
                f"steps_per_run={self._steps_per_run} needs runs that take their batches from iterators, and the "
                f"{describe(hook)} feeds. Leave out steps_per_run."
            )

    def _available(self, fetches: Any, most: int, to_come: float) -> int:
        """Returns the number of steps with batches, at most `most`; see `RepeatedStep.available`."""
        return self._low.repeated_step(fetches, None, self._steps_per_run).available(most, to_come)

    def _run_several(
        self,
        schedule: Schedule,
        riders: Ridership,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes as many steps as the schedule has room for; returns both results."""
        watched = riders.watched if riders.watches else None
        try:
            step = self._low.repeated_step(fetches, watched, self._steps_per_run)
            if options is None and step.holds_hook_fetches and not schedule.is_called:
                found = step.run_several(schedule.room, schedule.begins_at, exactly=True)
                if found is not CHANGED:
                    _, (result, results) = found
                    return result, results if riders.watches else riders.watched.fetches
            if self._low.known_step != schedule.begins_at:  # A hook or another thread has moved the step.
                schedule.shorten()
                options = schedule.limited(options)
            return self._run_apart(schedule, riders, fetches, options, run_metadata)
        except (KeyError, TypeError) as exc:
            riders.blame(exc, self.raw.graph)
            raise

    def _run_apart(
        self,
        schedule: Schedule,
        riders: Ridership,
        fetches: Any,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any]]:
        """Makes the last of several steps in a separate run, because its requests need more than the program."""
        of_each, parts, left = riders.of_each_step, [], schedule.room - 1
        try:
            while left:
                step = self._low.repeated_step(fetches, of_each, self._steps_per_run)
                made, results = step.run_several(left)
                parts.append(results)
                left -= made
            result, watched = self._low.run_with_hook_fetches(fetches, riders.watched, None, options, run_metadata)
        except BaseException:
            self._stop.runs += schedule.let_fail(schedule.room - 1 - left)
            raise
        parts.append((rows_of_one(result), riders.in_rows(watched)))
        in_rows = [rider.stacked for rider in riders.riders]
        of_hooks = [
            joined([part[1][place] for part in parts]) if in_rows[place : place + 1] == [True] else last
            for place, last in enumerate(parts[-1][1])
        ]
        return joined([part[0] for part in parts]), of_hooks

    def _run_watched(
        self,
        riders: Ridership,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, Sequence[Any], RunOptions | None, RunMetadata | None]:
        """Runs with the hooks' requests; returns both results, the merged options and the metadata."""
        merged = riders.merged_options(options) if riders.options else options
        if run_metadata is None and merged is not None and _records(merged):
            run_metadata = RunMetadata()
        feeds = riders.merged_feeds(feed_dict, self.raw.graph) if riders.feeders else feed_dict
        if not riders.watches:
            return self.raw.run(fetches, feeds, merged, run_metadata), riders.watched.fetches, merged, run_metadata
        try:
            if self._in_step is not None:
                self._in_step.asks(riders.asking)
            result, watched = self._low.run_with_hook_fetches(fetches, riders.watched, feeds, merged, run_metadata)
        except (KeyError, TypeError, ValueError) as exc:
            riders.blame(exc, self.raw.graph)
            raise
        finally:
            if self._in_step is not None:
                self._in_step.asks("")
        return result, watched, merged, run_metadata


def _args(fetches: Any, feed_dict: Mapping[Any, Any] | None, options: RunOptions | None) -> SessionRunArgs:
    """Returns the request of a run's caller."""
    return SessionRunArgs(fetches, None if feed_dict is None else dict(feed_dict), options)


def _records(options: RunOptions) -> bool:
    """Returns whether a run with these options records metadata; with a step limit, whether it was applied."""
    return (
        options.last_step is not None
        or options.trace_level > 0
        or options.output_partition_graphs
        or bool(options.debug_tensor_watches)
    )
