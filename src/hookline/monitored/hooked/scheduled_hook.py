"""ScheduledHook: a hook in a session, from its declarations to its firings; ScheduledRun: the decision on a run."""

from __future__ import annotations

import collections
import math
from collections.abc import Container
from functools import partial
from typing import Any, NamedTuple

from hookline import clock, log
from hookline.errors import PREEMPTION_ERRORS
from hookline.graph import Graph, Operation
from hookline.hooks.base import Firing, SessionRunArgs, SessionRunContext, SessionRunHook
from hookline.hooks.only_for import BoundHook, unwrap
from hookline.hooks.trigger import NEVER, Trigger
from hookline.hooks.triggers import OffSteps
from hookline.monitored.hooked.callbacks import Callback, acts_on_trigger, describe, overridden_callback
from hookline.monitored.hooked.hook_list import HookList
from hookline.session import DeferredResults, RunMetadata, RunOptions, Session
from hookline.session.plan.fetches import iter_fetches

_logger = log.get_logger(__name__)

_SPMD_DEFERRED_RUNS = 16
_NO_OPTIONS = RunOptions()


class ScheduledRun:
    """The decision on the next run, or on the run under way. A schedule has one, and updates it before each run.

    Args:
        number: The number of earlier runs.
        max_steps: The maximum number of steps of a run.
        target_step: The present global step.
        align_to_full_runs: Whether firings with `deferred = n` are delivered at the end of a full run.

    Attributes:
        max_steps, align_to_full_runs: As above.
        number: The number of the run, from 1 on; with several steps, the number of the last one.
        step_delta: The increase of the global step in one of its steps; None if only the device knows it.
        target_step: The expected global step after the run; in a graph without one, the number of the run.
        step: The global step after the run; None if it is not known.
        firing_bits: The hooks that fire and were not called yet, as a bit mask.
        has_deferred: Whether a firing of a deferred hook, of this run or an earlier one, is pending.
        is_multi_step: Whether the run may have several steps.
        num_steps: The number of steps that the run may have.
        start_step: The global step before the run; None if it is not known.
        has_per_step_hook: Whether one of its hooks must be called for each step.
    """

    def __init__(self, number: int, max_steps: int, target_step: int, *, align_to_full_runs: bool) -> None:
        self.max_steps, self.align_to_full_runs = max_steps, align_to_full_runs
        self.number, self.target_step = number, target_step
        self.step_delta: int | None = None
        self.step: int | None = None
        self.firing_bits, self.has_deferred = 0, False
        self.is_multi_step, self.num_steps, self.has_per_step_hook = False, 1, False
        self.start_step: int | None = None

    def steps_left(self, number: int) -> int:
        """Returns the number of steps from this one to the end of its full run, both counted."""
        return self.max_steps - (number - 1) % self.max_steps

    def delay(self, runs: int, *, stacked: bool) -> int:
        """Returns the delay, in runs, of a firing with `deferred = runs`, aligned to full runs if required.

        Args:
            runs: The minimum delay in runs.
            stacked: Whether the hook is `stacked`. If a clock, say, ends a run sooner, its rows come before the end of
                the full run.
        """
        # Full runs end at multiples of `max_steps`, even if something else ends some runs sooner. So a firing comes at
        # the same step in each training. With max_steps = 4 and deferred = 1:
        #
        #   fires at step      5   6   7   8   9
        #   may come from      6   7   8   9  10
        #   comes at           8   8   8  12  12
        #
        # If a clock ends the run at 6, the rows of steps 5 and 6 are there at 6. They wait as if the run had ended at
        # 8, and come at 12.
        if not self.align_to_full_runs or not self.step_delta:
            return runs
        number = self.target_step // self.step_delta
        until_last = self.steps_left(number) - 1 if stacked else 0
        after = until_last + runs
        return after + self.steps_left(number + after) - 1


