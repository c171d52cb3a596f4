"""Schedule: the decision on the hooks that take part in a run, and on the runs that need no decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hookline import clock, log
from hookline.graph import Operation, Tensor
from hookline.hooks.base import SessionRunContext
from hookline.hooks.when import operations_of
from hookline.monitored.hooked.callbacks import describe
from hookline.monitored.hooked.fast_path import FastRuns
from hookline.monitored.hooked.hook_list import HookList
from hookline.monitored.hooked.merged_requests import MergedRequests
from hookline.monitored.hooked.session_hook import ScheduledRun, SessionHook
from hookline.monitored.session_in_step import InStep
from hookline.session import DeferredResults, RunOptions, Session, merge_options
from hookline.session.plan.feeds import feed_key

_logger = log.of(__name__)

_MOST_MERGED = 64
_LOOK_AGAIN_RUNS = 64
_MANY_SHORT_RUNS = 8
_NONE_YET = object()


class Schedule:
    """The hooks of a session, and the next time at which one of their triggers must be asked.

    Hooks that override a run callback take part in each run. The others take part if their trigger fires: it is asked
    before the run, about the expected step after it. The session knows the gain of a run in steps beforehand from the
    fetches. If only the device knows it, the device is asked after each run, and the gain of the last run is assumed.
    If the step turns out otherwise, hooks without requests are decided on again after the run.

    `finish` returns how many runs may follow on the fast path before a trigger must be asked.

    Args:
        session: The raw session.
        hooks: All hooks; their declarations are read here.
        before: The earlier schedule of the same session, with other hooks; this one continues it.
        runs: The number of runs made before.
        steps_per_run: The largest number of steps of a run. Each of them counts as a run.
        in_step: The agreement with the other processes; None if there are none.

    Raises:
        KeyError, TypeError, ValueError: Declared `fetches` that are not in the graph.
        RuntimeError: A trigger in steps, or several steps a run, in a graph without a global step; or a trigger that
            hooks must not share.
        TypeError: A `trigger` that is not a `Trigger`; a `late` that is neither a bool nor a number of runs.

    Attributes:
        run: The decision on the run that is next or under way.
        overdue: Whether triggers must be asked in this run, or in the next attempt if it fails.
        callers: The requests of the hooks that are called on each fast run; another object if they have changed.
        by_hook: The session's objects for the hooks in the list, by the hooks' ids.
        awaited: The results for which late hooks wait; the device has not computed them yet.
        latched_count: The session's count of latched latches at the last look.
        stood: The number of runs in a row that have left the global step unchanged, while a hook waits for steps.

    Example:
        every(100) and every(secs=60), training at step 340, where a run is one step:

            finish       the triggers say "in 60 steps" and "in 21 s": a hook is due at step 400, or in 21 s
            59 runs      the fast path makes them; it counts runs and looks at the clock, and asks no trigger
            decide       for step 400: asks the first, which fires; the hook's fetches are part of this run
            finish       400 was reached: the first says "in 100 steps"; the second was not asked, its time stands

        If other code sets the step to 480 in between, the fast path ends, and `decide` asks the first for 481: it is
        due, because no run may skip a step on which it was. If the step is set to 120, all triggers move back to 120
        first, and all are asked.
    """

    def __init__(
        self,
        session: Session,
        hooks: HookList,
        before: Schedule | None = None,
        *,
        runs: int = 0,
        steps_per_run: int = 1,
        in_step: InStep | None = None,
    ) -> None:
        hooks.check_triggers()
        self._session, self._low, self._in_step = session, session.lowlevel, in_step
        step = self._seen_step = step_of(session)
        self._has_step = step is not None
        # If other workers advance the global step too, this session cannot predict the step after a run.
        self._steady = not self._low.shared
        if steps_per_run > 1 and not self._has_step:
            raise RuntimeError(
                f"steps_per_run={steps_per_run} counts global steps, and the graph has no global step. Create it with "
                "train.get_or_create_global_step()."
            )
        self._warned: set[str] = before._warned if before else set()
        self._hooks = [
            SessionHook(hook, place, session.graph, hooks, self._warned, in_step=in_step is not None)
            for place, hook in enumerate(hooks.hooks)
        ]
        self._leads = self._started(step, runs, before)
        if in_step is not None:
            in_step.hold(lead.trigger for lead in self._leads)
        self._stacked = sum(hook.bit for hook in self._hooks if hook.stacked) if steps_per_run > 1 else 0
        for lead in self._leads:
            lead.ends_runs = bool(lead.fires & ~self._stacked)
        # Firings that are late by some runs are delivered where a full run ends, and full runs end at multiples: so
        # they come at the same steps, even if other things (a clock, say) end runs.
        in_full_runs = steps_per_run > 1 and any(h.late and not isinstance(h.late, bool) for h in self._hooks)
        self.run = ScheduledRun(runs, steps_per_run, step or 0, in_full_runs=in_full_runs)
        self._here = (1 << len(self._hooks)) - 1
        self._bound_here = [hook.binding for hook in self._hooks if hook.binding is not None]
        self._is_bound = bool(self._bound_here)
        self.by_hook = {id(hook.hook): hook for hook in self._hooks}
        self._read_callers()
        self._announce()
        # When to ask: a trigger when a run reaches this step, or at this reading of the clock, or on this run.
        self._due_step = self._due_secs = -math.inf
        self._due_run = self._everyone_run = 0.0
        # What was expected of the last run.
        self._last_step = step or 0
        self._gain = 1
        self._expected_changes = -1
        self._fetches: Any = _NONE_YET
        self._fed: Any = None
        self._is_predictable = self.overdue = True
        self._counts_steps = self._low.expects_steps or any(lead.trigger.has_steps for lead in self._leads)
        self.stood = 0
        self._short_runs = self._called_on_short_runs = 0
        self._recalled: list[SessionHook] = []  # From the next run on.
        self.awaited: tuple[DeferredResults, ...] = ()
        self._late_run = math.inf
        self.latched_count = self._low.latched_count
        if before is not None:
            self._take_over(before)

    def _started(self, step: int | None, runs: int, before: Schedule | None) -> list[SessionHook]:
        """Starts the triggers; returns the hooks that lead."""
        leads: dict[int, SessionHook] = {}
        renewed = {id(lead.trigger) for lead in before._leads} if before else set()
        for hook in self._hooks:
            hook.start(step, runs, leads, renewed)
        for hook in self._hooks:
            hook.warn_if_incomplete()
        return list(leads.values())

    def _announce(self) -> None:
        """Announces the declared fetches to the session, and refuses those that are not in the graph."""
        hooks = [hook for hook in self._hooks if hook.lead.trigger is not None]
        for place in self._low.expect([hook.fetches for hook in hooks]):
            if hooks[place].before_trigger is None:
                hooks[place].check_in_graph(hooks[place].fetches, self._session.graph)

    def _take_over(self, other: Schedule) -> None:
        """Takes over the state of an earlier schedule."""
        other._resume_recalled()
        for earlier in other._hooks:
            mine = self.by_hook.get(id(earlier.hook))
            if mine is not None:
                mine.take_over(earlier)
        self.latched_count, self.run.waits = other.latched_count, other.run.waits
        self.awaited, self._late_run = other.awaited, other._late_run
        self._read_callers()

    def _read_callers(self) -> None:
        """Finds the hooks that take part in every run."""
        self._merged: dict[tuple[int, int], MergedRequests] = {}
        self._calls = sum(hook.bit for hook in self._hooks if hook.before or hook.after) | self._stacked
        self.callers = self._requests_of(0)

    def _requests_of(self, bits: int) -> MergedRequests:
        """Returns the merged requests of some hooks, in list order, for runs like this one."""
        if len(self._merged) >= _MOST_MERGED:
            self._merged.clear()
        hooks = [hook for hook in self._hooks if hook.bit & bits]
        parts = [part for hook in self._hooks if hook.bit & self._here for part in hook.latches]
        latches = tuple(dict.fromkeys(latch for part in parts for latch in part.latches))
        found = self._merged[bits, self._here] = MergedRequests(hooks, latches)
        return found

    # Before a run ----------------------------------------------------------------------------------------------

    def decide(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        number: int,
        available: Callable[[Any, int, float], int],
    ) -> MergedRequests:
        """Decides on the next run, which has these fetches; returns the requests of the hooks that take part.

        Args:
            fetches: The fetches.
            feed_dict: The caller's feeds.
            number: The number of the run, from 1 on.
            available: Returns the number of steps for which data are ready, from the fetches, the largest number
                wanted, and the number of steps until a hook is due.
        """
        run = self.run
        run.number, run.step = number, None
        if self._recalled:
            self._resume_recalled()
        gain = self._gain if run.gain is None else run.gain
        known = self._low.known_step if self._has_step else self._last_step
        is_set, step = False, known
        if step is None:
            step, changes = self._last_step + gain, self._low.step_changes
            # Other code has set the step, perhaps far past the steps at which hooks are due.
            is_set = changes != self._expected_changes
            self._expected_changes = changes + (run.gain != 0)
        else:
            self._expected_changes = -1
        gained = step - self._last_step
        self._last_step = step
        if gained < 0:
            for lead in self._leads:
                lead.trigger.start(step)
        # The gain of a run may depend on the fed tensors, too.
        fed = feed_key(feed_dict) if feed_dict else None
        if fetches is not self._fetches or fed != self._fed:
            self._look_up(fetches, feed_dict)
            self._fed = fed
            gain = self._gain if run.gain is None else run.gain
        run.reach = reach = step + gain if self._has_step else number
        knows_step = not self._has_step or (known is not None and bool(run.gain))
        self._is_predictable = self._steady and self._fetches is not _NONE_YET and knows_step
        now = -math.inf
        if self._in_step is not None or self._due_secs < math.inf:
            now = self._now()
        looks_again = number >= self._everyone_run and not self._is_predictable
        everyone = is_set or gained < 0 or not self._steady or looks_again
        if run.capacity > 1:
            run.repeats, run.room, run.begins_at = run.gain != 0, 1, known
            run.is_called = bool(self._calls & ~self._stacked & self._here)
            if run.repeats and not everyone and known is not None:
                self._make_room(fetches, available)
                number, reach = run.number, run.reach
        # If only the device knows the step after the run, it is asked after the run.
        is_open = self._counts_steps and run.gain is None
        is_due = number >= min(self._due_run, self._late_run) or reach >= self._due_step or now >= self._due_secs
        self.overdue = self.overdue or everyone or is_open or is_due
        run.firing = self._fire(reach, now, everyone=everyone) if self.overdue else 0
        bits = (self._calls | run.firing) & self._here
        if run.capacity > 1:
            self._note_short_run(self._calls & ~self._stacked & self._here or run.firing)
        return self._merged.get((bits, self._here)) or self._requests_of(bits)

    def _now(self) -> float:
        """Returns the clock's reading; in step see `InStep.now`."""
        return clock.monotonic() if self._in_step is None else self._in_step.now()

    def _fire(self, step: int, now: float, *, everyone: bool = False, at_end: bool = False) -> int:
        """Asks the triggers that may be due at this step and time; returns the hooks that fire, as bits.

        Args:
            step: The global step after the run, or the number of the run.
            now: The reading of the clock.
            everyone: Whether to ask all of them.
            at_end: Whether to ask those whose hooks are called at the end of a run, whatever its number of steps, and
                not the others.
        """
        run, firing = self.run, 0
        for lead in self._leads:
            if lead.ends_runs is at_end:
                continue
            lead.due = False
            is_asked = everyone or step >= lead.at_step or now >= lead.at_secs or run.number >= lead.at_run
            if is_asked and lead.is_due(step, run):
                firing |= lead.fires
        return firing & self._here

    def _make_room(self, fetches: Any, available: Callable[[Any, int, float], int]) -> None:
        """Decides how many steps the run holds: it ends where a hook is due, and with the data.

        Example:
            steps_per_run=16, at step 90, with a hook that is due at 100: the run may hold 10 steps, and ends at 100.
            If 7 batches are ready, it holds 7; the next one begins at 97, and may hold 3.
        """
        run, gain = self.run, self.run.gain
        if not gain or run.is_called:
            return
        limit = math.inf if self._session.step_limit is None else self._session.step_limit
        due_step, due_run = min(self._due_step, limit), min(self._due_run, self._late_run)
        more = min((due_step - run.reach) / gain, due_run - run.number)
        if run.in_full_runs:
            more = min(more, run.steps_left(run.reach // gain) - 1)
        to_come = 1 + (more if more == math.inf else math.ceil(max(0, more)))
        room = int(min(to_come, run.capacity))
        if room > 1:
            run.room = available(fetches, room, to_come)
            run.number += run.room - 1
            run.reach += (run.room - 1) * gain
            self._last_step += (run.room - 1) * gain

    def _note_short_run(self, called: int) -> None:
        """Counts runs in which the same hooks are called, so that they hold one step; logs these hooks, each once."""
        run = self.run
        is_short = run.repeats and run.room == 1
        both = called & (self._called_on_short_runs if self._short_runs else called) if is_short else 0
        self._called_on_short_runs, self._short_runs = both, self._short_runs + 1 if both else 0
        if self._short_runs <= _MANY_SHORT_RUNS:
            return
        for hook in self._hooks:
            mark = f"short runs {hook.bit}"
            if hook.bit & both and mark not in self._warned:
                self._warned.add(mark)
                _logger.info(
                    "steps_per_run=%d: each run holds one step, for the %s is called on each. Let it fire less often: "
                    "declare trigger and fetches in place of before_run and after_run. Or declare stacked = True, and "
                    "it is called once a run, with the values of all steps.",
                    run.capacity,
                    describe(hook.hook),
                )

    def shorten(self) -> None:
        """Limits the run to one step, from the present global step."""
        run, step = self.run, self._low.known_step
        run.number -= run.room - 1
        run.room, run.begins_at = 1, step
        if step is not None:
            run.reach, self._last_step = step + (run.gain or 0), step

    def count_failed_steps(self, made: int) -> None:
        """Counts the steps that a run has made before it failed."""
        for binding in self._bound_here:
            binding.runs += made

    def count_fast_runs(self, made: int) -> None:
        """Counts runs that were made on the fast path."""
        self._last_step += made * (self.run.gain or 0)
        self._short_runs = 0
        for binding in self._bound_here:
            binding.runs += made

    @property
    def expected_step(self) -> int | None:
        """The expected global step after the run under way; None in a graph without one."""
        return self.run.reach if self._has_step else None

    def limited(self, options: RunOptions | None) -> RunOptions | None:
        """Returns the options of the run, with the session's step limit if the run may reach it."""
        limit = self._session.step_limit
        if limit is None:
            return options
        if self._steady:
            step = self._low.known_step if self._has_step else self._last_step
            if step is not None and step < limit:
                return options
        return merge_options([options, RunOptions(last_step=limit)])

    def _look_up(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        """Finds the hooks that take part in runs of these fetches, and the gain of such a run in steps."""
        if self._is_bound:
            asked = operations_of(fetches, self._session.graph)
            here = [hook for hook in self._hooks if hook.binding is None or not hook.bound_to.isdisjoint(asked)]
            self._here = sum(hook.bit for hook in here)
            self._bound_here = [hook.binding for hook in here if hook.binding is not None]
        self._fetches, self.run.gain = _NONE_YET, None
        try:
            # Hooks will probably feed the same again: without it, a fetched placeholder may lack its value.
            calls = self._calls & self._here
            always = self._merged.get((calls, self._here)) or self._requests_of(calls)
            feeds = always.merged_feeds(feed_dict, self._session.graph) if always.feeders else feed_dict
            self.run.gain = self._low.gain(fetches, feeds)
        except Exception:  # The run itself raises the error, after `before_run` as always.
            return
        if isinstance(fetches, Tensor | Operation | str):  # A structure may be changed in place.
            self._fetches = fetches

    # After a run -----------------------------------------------------------------------------------------------

    def receivers(self, requests: MergedRequests) -> list[tuple[int, SessionHook]]:
        """Returns the hooks that get the results of a successful run, each with the index of its results.

        If the global step is not the expected one, hooks without requests are decided on again.
        """
        run = self.run
        if self._stacked:
            run.firing |= self._fire(run.reach, math.inf, everyone=True, at_end=True)
        if not (self._has_step and self._leads):
            return requests.after
        step = self._low.known_step
        if step is None and self.overdue:  # Asks the device, as `finish` would do later.
            step = self._session.global_step
        run.step = step
        return requests.after if step is None or step == run.reach else self._receivers_at(step, requests)

    def _receivers_at(self, step: int, requests: MergedRequests) -> list[tuple[int, SessionHook]]:
        """Decides again after a run that led to another step than the expected one.

        Example:
            A run from step 9 is expected to reach 10, and reaches 14. Three hooks fire at multiples of 5, 7 and 10:

                10, fetches the loss     was asked for 10 and fires: its value is that of this run
                7, fetches the loss      is due by now, at 14; it was not computed, so it fires on the next run
                5, needs no value        is due since 10, and fires with step 14
        """
        run = self.run
        at_end = run.firing & self._stacked
        fire = self._fire(step, self._now()) | at_end
        self.overdue = True
        # Hooks whose request was not made get nothing, nor do those that fire together with one of them.
        asking = {hook.lead for hook in self._hooks if hook.asks}
        unasked = sum(hook.bit for hook in self._hooks if hook.asks or hook.lead in asking) & ~run.firing
        run.firing = fire & ~unasked
        places = {hook: place for place, hook in enumerate(requests.hooks)}
        bits = run.firing | (self._calls & self._here)
        return [(places.get(hook, -1), hook) for hook in self._hooks if hook.bit & bits]

    def deliver_late(self, context: SessionRunContext, run: float = math.inf, *, is_lost: bool = False) -> None:
        """Calls the late hooks whose values have arrived, or whose run has come.

        Args:
            context: The context of the run under way, or a new one.
            run: The number of the last run; by default this waits for all values.
            is_lost: Whether the session is lost: the remaining firings are dropped with a log line.
        """
        lost, dropped = self._session if is_lost else None, 0
        for hook in self._hooks:
            if hook.waiting:
                dropped += hook.deliver_late(context, run, lost)
        if dropped:
            _logger.warning("%d late firings are dropped with their session.", dropped)
        firsts = [hook.waiting[0] for hook in self._hooks if hook.waiting]
        self.run.waits = bool(firsts)
        self._late_run = min((first.due_run for first in firsts), default=math.inf)
        self.awaited = tuple(first.results for first in firsts if first.due_run == math.inf)

    def deliver_latched(self, context: SessionRunContext, *, wait: bool = False) -> None:
        """Calls the hooks whose latch has latched, once for each latch; with `wait`, it first waits for all runs."""
        count, noted = self._low.latched_count, {}
        for hook in self._hooks:
            if hook.latches:
                hook.deliver_latched(self._session, context, noted, has_step=self._has_step, wait=wait)
        self.latched_count = count

    def settle(self, context: SessionRunContext) -> None:
        """Completes all requests of hooks so far; see `SessionRunContext.settle`."""
        self._session.settle()
        self.deliver_late(context)
        self.deliver_latched(context, wait=True)

    def finish(self) -> FastRuns | None:
        """Counts a successful run, and asks the triggers when they must be asked next.

        Returns:
            The runs like this one that may follow on the fast path; None if a hook may be due on the next run.
        """
        run = self.run
        for binding in self._bound_here:
            binding.runs += run.room
        step, run.step = run.step, None
        if step is None and self._has_step:
            step = self._session.global_step if self.overdue else self._low.known_step
        if self._counts_steps:
            self.stood = self.stood + 1 if step is not None and step == self._seen_step else 0
            self._seen_step = step
        if self.overdue:
            if step is not None:
                self._gain = max(1, step - self._last_step)
                self._last_step = step
            due_step = due_secs = due_run = math.inf
            for lead in self._leads:
                if lead.ends_runs:
                    if lead.at_run <= run.number:
                        lead.plan(run.number if step is None else step, run.number, bound=self._is_bound)
                    due_step = lead.at_step if lead.at_step < due_step else due_step
                    due_secs = lead.at_secs if lead.at_secs < due_secs else due_secs
                    due_run = lead.at_run if lead.at_run < due_run else due_run
            self._due_step, self._due_secs, self._due_run = due_step, due_secs, due_run
            if run.number >= self._everyone_run:
                self._everyone_run = run.number + _LOOK_AGAIN_RUNS
        run.firing, self.overdue = 0, False
        if not self._is_predictable or run.in_full_runs or (step is None and self._has_step):
            return None
        # The runs before that in which a hook may be due. A limit of the session ends the fast path, too.
        free = min(self._due_run, self._late_run) - run.number - 1
        if self._has_step and step is not None:
            limit = math.inf if self._session.step_limit is None else self._session.step_limit
            free = min(free, (min(self._due_step, limit) - 1 - step) // run.gain if run.gain else 0)
        # No run begins that might be too long.
        free -= run.capacity - 1 if run.repeats else 0
        callers = self._calls & self._here
        if free <= 0 or (callers and run.capacity > 1):
            return None
        self.callers = self._merged.get((callers, self._here)) or self._requests_of(callers)
        return FastRuns(free, self._due_secs, step, run.gain or 0, self.latched_count, self.awaited)

    def begin_fast_run(self) -> None:
        """Begins a run on the fast path, for the hooks that are called on each run."""
        run = self.run
        run.number += 1
        run.reach += (run.gain or 1) if self._has_step else 1

    # Hooks that leave and come back ----------------------------------------------------------------------------

    def retire(self, hook: Any) -> None:
        """Stops calling a hook on each run; see `SessionRunContext.retire`."""
        found = self.by_hook.get(id(hook))
        if found is not None and found.retire():
            self._read_callers()

    def recall(self, hook: Any) -> None:
        """Starts to call a retired hook on each run again, from the next one on."""
        found = self.by_hook.get(id(hook))
        if found is not None:
            self._recalled.append(found)

    def _resume_recalled(self) -> None:
        if not self._recalled:
            return
        for hook in self._recalled:
            hook.resume()
        self._recalled.clear()
        self._read_callers()


def step_of(session: Session) -> int | None:
    """Returns the global step of a session; None without one that can be counted."""
    try:
        return session.global_step
    except (RuntimeError, TypeError):
        return None
