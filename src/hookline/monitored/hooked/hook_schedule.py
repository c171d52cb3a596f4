"""HookSchedule: decides which hooks take part in a run, and how many runs may follow on the fast path."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hookline import clock, log
from hookline.graph import Operation, Tensor
from hookline.hooks.base import SessionRunContext
from hookline.hooks.only_for import fetched_operations
from hookline.monitored.hooked.callbacks import describe
from hookline.monitored.hooked.fast_path import FastPathLimits
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.hooked.scheduled_hook import ScheduledHook, ScheduledRun
from hookline.monitored.spmd_sync import SpmdSync
from hookline.session import DeferredResults, RunOptions, Session, merge_options
from hookline.session.plan.feeds import feed_key

_logger = log.get_logger(__name__)

_MAX_CACHED_MERGES = 64
_ASK_ALL_EVERY_RUNS = 64
_MAX_SHORT_RUNS = 8
_NO_FETCHES = object()


class HookSchedule:
    """Decides which hooks take part in a run, and when their triggers must be asked next.

    To ask a trigger is to call its `should_trigger_for_step`. A hook that overrides `before_run` or `after_run` takes
    part in each run. Another hook takes part if its trigger fires: before the run the trigger is asked about the step
    that is expected after the run.

    The session usually knows the step delta of a run from its fetches. If only the device knows it, the schedule
    assumes the step delta of the last run, and reads the step from the device after each run. If this is not the
    expected step, the triggers of hooks without requests are asked again.

    `finish_run` returns how many runs may follow on the fast path before a trigger must be asked.

    Args:
        session: The raw session.
        hooks: All hooks; their declarations are read here.
        previous: The previous schedule of the same session, with other hooks. This schedule takes over its state.
        runs: The number of runs made before.
        steps_per_run: The maximum number of steps of a run. Each step counts as a run.
        spmd: Synchronises the SPMD processes; None in a single process.

    Raises:
        KeyError, TypeError, ValueError: Declared `fetches` are not in the graph.
        RuntimeError: The graph has no global step, and a trigger counts steps or a run may have several steps; or hooks
            share a trigger that they must not share.
        TypeError: A `trigger` is not a `Trigger`, or a `deferred` is neither a bool nor a number of runs.

    Attributes:
        run: The decision on the next run, or on the run under way.
        ask_now: Whether triggers must be asked in this run; if the run fails, in the next attempt too.
        always_called: The merged requests of the hooks that are called in every run; a new object when they change.
        by_hook: The `ScheduledHook` of each hook, by the id of the hook.
        pending_results: The results for which deferred hooks wait.
        latched_count: The session's count of set latches at the last check.
        stalled_runs: The number of consecutive runs that left the global step unchanged, if a hook counts steps.

    Example:
        every(100) and every(secs=60), training at step 340, where a run is one step:

            finish_run   the triggers return 60 steps and 21 s: a hook may be due at step 400, or in 21 s
            59 runs      the fast path makes them: it counts runs and reads the clock, and asks no trigger
            plan_run     asks the first trigger about step 400: it fires, and the hook's fetches are part of this run
            finish_run   at step 400 the first trigger returns 100 steps; the second one keeps its deadline

        If other code sets the step to 480 in between, the fast path ends, and `plan_run` asks the first trigger about
        step 481: it is due, because step 400 was skipped. If other code sets the step to 120, all triggers first move
        back to 120, and are then asked.
    """

    def __init__(
        self,
        session: Session,
        hooks: HookList,
        previous: HookSchedule | None = None,
        *,
        runs: int = 0,
        steps_per_run: int = 1,
        spmd: SpmdSync | None = None,
    ) -> None:
        hooks.check_triggers()
        self._session, self._backend, self._spmd = session, session.backend, spmd
        step = self._previous_step = step_of(session)
        self._has_global_step = step is not None
        # If other workers also advance the global step, this session cannot predict the step after a run.
        self._owns_global_step = not self._backend.shared
        if steps_per_run > 1 and not self._has_global_step:
            raise RuntimeError(
                f"steps_per_run={steps_per_run} counts global steps, and the graph has no global step. Create it with "
                "train.get_or_create_global_step()."
            )
        self._warned: set[str] = previous._warned if previous else set()
        self._hooks = [
            ScheduledHook(hook, index, session.graph, hooks, self._warned, is_spmd=spmd is not None)
            for index, hook in enumerate(hooks.hooks)
        ]
        self._trigger_owners = self._start_triggers(step, runs, previous)
        if spmd is not None:
            spmd.detach_clocks(owner.trigger for owner in self._trigger_owners)
        self._stacked_bits = sum(hook.bit for hook in self._hooks if hook.stacked) if steps_per_run > 1 else 0
        for owner in self._trigger_owners:
            owner.ends_runs = bool(owner.hook_bits & ~self._stacked_bits)
        # With `deferred = n`, a firing is delivered at the end of a full run. Full runs end at multiples of
        # `steps_per_run`, so it comes at the same step even if a clock, say, ends a run sooner.
        in_full_runs = steps_per_run > 1 and any(h.deferred and not isinstance(h.deferred, bool) for h in self._hooks)
        self.run = ScheduledRun(runs, steps_per_run, step or 0, align_to_full_runs=in_full_runs)
        self._active_bits = (1 << len(self._hooks)) - 1
        self._active_bindings = [hook.binding for hook in self._hooks if hook.binding is not None]
        self._has_bindings = bool(self._active_bindings)
        self.by_hook = {id(hook.hook): hook for hook in self._hooks}
        self._find_always_called()
        self._declare_fetches()
        # Triggers are asked when a run reaches this step, at this time on the clock, or in the run with this number.
        self._due_step = self._due_secs = -math.inf
        self._due_run = self._ask_all_run = 0.0
        # The step, the step delta and the fetches on which the prediction for the next run is based.
        self._last_step = step or 0
        self._assumed_step_delta = 1
        self._expected_step_changes = -1
        self._fetches: Any = _NO_FETCHES
        self._feed_key: Any = None
        self._is_predictable = self.ask_now = True
        self._counts_steps = self._backend.expects_steps or any(
            owner.trigger.has_steps for owner in self._trigger_owners
        )
        self.stalled_runs = 0
        self._short_runs = self._called_on_short_runs = 0
        self._resumed_hooks: list[ScheduledHook] = []  # They are called again from the next run on.
        self.pending_results: tuple[DeferredResults, ...] = ()
        self._deferred_run = math.inf
        self.latched_count = self._backend.latched_count
        if previous is not None:
            self._continue_from(previous)

    def _start_triggers(self, step: int | None, runs: int, before: HookSchedule | None) -> list[ScheduledHook]:
        """Starts the triggers; returns the hooks that own one."""
        owners: dict[int, ScheduledHook] = {}
        started_triggers = {id(owner.trigger) for owner in before._trigger_owners} if before else set()
        for hook in self._hooks:
            hook.start(self._session, step, runs, owners, started_triggers)
        for hook in self._hooks:
            hook.warn_if_incomplete()
        return list(owners.values())

    def _declare_fetches(self) -> None:
        """Declares the fetches of hooks to the backend; raises for a fetch that is not in the graph."""
        hooks = [hook for hook in self._hooks if hook.trigger_owner.trigger is not None]
        for index in self._backend.declare_hook_fetches([hook.fetches for hook in hooks]):
            if hooks[index].before_trigger is None:
                hooks[index].check_in_graph(hooks[index].fetches, self._session.graph)

    def _continue_from(self, other: HookSchedule) -> None:
        """Takes over the state of the previous schedule."""
        other._apply_resumed_callbacks()
        for earlier in other._hooks:
            mine = self.by_hook.get(id(earlier.hook))
            if mine is not None:
                mine.continue_from(earlier)
        self.latched_count, self.run.has_deferred = other.latched_count, other.run.has_deferred
        self.pending_results, self._deferred_run = other.pending_results, other._deferred_run
        self._find_always_called()

    def _find_always_called(self) -> None:
        """Finds the hooks that are called in every run."""
        self._merged_cache: dict[tuple[int, int], MergedRequests] = {}
        self._always_called_bits = (
            sum(hook.bit for hook in self._hooks if hook.before_run or hook.after_run) | self._stacked_bits
        )
        self.always_called = self._merge_requests(0)

    def _merge_requests(self, bits: int) -> MergedRequests:
        """Returns the merged requests of the hooks in a bit mask, in list order, for runs with the present fetches."""
        if len(self._merged_cache) >= _MAX_CACHED_MERGES:
            self._merged_cache.clear()
        hooks = [hook for hook in self._hooks if hook.bit & bits]
        parts = [part for hook in self._hooks if hook.bit & self._active_bits for part in hook.latches]
        latches = tuple(dict.fromkeys(latch for part in parts for latch in part.latches))
        found = self._merged_cache[bits, self._active_bits] = MergedRequests(hooks, latches)
        return found

    # Before a run ----------------------------------------------------------------------------------------------

    def plan_run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        number: int,
        available_steps: Callable[[Any, int, float], int],
    ) -> MergedRequests:
        """Decides which hooks take part in the next run; returns their merged requests.

        Args:
            fetches: The fetches of the run.
            feed_dict: The caller's feeds.
            number: The number of the run, from 1 on.
            available_steps: Returns the number of steps for which there are batches, given the fetches, the maximum
                number of steps, and the number of steps until a hook is due.
        """
        run = self.run
        run.number, run.step = number, None
        if self._resumed_hooks:
            self._apply_resumed_callbacks()
        step_delta = self._assumed_step_delta if run.step_delta is None else run.step_delta
        known = self._backend.known_step if self._has_global_step else self._last_step
        is_set, step = False, known
        if step is None:
            step, changes = self._last_step + step_delta, self._backend.step_changes
            # Other code has set the step, maybe past steps at which hooks were due.
            is_set = changes != self._expected_step_changes
            self._expected_step_changes = changes + (run.step_delta != 0)
        else:
            self._expected_step_changes = -1
        advance = step - self._last_step
        self._last_step = step
        if advance < 0:
            for owner in self._trigger_owners:
                owner.trigger.start(step)
        # The step delta of a run may also depend on the fed tensors.
        fed = feed_key(feed_dict) if feed_dict else None
        if fetches is not self._fetches or fed != self._feed_key:
            self._inspect_fetches(fetches, feed_dict)
            self._feed_key = fed
            step_delta = self._assumed_step_delta if run.step_delta is None else run.step_delta
        run.target_step = target_step = step + step_delta if self._has_global_step else number
        knows_step = not self._has_global_step or (known is not None and bool(run.step_delta))
        self._is_predictable = self._owns_global_step and self._fetches is not _NO_FETCHES and knows_step
        now = -math.inf
        if self._spmd is not None or self._due_secs < math.inf:
            now = self._now()
        is_recheck_due = number >= self._ask_all_run and not self._is_predictable
        ask_all = is_set or advance < 0 or not self._owns_global_step or is_recheck_due
        if run.max_steps > 1:
            run.is_multi_step, run.num_steps, run.start_step = run.step_delta != 0, 1, known
            run.has_per_step_hook = bool(self._always_called_bits & ~self._stacked_bits & self._active_bits)
            if run.is_multi_step and not ask_all and known is not None:
                self._choose_num_steps(fetches, available_steps)
                number, target_step = run.number, run.target_step
        # If only the device knows the step after the run, `receivers` reads it.
        is_step_unknown = self._counts_steps and run.step_delta is None
        is_due = (
            number >= min(self._due_run, self._deferred_run) or target_step >= self._due_step or now >= self._due_secs
        )
        self.ask_now = self.ask_now or ask_all or is_step_unknown or is_due
        run.firing_bits = self._ask_triggers(target_step, now, ask_all=ask_all) if self.ask_now else 0
        bits = (self._always_called_bits | run.firing_bits) & self._active_bits
        if run.max_steps > 1:
            self._count_short_run(self._always_called_bits & ~self._stacked_bits & self._active_bits or run.firing_bits)
        return self._merged_cache.get((bits, self._active_bits)) or self._merge_requests(bits)

    def _now(self) -> float:
        """Returns the time on the clock; in SPMD, `SpmdSync.agreed_time`."""
        return clock.monotonic() if self._spmd is None else self._spmd.agreed_time()

    def _ask_triggers(self, step: int, now: float, *, ask_all: bool = False, at_end: bool = False) -> int:
        """Asks the triggers that may be due at this step and time; returns the hooks that fire, as a bit mask.

        Args:
            step: The global step after the run; in a graph without one, the number of the run.
            now: The time on the clock.
            ask_all: Whether to ask all triggers.
            at_end: Whether to ask the triggers of stacked hooks only, at the end of the run. Otherwise all triggers but
                these are asked.
        """
        run, firing = self.run, 0
        for owner in self._trigger_owners:
            if owner.ends_runs is at_end:
                continue
            owner.due = False
            is_asked = (
                ask_all or step >= owner.ask_at_step or now >= owner.ask_at_secs or run.number >= owner.ask_at_run
            )
            if is_asked and owner.is_due(step, run):
                firing |= owner.hook_bits
        return firing & self._active_bits

    def _choose_num_steps(self, fetches: Any, available_steps: Callable[[Any, int, float], int]) -> None:
        """Decides how many steps the run has: it ends at the step at which a hook is due, or when batches run out.

        Example:
            With steps_per_run=16, at step 90, a hook is due at 100: the run may have 10 steps, and end at 100. If only
            7 batches are ready, it has 7 steps; the next run begins at 97 and may have 3.
        """
        run, step_delta = self.run, self.run.step_delta
        if not step_delta or run.has_per_step_hook:
            return
        limit = math.inf if self._session.step_limit is None else self._session.step_limit
        due_step, due_run = min(self._due_step, limit), min(self._due_run, self._deferred_run)
        more = min((due_step - run.target_step) / step_delta, due_run - run.number)
        if run.align_to_full_runs:
            more = min(more, run.steps_left(run.target_step // step_delta) - 1)
        steps_until_due = 1 + (more if more == math.inf else math.ceil(max(0, more)))
        max_steps = int(min(steps_until_due, run.max_steps))
        if max_steps > 1:
            run.num_steps = available_steps(fetches, max_steps, steps_until_due)
            run.number += run.num_steps - 1
            run.target_step += (run.num_steps - 1) * step_delta
            self._last_step += (run.num_steps - 1) * step_delta

    def _count_short_run(self, called: int) -> None:
        """Counts consecutive runs that have one step because of the same hooks, and logs each of these hooks once."""
        run = self.run
        is_short = run.is_multi_step and run.num_steps == 1
        both = called & (self._called_on_short_runs if self._short_runs else called) if is_short else 0
        self._called_on_short_runs, self._short_runs = both, self._short_runs + 1 if both else 0
        if self._short_runs <= _MAX_SHORT_RUNS:
            return
        for hook in self._hooks:
            key = f"short runs {hook.bit}"
            if hook.bit & both and key not in self._warned:
                self._warned.add(key)
                _logger.info(
                    "steps_per_run=%d: each run has one step, because the %s is called at each step. To call it less "
                    "often, declare trigger and fetches in place of before_run and after_run. Or declare "
                    "stacked = True: it is then called once for each run, with the values of all steps.",
                    run.max_steps,
                    describe(hook.hook),
                )

    def limit_to_one_step(self) -> None:
        """Limits the run to one step, from the current global step."""
        run, step = self.run, self._backend.known_step
        run.number -= run.num_steps - 1
        run.num_steps, run.start_step = 1, step
        if step is not None:
            run.target_step, self._last_step = step + (run.step_delta or 0), step

    def count_failed_steps(self, made: int) -> None:
        """Counts the steps that a run made before it failed."""
        for binding in self._active_bindings:
            binding.runs += made

    def count_fast_runs(self, made: int) -> None:
        """Counts the runs of the fast path."""
        self._last_step += made * (self.run.step_delta or 0)
        self._short_runs = 0
        for binding in self._active_bindings:
            binding.runs += made

    @property
    def expected_step(self) -> int | None:
        """The expected global step after the run under way; None in a graph without one."""
        return self.run.target_step if self._has_global_step else None

    def options_with_limit(self, options: RunOptions | None) -> RunOptions | None:
        """Returns the options of the run, with the session's step limit if the run may reach that."""
        limit = self._session.step_limit
        if limit is None:
            return options
        if self._owns_global_step:
            step = self._backend.known_step if self._has_global_step else self._last_step
            if step is not None and step < limit:
                return options
        return merge_options([options, RunOptions(last_step=limit)])

    def _inspect_fetches(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        """Finds the hooks that take part in runs of these fetches, and the step delta of these runs."""
        if self._has_bindings:
            asked = fetched_operations(fetches, self._session.graph)
            bound = [hook for hook in self._hooks if hook.binding is None or not hook.bound_to.isdisjoint(asked)]
            self._active_bits = sum(hook.bit for hook in bound)
            self._active_bindings = [hook.binding for hook in bound if hook.binding is not None]
        self._fetches, self.run.step_delta = _NO_FETCHES, None
        try:
            # Hooks will probably feed the same tensors again; without them a fetched placeholder may lack a value.
            calls = self._always_called_bits & self._active_bits
            always = self._merged_cache.get((calls, self._active_bits)) or self._merge_requests(calls)
            feeds = always.merged_feeds(feed_dict, self._session.graph) if always.hook_feeds else feed_dict
            self.run.step_delta = self._backend.step_delta(fetches, feeds)
        except Exception:  # The run itself raises the error, after every `before_run`.
            return
        if isinstance(fetches, Tensor | Operation | str):  # The caller may change a list or dict in place.
            self._fetches = fetches

    # After a run -----------------------------------------------------------------------------------------------

    def receivers(self, requests: MergedRequests) -> list[tuple[int, ScheduledHook]]:
        """Returns the hooks that get the results of a successful run, each with the index of its results.

        If the run reached another step than the expected one, the triggers of hooks without requests are asked again.
        """
        run = self.run
        if self._stacked_bits:
            run.firing_bits |= self._ask_triggers(run.target_step, math.inf, ask_all=True, at_end=True)
        if not (self._has_global_step and self._trigger_owners):
            return requests.indexed_hooks
        step = self._backend.known_step
        if step is None and self.ask_now:  # Read from the device: `finish_run` needs it, too.
            step = self._session.global_step
        run.step = step
        return requests.indexed_hooks if step is None or step == run.target_step else self._receivers_at(step, requests)

    def _receivers_at(self, step: int, requests: MergedRequests) -> list[tuple[int, ScheduledHook]]:
        """Decides again which hooks get results, after a run that reached another step than the expected one.

        Example:
            A run from step 9 is expected to reach 10, and reaches 14. Three hooks fire at multiples of 10, 7 and 5:

                10, fetches the loss     fires, as decided for step 10: this run has computed the loss for it
                7, fetches the loss      is due at 14, but this run has computed no loss for it: fires in the next run
                5, fetches nothing       was due at 10, and fires with step 14
        """
        run = self.run
        at_end = run.firing_bits & self._stacked_bits
        fire = self._ask_triggers(step, self._now()) | at_end
        self.ask_now = True
        # A hook whose request was not part of the run does not fire, and neither do the hooks that share its trigger.
        asking = {hook.trigger_owner for hook in self._hooks if hook.has_request}
        unasked = (
            sum(hook.bit for hook in self._hooks if hook.has_request or hook.trigger_owner in asking) & ~run.firing_bits
        )
        run.firing_bits = fire & ~unasked
        indices = {hook: index for index, hook in enumerate(requests.hooks)}
        bits = run.firing_bits | (self._always_called_bits & self._active_bits)
        return [(indices.get(hook, -1), hook) for hook in self._hooks if hook.bit & bits]

    def deliver_deferred(
        self, context: SessionRunContext, last_run: float = math.inf, *, session_lost: bool = False
    ) -> None:
        """Calls the deferred hooks for firings whose values are ready, or whose delay is over.

        Args:
            context: The context of the run under way, or a new one.
            last_run: The number of the last run. By default all firings are delivered, with a wait for their values.
            session_lost: Whether the session is lost. Then the remaining firings are dropped, with a warning.
        """
        lost, dropped = self._session if session_lost else None, 0
        for hook in self._hooks:
            if hook.pending_firings:
                dropped += hook.deliver_deferred(context, last_run, lost)
        if dropped:
            _logger.warning("%d deferred firings were dropped with their session.", dropped)
        firsts = [hook.pending_firings[0] for hook in self._hooks if hook.pending_firings]
        self.run.has_deferred = bool(firsts)
        self._deferred_run = min((first.due_run for first in firsts), default=math.inf)
        self.pending_results = tuple(first.results for first in firsts if first.due_run == math.inf)

    def deliver_latched(self, context: SessionRunContext, *, wait: bool = False) -> None:
        """Calls the hooks whose latch is set, once for each latch; with `wait`, first waits for all runs so far."""
        count, noted = self._backend.latched_count, {}
        for hook in self._hooks:
            if hook.latches:
                hook.deliver_latched(self._session, context, noted, has_step=self._has_global_step, wait=wait)
        self.latched_count = count

    def deliver_pending(self, context: SessionRunContext) -> None:
        """Delivers all results that hooks wait for; see `SessionRunContext.deliver_pending`."""
        self._session.deliver_pending()
        self.deliver_deferred(context)
        self.deliver_latched(context, wait=True)

    def finish_run(self) -> FastPathLimits | None:
        """Counts a successful run, and finds when the triggers must be asked next.

        Returns:
            The limits of the fast path for runs with the same fetches; None if a hook may be due in the next run.
        """
        run = self.run
        for binding in self._active_bindings:
            binding.runs += run.num_steps
        step, run.step = run.step, None
        if step is None and self._has_global_step:
            step = self._session.global_step if self.ask_now else self._backend.known_step
        if self._counts_steps:
            self.stalled_runs = self.stalled_runs + 1 if step is not None and step == self._previous_step else 0
            self._previous_step = step
        if self.ask_now:
            if step is not None:
                self._assumed_step_delta = max(1, step - self._last_step)
                self._last_step = step
            due_step = due_secs = due_run = math.inf
            for owner in self._trigger_owners:
                if owner.ends_runs:
                    if owner.ask_at_run <= run.number:
                        owner.plan_next_ask(
                            run.number if step is None else step, run.number, has_bindings=self._has_bindings
                        )
                    due_step = owner.ask_at_step if owner.ask_at_step < due_step else due_step
                    due_secs = owner.ask_at_secs if owner.ask_at_secs < due_secs else due_secs
                    due_run = owner.ask_at_run if owner.ask_at_run < due_run else due_run
            self._due_step, self._due_secs, self._due_run = due_step, due_secs, due_run
            if run.number >= self._ask_all_run:
                self._ask_all_run = run.number + _ASK_ALL_EVERY_RUNS
        run.firing_bits, self.ask_now = 0, False
        if not self._is_predictable or run.align_to_full_runs or (step is None and self._has_global_step):
            return None
        # The number of runs before a hook may be due. The session's step limit also ends the fast path.
        runs_left = min(self._due_run, self._deferred_run) - run.number - 1
        if self._has_global_step and step is not None:
            limit = math.inf if self._session.step_limit is None else self._session.step_limit
            runs_left = min(
                runs_left, (min(self._due_step, limit) - 1 - step) // run.step_delta if run.step_delta else 0
            )
        # A run of several steps must not pass the run in which a hook is due.
        runs_left -= run.max_steps - 1 if run.is_multi_step else 0
        called_bits = self._always_called_bits & self._active_bits
        if runs_left <= 0 or (called_bits and run.max_steps > 1):
            return None
        self.always_called = self._merged_cache.get((called_bits, self._active_bits)) or self._merge_requests(
            called_bits
        )
        return FastPathLimits(
            runs_left, self._due_secs, step, run.step_delta or 0, self.latched_count, self.pending_results
        )

    def begin_fast_run(self) -> None:
        """Begins a run on the fast path, for the hooks that are always called."""
        run = self.run
        run.number += 1
        run.target_step += (run.step_delta or 1) if self._has_global_step else 1

    # Stopped and resumed callbacks -----------------------------------------------------------------------------

    def stop_callbacks(self, hook: Any) -> None:
        """Stops the run callbacks of a hook; see `SessionRunContext.stop_callbacks`."""
        found = self.by_hook.get(id(hook))
        if found is not None and found.stop_callbacks():
            self._find_always_called()

    def resume_callbacks(self, hook: Any) -> None:
        """Resumes the run callbacks of a hook, from the next run on."""
        found = self.by_hook.get(id(hook))
        if found is not None:
            self._resumed_hooks.append(found)

    def _apply_resumed_callbacks(self) -> None:
        if not self._resumed_hooks:
            return
        for hook in self._resumed_hooks:
            hook.look_up_callbacks()
        self._resumed_hooks.clear()
        self._find_always_called()


def step_of(session: Session) -> int | None:
    """Returns the global step of a session; None if the graph has none, or it is not an integer."""
    try:
        return session.global_step
    except (RuntimeError, TypeError):
        return None