class _DeferredFiring(NamedTuple):
    """A pending firing of a deferred hook.

    Args:
        results: The values.
        due_run: The number of the run after which the firing is delivered; infinity to deliver it when the values are
            ready.
        firing_args: The arguments of the `Firing` between the values and the context.
    """

    results: DeferredResults
    due_run: float
    firing_args: tuple[int | None, int | None, float | None, RunOptions, RunMetadata]


class ScheduledHook:
    """A hook in a session: its declarations, the phase of its trigger, its request, and its firings.

    Hooks that share a trigger share its phase. The first of them keeps the phase, and is the `trigger_owner` of all.

    Args:
        hook: The hook, or a `BoundHook` that binds it to some runs.
        index: Its index in the list.
        graph: The graph of the session.
        hooks: The list.
        warned: The keys of warnings that are not repeated; new ones are added.
        is_spmd: Whether SPMD processes must call their hooks in the same run.

    Raises:
        TypeError: `deferred` is neither a bool nor a number of runs.

    Attributes:
        hook: The hook itself, unwrapped.
        bit: Its index in the list, as a bit.
        binding: Its `BoundHook`; None if it takes part in all runs.
        bound_to: With a `binding`, the operations in whose runs the hook takes part.
        before_run: Its `before_run`; None if the hook does not override it, or after `stop_callbacks`.
        after_run: Its `after_run`; None in the same cases.
        fetches: Its declared fetches.
        request_args: The request with these fetches; None without any.
        before_trigger: Its `before_trigger`, which returns the request in place of `request_args`; None without one.
        has_requested: Whether `request` was called in this run.
        on_trigger: Its `on_trigger`; without one, a function that does nothing.
        stacked: Whether it gets the values of all steps of a run, as rows.
        deferred: Its `deferred`; False for a hook with run callbacks, which is called at once.
        pending_firings: Its firings that wait for their values, or for a run.
        latches: The latches among the parts of its trigger, each with whether it is set.
        trigger_owner: The hook that keeps the phase of its trigger: itself or another one.

    The phase of a trigger, in its owner:
        trigger: The trigger; None without one, and if another hook owns it.
        hook_bits: The hooks with this trigger, as a bit mask.
        ends_runs: Whether a run must end where one of them fires.
        ask_at_step: The trigger is asked when a run reaches this step,
        ask_at_secs: or at this reading of the clock,
        ask_at_run: or on this run.
        due: Whether it is due and not updated yet; it stays due if none of its hooks takes part in the run.
    """

    trigger: Any = None
    hook_bits, ends_runs, due = 0, True, False
    ask_at_step = ask_at_secs = -math.inf
    ask_at_run: float = 0
    _counts_runs = _has_clock = _has_steps = False
    _elapsed: tuple[float | None, int | None] = (None, None)

    def __init__(
        self, hook: Any, index: int, graph: Graph, hooks: HookList, warned: set[str], *, is_spmd: bool
    ) -> None:
        self.hook = inner = unwrap(hook)
        self._find_callback = partial(hooks.run_callback, inner)
        self._warned = warned
        self.bit = 1 << index
        self.look_up_callbacks()
        self.fetches = getattr(inner, "fetches", None)
        self.request_args = None if self.fetches is None else SessionRunArgs(self.fetches)
        self.before_trigger = self._find_callback("before_trigger")
        self.on_trigger: Callback = self._find_callback("on_trigger") or _no_op
        self.deferred: bool | int = False if self.before_run or self.after_run else _checked_deferred(inner)
        self._deferred_runs = (_SPMD_DEFERRED_RUNS if is_spmd else None) if self.deferred is True else self.deferred
        self.stacked = bool(getattr(inner, "stacked", False))
        self.binding = hook if isinstance(hook, BoundHook) else None
        self.bound_to: set[Operation] = set() if self.binding is None else self.binding.operations(graph)
        self.has_requested = False
        self.pending_firings: collections.deque[_DeferredFiring] = collections.deque()
        self.latches: dict[Trigger, bool] = {}
        self.trigger_owner = self

    @property
    def has_request(self) -> bool:
        """Whether the hook requests anything when it fires."""
        return self.request_args is not None or self.before_trigger is not None

    def look_up_callbacks(self) -> None:
        """Looks up `before_run` and `after_run`: at the start, and to resume them after `stop_callbacks`."""
        self.before_run: Callback | None = self._find_callback("before_run")
        self.after_run: Callback | None = self._find_callback("after_run")

    def stop_callbacks(self) -> bool:
        """Drops the run callbacks, but not one that a subclass overrides again; returns whether one was dropped."""
        had = self.before_run, self.after_run
        self.before_run = None if _is_base_callback(self.hook, "before_run") else self.before_run
        self.after_run = None if _is_base_callback(self.hook, "after_run") else self.after_run
        return had != (self.before_run, self.after_run)

    def continue_from(self, previous: ScheduledHook) -> None:
        """Continues from the state of the same hook in the previous schedule."""
        self.before_run, self.after_run = previous.before_run, previous.after_run
        self.pending_firings, self.latches = previous.pending_firings, previous.latches

    # The trigger ------------------------------------------------------------------------------------------------

    def start(
        self,
        session: Session,
        step: int | None,
        run: int,
        trigger_owners: dict[int, ScheduledHook],
        started_triggers: Container[int],
    ) -> None:
        """Starts its trigger.

        Args:
            session: The raw session.
            step: The global step; None in a graph without one.
            run: The number of earlier runs.
            trigger_owners: The owners so far, by the ids of their triggers. This hook may be added.
            started_triggers: The ids of the triggers that this raw session has started before.

        Raises:
            TypeError: The `trigger` is not a `Trigger`.
            RuntimeError: The trigger counts steps, and the graph has no global step.
            ValueError: The trigger counts epochs, and the steps of an epoch are not known.
        """
        trigger = getattr(self.hook, "trigger", None)
        if trigger is None or not acts_on_trigger(self.hook):
            return
        if not isinstance(trigger, Trigger):
            raise TypeError(f"The {describe(self.hook)} must have a Trigger (or None) as trigger, got {trigger!r}.")
        if trigger.has_steps and step is None:
            raise RuntimeError(
                f"The {describe(self.hook)} fires at steps ({trigger!r}), and the graph has no global step. "
                "Create it with train.get_or_create_global_step()."
            )
        parts = trigger.leaves()
        self.latches = {part: False for part in parts if part.latches}
        self.trigger_owner = trigger_owners.setdefault(id(trigger), self)
        self.trigger_owner.hook_bits |= self.bit
        if self.trigger_owner is not self:
            return
        self.trigger = trigger
        self._has_steps = any(not isinstance(part, OffSteps) for part in parts)
        self._counts_runs = any(type(part).count_runs is not Trigger.count_runs for part in parts)
        self._has_clock = any(type(part).secs_until_trigger is not Trigger.secs_until_trigger for part in parts)
        trigger.start(run if step is None else step)
        if id(trigger) not in started_triggers:
            trigger.on_new_session(session)

    def is_due(self, step: int, run: ScheduledRun) -> bool:
        """Asks the trigger whether to fire at the step after a run; with a `binding`, only bound runs are counted."""
        self.ask_at_run = run.number  # `plan_next_ask` follows after this run; a failed run asks again.
        if self._counts_runs:
            self.trigger.count_runs(run.number if self.binding is None else self.binding.runs + run.num_steps)
        self.due = self.trigger.should_trigger_for_step(step)
        return self.due

    def plan_next_ask(self, step: int, run: int, *, has_bindings: bool) -> None:
        """Finds when the trigger must be asked next; called after a run.

        Args:
            step: The global step after the run; in a graph without one, the number of the run.
            run: The number of the run.
            has_bindings: Whether some hooks count only some runs. Which runs these are cannot be predicted.
        """
        trigger = self.trigger
        steps = trigger.steps_until_trigger(step) if self._has_steps else NEVER
        secs = trigger.secs_until_trigger() if self._has_clock else math.inf
        runs = trigger.runs_until_trigger() if self._counts_runs else NEVER
        self.ask_at_step = step + steps if steps < NEVER else math.inf
        self.ask_at_secs = clock.monotonic() + secs if secs < math.inf else math.inf
        if self.due or (has_bindings and runs < NEVER):
            runs = 1
        self.ask_at_run = run + runs if runs < NEVER else math.inf

    # Its request and its firings --------------------------------------------------------------------------------

    def request(self, run: ScheduledRun, context: SessionRunContext) -> SessionRunArgs | None:
        """Returns the hook's request if it fires in this run, or is `stacked` and runs may have several steps."""
        self.has_requested = True
        if not run.firing_bits & self.bit and not (self.stacked and run.max_steps > 1):
            return None
        return self.request_args if self.before_trigger is None else self.before_trigger(context)

    def deliver(
        self, run: ScheduledRun, context: SessionRunContext, results: Any, options: RunOptions, metadata: RunMetadata
    ) -> None:
        """If the hook fires in this run, updates its trigger and calls it; a deferred hook is called later.

        Example:
            Two hooks share every(10), and the second has deferred = 3. In the run that reaches step 20 both fire:

                first    updates the trigger to 20, 10 steps after the last firing; on_trigger gets both numbers
                second   the trigger is updated already; a firing with both numbers is pending
                run 23   on_trigger of the second gets global_step=20, elapsed_steps=10, and the context of run 23
        """
        if not run.firing_bits & self.bit:
            return
        run.firing_bits &= ~self.bit  # At most once, even if a subclass calls `super().after_run` twice.
        owner = self.trigger_owner
        if owner.due:  # Else another hook with this trigger has updated it.
            owner.due = False
            owner._elapsed = owner.trigger.update_last_triggered_step(run.number if run.step is None else run.step)
        if self.before_run is not None and self.fetches is not None and not self.has_requested:
            self._warn_unrequested_fetches()
        elapsed_secs, elapsed_steps = owner._elapsed
        firing_args = run.step, None if run.step is None else elapsed_steps, elapsed_secs, options, metadata
        if not self.deferred:
            self.on_trigger(Firing(results, *firing_args, context))
            return
        results = results if isinstance(results, DeferredResults) else DeferredResults.of(results)
        runs = self._deferred_runs
        due_run = math.inf if runs is None else run.number + run.delay(runs, stacked=self.stacked)
        self.pending_firings.append(_DeferredFiring(results, due_run, firing_args))
        run.has_deferred = True

    def deliver_deferred(self, context: SessionRunContext, last_run: float, lost_session: Session | None) -> int:
        """Calls the hook for the firings whose values are ready, or whose delay is over.

        Args:
            context: The context of the run under way, or a new one.
            last_run: The number of the last run. With infinity all firings are delivered, with a wait for their values.
            lost_session: The session if it is lost, else None. Then the remaining firings are dropped, and errors from
                the loss are logged.

        Returns:
            The number of dropped firings.
        """
        pending, dropped = self.pending_firings, 0
        while pending:
            results, due_run, firing_args = pending[0]
            if last_run < due_run and (due_run < math.inf or not results.is_ready()):
                break
            pending.popleft()
            try:
                values = results.get()
            except Exception:  # The values are lost with the session; the recovery logs the reason.
                if lost_session is None:
                    raise
                dropped += 1
                continue
            try:
                self.on_trigger(Firing(values, *firing_args, context))
            except Exception as exc:
                if lost_session is None or not isinstance(lost_session.backend.map_error(exc), PREEMPTION_ERRORS):
                    raise
                _logger.warning("The %s failed in on_trigger: its session is lost.", describe(self.hook))
        if lost_session is not None:
            dropped += len(pending)
            pending.clear()
        return dropped

    def deliver_latched(
        self,
        session: Session,
        context: SessionRunContext,
        elapsed_by_part: dict[Trigger, Any],
        *,
        has_step: bool,
        wait: bool,
    ) -> None:
        """Calls the hook once for each of its latches that is set.

        Args:
            session: The raw session.
            context: The context of the run under way, or a new one.
            elapsed_by_part: The elapsed seconds and steps of each latch's trigger. Hooks that share a trigger read and
                extend the same dict.
            has_step: Whether the graph has a global step.
            wait: Whether to wait for all runs so far.
        """
        for part, known in self.latches.items():
            (latch,) = part.latches
            step = session.latched(latch, wait=wait)
            self.latches[part] = step is not None
            if step is None or known:
                continue
            # Only the latch's part of the trigger is updated, because the step may be long past.
            if part not in elapsed_by_part:
                elapsed_by_part[part] = part.update_last_triggered_step(step)
            secs, steps = elapsed_by_part[part]
            firing_args = (step, steps) if has_step else (None, None)
            self.on_trigger(Firing(None, *firing_args, secs, _NO_OPTIONS, RunMetadata(), context))

    # Mistakes ---------------------------------------------------------------------------------------------------

    def check_in_graph(self, fetches: Any, graph: Graph, cause: Exception | None = None) -> None:
        """Checks that the hook's fetches are in the graph.

        Raises:
            KeyError, TypeError, ValueError: A fetch is not in the graph; the error names the hook.
        """
        try:
            for leaf in iter_fetches(fetches):
                graph.as_graph_element(leaf)
        except (KeyError, TypeError, ValueError) as reason:
            text = reason.args[0] if reason.args else reason  # str() of a KeyError is the repr of its text.
            raise type(reason)(
                f"The {describe(self.hook)} fetches something that is not in the graph: {text}"
            ) from cause

    def warn_if_incomplete(self) -> None:
        """Warns if the hook does nothing, because it has only a trigger or only an `on_trigger`."""
        is_called = overridden_callback(self.hook, "on_trigger") is not None
        has_trigger = isinstance(getattr(self.hook, "trigger", None), Trigger)
        if self.before_run or self.after_run or self.before_trigger or is_called == has_trigger:
            return
        self._warn_once(
            f"{type(self.hook).__name__}.on_trigger",
            "The %s has a trigger and no on_trigger: nothing is called when it fires. Define on_trigger(self, firing)."
            if has_trigger
            else "The %s has an on_trigger and no trigger: it never fires. Set trigger in the class, or at the latest "
            "in after_create_session; a subclass that overrides that calls super().",
            describe(self.hook),
        )

    def _warn_unrequested_fetches(self) -> None:
        name = type(self.hook).__name__
        self._warn_once(
            name,
            "%s declares fetches, and its before_run did not request them: call super().before_run(run_context) "
            "and return what it returns, or leave out fetches.",
            name,
        )

    def _warn_once(self, key: str, text: str, who: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            _logger.warning(text, who)


def _no_op(firing: Firing) -> None:
    """Does nothing, for hooks without `on_trigger`."""


def _is_base_callback(hook: Any, name: str) -> bool:
    """Returns whether a callback comes from the first class that defines a run callback, and not from a subclass."""
    if name in getattr(hook, "__dict__", ()):
        return False
    kinds = [vars(kind) for kind in type(hook).__mro__ if kind is not SessionRunHook]
    around = [kind for kind in kinds if "before_run" in kind or "after_run" in kind]
    return not any(name in kind for kind in around[:-1])


def _checked_deferred(hook: Any) -> bool | int:
    deferred = getattr(hook, "deferred", False)
    if not isinstance(deferred, int) or deferred < 0:
        raise TypeError(
            f"The {describe(hook)} must have True, False or a number of runs as deferred, got {deferred!r}."
        )
    return deferred
