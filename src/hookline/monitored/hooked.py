"""HookedSession: one run of the graph with the hooks around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookline.graph import Operation, Tensor
from hookline.hooks.base import SessionRunArgs, SessionRunContext, SessionRunValues
from hookline.monitored.hook_list import Callback, HookList
from hookline.monitored.pacing import Pacing
from hookline.monitored.quiet import Foreseen, Quiet
from hookline.monitored.ridership import Ridership
from hookline.session import RunMetadata, RunOptions, Session

_NO_OPTIONS = RunOptions()


class StopRequest:
    """What outlives the raw session, one a monitored session: the hooks' request to stop, and the count of runs.

    Attributes:
        runs: How many runs were made before.
        requested: The stop holds: no further run.
        carried: It was requested during an attempt that failed. The retry of that run is still allowed, and with its
            success the request holds.
    """

    __slots__ = ("carried", "requested", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self.requested = False
        self.carried = False


class _Results:
    """The results of one run on their way to the hooks; a run that a callback starts has its own."""

    _rest: Iterator[tuple[int, Callback]] = iter(())
    _values: tuple[SessionRunContext, Any, RunOptions, RunMetadata] | None = None

    def give(
        self,
        after: Iterable[tuple[int, Callback]],
        context: SessionRunContext,
        watched: Any,
        options: RunOptions,
        run_metadata: RunMetadata,
    ) -> None:
        """Gives the results to the hooks."""
        self._rest, self._values = iter(after), (context, watched, options, run_metadata)
        self.deliver()

    def deliver(self) -> None:
        """Gives the results to the hooks that have not got them yet."""
        if self._values is None:
            return
        context, watched, options, run_metadata = self._values
        for slot, after_run in self._rest:
            after_run(context, SessionRunValues(watched[slot], options, run_metadata))

    def forget(self) -> None:
        """Lets go of them: the context of a run knows who delivers, and what was fetched must not outlive the run."""
        self._values = None


class HookedSession:
    """A raw session whose runs the hooks ride along on.

    One run calls `before_run` of the hooks in list order, runs the caller's fetches and theirs at once, and calls
    `after_run` in list order. Hooks that said through `steps_until_trigger` that they have nothing to do yet are left
    out.

    Args:
        session: The raw session.
        hooks: The hooks.
        stop: Where a hook's request to stop is kept; a new one by default.
        quiet: Where it says which runs need no hooks.

    References:
        The hooked session inside `tf.train.MonitoredSession`.
    """

    def __init__(
        self, session: Session, hooks: HookList, stop: StopRequest | None = None, quiet: Quiet | None = None
    ) -> None:
        self.raw = session
        self._stop = stop or StopRequest()
        self._quiet = quiet or Quiet()
        self.use(hooks)
        self._args_of_fetches = SessionRunArgs(None)
        self._at_callbacks = False
        self._failed_inside = False
        self._runs_before = self._stop.runs
        # What hooks see of runs that were not asked to record anything: one object, which nobody fills in.
        self._no_metadata = RunMetadata()

    def use(self, hooks: HookList) -> None:
        """Lets these hooks ride along from the next run on."""
        self._stop.runs += self._quiet.end()
        self._hooks = hooks
        self.raw.expect(hooks.may_fetch())
        self._everyone = Ridership(hooks.hooks, hooks.standing_operations())
        self._pacing = Pacing.of(self.raw, hooks, self._everyone)

    @property
    def at_rest(self) -> bool:
        """Whether the variables are as the last completed run left them: no run has failed half-way since.

        A run that failed in the callback of a hook, or after it had changed variables, counts as half-way.
        """
        return not self._failed_inside

    @property
    def has_run(self) -> bool:
        """Whether it has made a run."""
        return self._stop.runs + self._quiet.made > self._runs_before

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
            BaseException: What the run or a callback raised, errors of the engine mapped to `hookline.errors`.
        """
        if self._stop.requested:
            raise RuntimeError("Run called even after should_stop requested.")
        made, (failure, writes) = self._quiet.end(), self._quiet.failed or (None, self.raw.writes)
        self._at_callbacks = self._failed_inside = False
        self._stop.runs += made
        try:
            if failure is not None:
                self._quiet.failed = None
                raise failure
            pacing = self._pacing
            due = self._everyone if pacing is None else pacing.due(fetches, feed_dict, made)
            run = self._run_with if due.riding else self._run_alone
            result = run(due, fetches, feed_dict, options, run_metadata)
            self._stop.runs += 1
            if pacing is not None and pacing.overdue:
                pacing.plan()
            if options is None and not self._stop.requested:
                self._let_pass(fetches, feeds=bool(feed_dict))
            return result
        except BaseException as exc:
            self._failed_inside = self._at_callbacks or self.raw.writes != writes
            mapped = self.raw.map_error(exc)
            if mapped is exc:
                raise
            raise mapped from mapped.__cause__ or exc

    def _let_pass(self, fetches: Any, *, feeds: bool) -> None:
        """Lets runs like the last one pass until a hook is due."""
        if self._pacing is not None:
            riders, foreseen = self._pacing.always, self._pacing.foreseen()
        elif not self._everyone.riding and not self.raw.shared and isinstance(fetches, Tensor | Operation | str):
            riders, foreseen = self._everyone, Foreseen()
        else:
            return
        if foreseen is not None:
            self._quiet.begin(self.raw, fetches, riders.watched if riders.watches else None, foreseen, feeds=feeds)

    def let_go(self) -> None:
        """Lets no more runs pass: the raw session is to be closed."""
        self._stop.runs += self._quiet.end()

    def _run_alone(self, riders: Ridership, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """Runs without calling a hook."""
        if not riders.watches:
            return self.raw.run(fetches, feed_dict, options, run_metadata)
        return self.raw.run_watched(fetches, riders.watched, feed_dict, options, run_metadata)[0]

    def _run_with(
        self,
        riders: Ridership,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> Any:
        results = _Results()

        def settle() -> None:
            # A hook that settles in its after_run is overtaken by those behind it: what it waits for may be theirs.
            results.deliver()
            self._hooks.settle(self.raw)

        context = SessionRunContext(self._original_args(fetches, feed_dict, options), self.raw, settle, self._stop.runs)
        try:
            self._at_callbacks = True
            riders.ask(context)
            self._at_callbacks = False
            if riders.asks:
                result = self._run_watched(riders, context, results, fetches, feed_dict, options, run_metadata)
            else:
                result = self.raw.run(fetches, feed_dict, options, run_metadata)
                run_metadata = run_metadata or self._no_metadata
                self._at_callbacks = True
                results.give(riders.after, context, riders.watched.fetches, options or _NO_OPTIONS, run_metadata)
        except BaseException:
            if context.stop_requested:
                self._stop.carried = True
            raise
        finally:
            results.forget()
            if riders.feeders or riders.stale:
                riders.forget_feeds()
        if context.stop_requested or self._stop.carried:
            self._stop.requested = True
        return result

    def _run_watched(
        self,
        riders: Ridership,
        context: SessionRunContext,
        results: _Results,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> Any:
        merged = riders.merged_options(options) if riders.options else options
        if run_metadata is None and merged is not None and _records(merged):
            run_metadata = RunMetadata()
        feeds = riders.merged_feeds(feed_dict, self.raw.graph) if riders.feeders else feed_dict
        if not riders.watches:
            result = self.raw.run(fetches, feeds, merged, run_metadata)
            watched = riders.watched.fetches
        else:
            try:
                result, watched = self.raw.run_watched(fetches, riders.watched, feeds, merged, run_metadata)
            except (KeyError, TypeError, ValueError) as exc:
                riders.blame(exc, self.raw.graph)
                raise
        self._at_callbacks = True
        results.give(riders.after, context, watched, merged or _NO_OPTIONS, run_metadata or self._no_metadata)
        return result

    def _original_args(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None, options: RunOptions | None
    ) -> SessionRunArgs:
        # A training loop asks for the same each time. With a feed nothing is kept: batches should not live longer.
        kept = self._args_of_fetches
        if feed_dict is None and options is None:
            if kept.fetches is not fetches:
                kept = self._args_of_fetches = SessionRunArgs(fetches)
            return kept
        return SessionRunArgs(fetches, dict(feed_dict) if feed_dict is not None else None, options)


def _records(options: RunOptions) -> bool:
    """Returns whether a run so told has something to say about itself; of a limit, whether it held the run back."""
    return (
        options.last_step is not None
        or options.trace_level > 0
        or options.output_partition_graphs
        or bool(options.debug_tensor_watches)
    )
