"""Schedule: the decision on the hooks that take part in a run, and on the runs that need no decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hookline import clock
from hookline.graph import Operation, Tensor
from hookline.hooks.when import operations_of
from hookline.monitored.deferred import DeferredFirings
from hookline.monitored.delivery import Delivery
from hookline.monitored.fast_path import FastRuns
from hookline.monitored.hook_list import HookList
from hookline.monitored.hook_record import HookRecord, warn_of_incomplete
from hookline.monitored.in_step import InStep
from hookline.monitored.latched import LatchedFirings
from hookline.monitored.merged_requests import MergedRequests, announce
from hookline.monitored.scheduled_run import ScheduledRun
from hookline.monitored.session_triggers import SessionTriggers
from hookline.monitored.short_runs import ShortRuns
from hookline.session import RunOptions, Session, merge_options
from hookline.session.feeds import feed_key

_MOST_MERGED = 64
_NONE_YET = object()


class Schedule:
    """Decides before each run which hooks take part: those that override a run callback, and those that fire.

    It asks each trigger with the expected step after the run: the session knows the gain of a run in steps beforehand
    from the fetches. If only the device knows the gain, the device is asked after each run, and the gain of the last
    run is assumed. If the step turns out otherwise, hooks without requests are decided on again after the run.

    It also predicts the next run that must ask a trigger: `finish` returns how many may take the fast path before.

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
        delivery: Asks hooks for requests, and gives them results.
        deferred: The firings of late hooks that wait.
        latched: The firings of hooks whose latch has latched.
        overdue: Whether triggers must be asked again after this run.
        callers: The requests of the hooks that are called on each fast run; another object if they have changed.
        still: Whether this run and the one before have left the global step unchanged, and a hook waits for steps.
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
        self._in_step = in_step
        self._session, self._low = session, session.lowlevel
        self._has_step = _has_step(session)
        if steps_per_run > 1 and not self._has_step:
            raise RuntimeError(
                f"steps_per_run={steps_per_run} counts global steps, and the graph has no global step. Create it with "
                "train.get_or_create_global_step()."
            )
        self._records = [HookRecord(hook, place, session.graph, hooks) for place, hook in enumerate(hooks.hooks)]
        self._by_hook = {id(record.hook): record for record in self._records}
        self._capacity = steps_per_run
        self._stacked = sum(record.bit for record in self._records if record.stacked) if steps_per_run > 1 else 0
        self._warned: set[str] = before._warned if before else set()
        self._triggers = SessionTriggers(self._records, self._step(), runs, before._triggers if before else None)
        for record in self._records:
            warn_of_incomplete(record, self._warned)
        if in_step is not None:
            in_step.hold(forecast.trigger for forecast in self._triggers.forecasts)
        for forecast in self._triggers.forecasts:
            forecast.ends_runs = bool(forecast.bits & ~self._stacked)
        self._last_step = self._step() or 0
        # Firings that are late by some runs are delivered where a full run ends, and full runs end at multiples: so
        # they come at the same steps, even if other things (a clock, say) end runs.
        in_full_runs = steps_per_run > 1 and any(r.late and not isinstance(r.late, bool) for r in self._records)
        self.run = ScheduledRun(runs, steps_per_run, self._last_step, in_full_runs=in_full_runs)
        self.deferred = DeferredFirings(self._records, self._low)
        self.latched = LatchedFirings(self._records, session, has_step=self._has_step)
        self._short_runs = ShortRuns(self._records, steps_per_run, self._warned)
        self.delivery = Delivery(
            self._by_hook, self.run, self.deferred, self._stacked, self._warned, self._has_step, in_step is not None
        )
        self._here = self._all = (1 << len(self._records)) - 1
        self._bound_here = [record.binding for record in self._records if record.binding is not None]
        self._read_callers()
        announce([record for record in self._records if record.forecast is not None], session)
        # If other workers advance the global step too, this session cannot predict the step after a run.
        self._steady = not self._low.shared
        self._due_run: float = 0
        self._gain = 1
        self._fetches: Any = _NONE_YET
        self._fed: Any = None
        self._changes = 1  # of the step by one of the caller's runs
        self._expected_changes = -1
        self._free: float = 0
        self._is_predictable, self._stride = False, 1
        self._checks_step = self._has_step and bool(self._triggers.forecasts)
        has_steps = any(forecast.trigger.has_steps for forecast in self._triggers.forecasts)
        self._counts_steps = self._low.expects_steps or has_steps
        self.still, self._stood, self._seen_step = False, 0, self._step()
        self._recalled: list[HookRecord] = []
        self.overdue = True
        if before is not None:
            self._take_over(before)

    def _read_callers(self) -> None:
        """Finds the hooks that take part in every run."""
        self._merged: dict[tuple[int, int], MergedRequests] = {}
        self._calls = sum(record.bit for record in self._records if record.before or record.after) | self._stacked
        # A hook that shares the trigger of a hook with requests fires when that one does.
        asking = {record.forecast for record in self._records if record.asks and record.forecast is not None}
        self._asking = sum(record.bit for record in self._records if record.asks or record.forecast in asking)
        self.callers = self._requests_of(0)

    def _requests_of(self, bits: int) -> MergedRequests:
        """Returns the merged requests of some hooks, in list order, for runs like this one."""
        key = bits, self._here
        found = self._merged.get(key)
        if found is None:
            if len(self._merged) >= _MOST_MERGED:
                self._merged.clear()
            records = [record for record in self._records if record.bit & bits]
            latches = [leaf.operation for record in self._records if record.bit & self._here for leaf in record.latches]
            found = MergedRequests(records, self.delivery.ask_record, tuple(dict.fromkeys(latches)))
            self._merged[key] = found
        return found

    def _step(self) -> int | None:
        return self._session.global_step if self._has_step else None

    # Before a run ----------------------------------------------------------------------------------------------

    def decide(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        number: int,
        fast_runs: int,
        available: Callable[[Any, int, float], int] = lambda fetches, most, to_come: most,
    ) -> MergedRequests:
        """Decides on the next run, which has these fetches; returns the requests of the hooks that take part.

        Args:
            fetches: The fetches.
            feed_dict: The caller's feeds.
            number: The number of the run, from 1 on.
            fast_runs: The number of runs made on the fast path since the last call.
            available: Returns the number of steps for which data are ready, from the fetches, the largest number
                wanted, and the number of steps until a hook is due.
        """
        run, triggers = self.run, self._triggers
        run.number, run.step = number, None
        run.attempt += 1
        if self._recalled:
            self._resume_recalled()
        if fast_runs:
            self.count_fast_runs(fast_runs)
        gain = self._gain if run.gain is None else run.gain
        known = self._low.known_step if self._has_step else self._last_step
        is_set, step = False, known
        if step is None:
            step, changes = self._last_step + gain, self._low.step_changes
            # Other code has set the step, perhaps far past the steps at which hooks are due.
            is_set = changes != self._expected_changes
            self._expected_changes = changes + self._changes
        else:
            self._expected_changes = -1
        gained = step - self._last_step
        self._last_step = step
        if gained < 0:
            triggers.restart(step)
        # The gain of a run may depend on the fed tensors, too.
        fed = feed_key(feed_dict) if feed_dict else None
        if fetches is not self._fetches or fed != self._fed:
            self._look_up(fetches, feed_dict)
            self._fed = fed
            gain = self._gain if run.gain is None else run.gain
        run.reach = reach = step + gain if self._has_step else number
        self._free = 0
        self._is_predictable = is_predictable = (
            self._steady
            and self._fetches is not _NONE_YET
            and (not self._has_step or (known is not None and bool(run.gain)))
        )
        now = self._now()
        everyone = is_set or gained < 0 or not self._steady or (number >= triggers.everyone_run and not is_predictable)
        # If only the device knows the step after the run, it is asked after the run.
        is_open = self._counts_steps and run.gain is None
        if self._capacity > 1:
            run.repeats, run.room, run.begins_at = run.gain != 0, 1, known
            run.is_called = bool(self._calls & ~self._stacked & self._here)
            if run.repeats and not everyone and known is not None:
                self._make_room(fetches, available)
                number, reach = run.number, run.reach
        self.overdue = (
            everyone or is_open or number >= self._due_run or reach >= triggers.due_step or now >= triggers.due_secs
        )
        run.firing = 0
        if self.overdue:
            self._due_run = min(self._due_run, number)  # Another attempt asks again, until `finish` sets the next run.
            run.firing = triggers.fire(reach, now, number, run.room, everyone=everyone) & self._here
        elif is_predictable:
            self._free = self._runs_before(reach)
        bits = (self._calls | run.firing) & self._here
        if self._capacity > 1:
            called = self._calls & ~self._stacked & self._here or run.firing
            self._short_runs.note(called, is_short=run.repeats and run.room == 1)
        return self._merged.get((bits, self._here)) or self._requests_of(bits)

    def _now(self) -> float:
        """Returns the clock's reading if a trigger needs it, else minus infinity; in step see `InStep.now`."""
        if self._in_step is not None:
            return self._in_step.now()
        return clock.monotonic() if self._triggers.due_secs < math.inf else -math.inf

    def _make_room(self, fetches: Any, available: Callable[[Any, int, float], int]) -> None:
        """Decides how many steps the run holds: it ends where a hook is due, and with the data."""
        run, gain = self.run, self.run.gain
        if not gain or run.is_called:
            return
        limit = math.inf if self._session.step_limit is None else self._session.step_limit
        due_step, due_run = min(self._triggers.due_step, limit), min(self._triggers.due_run, self.deferred.due_run)
        more = min((due_step - run.reach) / gain, due_run - run.number)
        if run.in_full_runs:
            more = min(more, run.steps_left(run.reach // gain) - 1)
        to_come = 1 + (more if more == math.inf else math.ceil(max(0, more)))
        room = int(min(to_come, self._capacity))
        if room > 1:
            run.room = available(fetches, room, to_come)
            run.number += run.room - 1
            run.reach += (run.room - 1) * gain
            self._last_step += (run.room - 1) * gain

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
        self._short_runs.count = 0
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

    def _runs_before(self, reach: float) -> float:
        """Returns how many runs may follow a run that reaches this step before a hook is due."""
        runs, gain = self._due_run - self.run.number - 1, self.run.gain
        if self._has_step:
            limit = math.inf if self._session.step_limit is None else self._session.step_limit
            runs = min(runs, (min(self._triggers.due_step, limit) - 1 - reach) // gain if gain else 0)
        return max(runs, 0)

    def _look_up(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        """Finds the hooks that take part in runs of these fetches, and the gain of such a run in steps."""
        if self._triggers.bound:
            asked = operations_of(fetches, self._session.graph)
            self._here, self._bound_here = self._all, []
            for record in self._records:
                if record.binding is not None and record.bound_to.isdisjoint(asked):
                    self._here &= ~record.bit
                elif record.binding is not None:
                    self._bound_here.append(record.binding)
        self._fetches, self.run.gain, self._changes = _NONE_YET, None, 1
        try:
            # Hooks will probably feed the same again: without it, a fetched placeholder may lack its value.
            always = self._requests_of(self._calls & self._here)
            feeds = always.merged_feeds(feed_dict, self._session.graph) if always.feeders else feed_dict
            gain = self._low.gain(fetches, feeds)
            self.run.gain, self._changes = gain, int(gain != 0)
        except Exception:  # The run itself raises the error, after `before_run` as always.
            return
        if isinstance(fetches, Tensor | Operation | str):  # A structure may be changed in place.
            self._fetches = fetches

    # After a run -----------------------------------------------------------------------------------------------

    def receivers(self, requests: MergedRequests) -> list[tuple[int, HookRecord]]:
        """Returns the hooks that get the results of a successful run, each with the index of its results.

        If the global step is not the expected one, hooks without requests are decided on again.
        """
        run = self.run
        if self._stacked:
            run.firing |= self._triggers.fire_at_end(run.reach, run.number, run.room) & self._here
        if not self._checks_step:
            return requests.after
        step = self._low.known_step
        if step is None and self.overdue:  # Asks the device, as `finish` would do later.
            step = self._session.global_step
        run.step = step
        if step is None or step == run.reach:
            return requests.after
        at_end = run.firing & self._stacked
        self._due_run = min(self._due_run, run.number)
        fire = self._triggers.fire(step, self._now(), run.number, run.room) & self._here | at_end
        self.overdue = self.overdue or bool(fire)
        run.firing = fire & ~(self._asking & ~run.firing)  # Hooks whose request was not made get nothing.
        places = {record: place for place, record in enumerate(requests.records)}
        bits = run.firing | (self._calls & self._here)
        return [(places.get(record, -1), record) for record in self._records if record.bit & bits]

    def finish(self) -> FastRuns | None:
        """Counts a successful run, and asks the triggers when they must be asked next.

        Returns:
            The runs like this one that may follow on the fast path; None if a hook may be due on the next run.
        """
        run, triggers = self.run, self._triggers
        for binding in self._bound_here:
            binding.runs += run.room
        step, run.step = run.step, None
        if step is None and self._has_step:
            step = self._session.global_step if self.overdue else self._low.known_step
        if self._counts_steps:
            self._stood = self._stood + 1 if step is not None and step == self._seen_step else 0
            self.still, self._seen_step = self._stood > 1, step
        if self.overdue:
            if step is not None:
                self._gain = max(1, step - self._last_step)
                self._last_step = step
            triggers.plan(run.number if step is None else step, run.number)
            # Hooks that take rows are called on each run, so also on that one.
            self._due_run = triggers.due_run if self._stacked else min(triggers.due_run, self.deferred.due_run)
            self._free = self._runs_before(self._last_step) if self._is_predictable else 0
        if self._free <= 0 or run.in_full_runs or (step is None and self._has_step):
            return None
        callers = self._calls & self._here
        if callers and self._capacity > 1:
            return None
        self.callers = self._requests_of(callers)
        self._stride = (run.gain or 1) if self._has_step else 1
        run.firing, self.overdue = 0, False
        awaited = self.deferred.awaited
        return FastRuns(self._free, triggers.due_secs, step, run.gain or 0, self.latched.count, awaited)

    def begin_fast_run(self) -> None:
        """Begins a run on the fast path, for the hooks that are called on each run."""
        run = self.run
        run.number += 1
        run.attempt += 1
        run.reach += self._stride

    # Hooks that leave and come back ----------------------------------------------------------------------------

    def retire(self, hook: Any) -> None:
        """Stops calling a hook on each run; see `SessionRunContext.retire`."""
        record = self._by_hook.get(id(hook))
        if record is not None and record.retire():
            self._read_callers()

    def recall(self, hook: Any) -> None:
        """Starts to call a retired hook on each run again, from the next one on."""
        record = self._by_hook.get(id(hook))
        if record is not None:
            self._recalled.append(record)

    def _resume_recalled(self) -> None:
        if not self._recalled:
            return
        for record in self._recalled:
            record.resume()
        self._recalled.clear()
        self._read_callers()

    def _take_over(self, other: Schedule) -> None:
        """Takes over the state of an earlier schedule."""
        other._resume_recalled()
        for record in other._records:
            mine = self._by_hook.get(id(record.hook))
            if mine is not None:
                mine.before, mine.after, mine.waiting = record.before, record.after, record.waiting
                mine.latches = record.latches
        self.run.attempt, self.latched.count = other.run.attempt, other.latched.count
        self._read_callers()
        self.deferred.update()


def _has_step(session: Session) -> bool:
    try:
        return session.global_step is not None
    except (RuntimeError, TypeError):  # The graph has no global step, or one that cannot be counted.
        return False
