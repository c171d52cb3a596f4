"""Schedule: the hooks that fire in a run, and the number of runs before a trigger must be asked again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from hookline import clock
from hookline.errors import PREEMPTION_ERRORS
from hookline.graph import Operation, Tensor
from hookline.hooks.base import (
    Firing,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    ask_alone,
    deliver_alone,
)
from hookline.hooks.trigger import Trigger
from hookline.hooks.triggers import FirstRun, Latched
from hookline.hooks.when import operations_of
from hookline.monitored.callbacks import declares, describe, override
from hookline.monitored.hook_list import HookList
from hookline.monitored.in_step import InStep
from hookline.monitored.quiet import Foreseen
from hookline.monitored.rider import Late, Rider, Timer
from hookline.monitored.ridership import Ridership, check_in_graph
from hookline.session import DeferredResults, RunMetadata, RunOptions, Session, merge_options
from hookline.session.feeds import feed_key

_logger = logging.getLogger(__name__)

_NO_OPTIONS = RunOptions()
_LOOK_AGAIN_RUNS = 64
_MOST_RIDERSHIPS = 64
_MANY_SHORT_RUNS = 8
_LATE_RUNS_IN_STEP = 16
_NONE_YET = object()


class Schedule:
    """Decides before each run which hooks take part: those that override a run callback, and those that fire.

    It asks each trigger with the expected step after the run: the session knows the gain of a run in steps beforehand
    from the fetches. If only the device knows the gain, the device is asked after each run, and the gain of the last
    run is assumed. If the step turns out otherwise, hooks without requests are decided on again after the run.

    The runs before the next one that must ask a trigger are foreseen: `finish` returns how many may take the fast path.

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
        overdue: Whether triggers must be asked again after this run.
        alarms: The session's count of latched latches when they were last checked.
        awaited: The deferred results of late hooks that wait for the device.
        waits: Whether a late hook waits for values, or for a run.
        repeats: Whether the run may hold several steps.
        room: The number of steps that it may hold.
        begins_at: The global step before it, as far as it is known.
        callers: The hooks that are called on each foreseen run; another object if they have changed.
        is_called: Whether a hook that sees single steps is called on it.
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
        self._session, self._low, self._run = session, session.lowlevel, runs
        self._has_step = _has_step(session)
        if steps_per_run > 1 and not self._has_step:
            raise RuntimeError(
                f"steps_per_run={steps_per_run} counts global steps, and the graph has no global step. Create it with "
                "train.get_or_create_global_step()."
            )
        self._riders = [Rider(hook, place, session.graph, hooks) for place, hook in enumerate(hooks.hooks)]
        self._by_hook = {id(rider.hook): rider for rider in self._riders}
        self._capacity, self.repeats, self.room = steps_per_run, False, 1
        self.begins_at: int | None = None
        self.is_called = False
        self._short_runs = self._cutters = 0
        self._stacked = sum(rider.bit for rider in self._riders if rider.stacked) if steps_per_run > 1 else 0
        # Firings that are late by some runs are delivered where a full run ends, and full runs end at multiples: so
        # they come at the same steps, even if other things (a clock, say) end runs.
        self._has_lag = steps_per_run > 1 and any(r.late and not isinstance(r.late, bool) for r in self._riders)
        self._warned: set[str] = before._warned if before else set()
        self._timers = self._read_triggers({id(timer.trigger) for timer in before._timers} if before else set())
        if in_step is not None:
            in_step.hold(timer.trigger for timer in self._timers)
        for timer in self._timers:
            timer.ends_runs = bool(timer.bits & ~self._stacked)
        self._bound = any(rider.binding is not None for rider in self._riders)
        self._here = self._all = (1 << len(self._riders)) - 1
        self._read_riders()
        self._expect([rider for rider in self._riders if rider.timer is not None])
        # If other workers advance the global step too, this session cannot foresee the step after a run.
        self._steady = not self._low.shared
        self._last_step = step = self._step() or 0
        self._reach = step
        self._due_step = self._due_secs = -math.inf
        self._due_run: float = 0
        self._asked_run: float = 0
        self._everyone_run = self._attempt = 0
        self._firing = 0
        self._came: int | None = None
        self.awaited: tuple[DeferredResults, ...] = ()
        self.waits, self._late_run = False, math.inf
        self._gain = 1
        self._fetches: Any = _NONE_YET
        self._fed: Any = None
        self._planned_gain: int | None = None
        self._changes = 1  # of the step by one of the caller's runs
        self._expected_changes, self.alarms = -1, self._low.latched_count
        self._free: float = 0
        self._foreseen, self._stride = False, 1
        self._counts_steps = self._low.expects_steps or any(timer.trigger.has_steps for timer in self._timers)
        self.still, self._stood, self._seen_step = False, 0, self._step()
        self._recalled: list[Rider] = []
        self.overdue = True
        if before is not None:
            self._take_over(before)

    def _read_triggers(self, started: Container[int]) -> list[Timer]:
        """Reads the triggers of the hooks and starts them; `started` are those that the earlier schedule had."""
        timers: dict[int, Timer] = {}
        for rider in self._riders:
            trigger = getattr(rider.hook, "trigger", None)
            if trigger is not None and not isinstance(trigger, Trigger) and declares(rider.hook):
                raise TypeError(
                    f"The {describe(rider.hook)} must have a Trigger (or None) as trigger, got {trigger!r}."
                )
            self._warn_of_what_is_missing(rider)
            if trigger is None or not declares(rider.hook):
                continue
            if trigger.has_steps and not self._has_step:
                raise RuntimeError(
                    f"The {describe(rider.hook)} fires at steps ({trigger!r}), and the graph has no global step. "
                    "Create it with train.get_or_create_global_step()."
                )
            rider.latches = {leaf: False for leaf in trigger.leaves() if isinstance(leaf, Latched)}
            if id(trigger) not in timers:
                trigger.start(self._session.global_step if self._has_step else self._run)
                for leaf in trigger.leaves():
                    if isinstance(leaf, FirstRun) and id(trigger) not in started:
                        leaf.renew()
            rider.timer = timers.setdefault(id(trigger), Timer(trigger))
            rider.timer.bits |= rider.bit
        return list(timers.values())

    def _expect(self, riders: Sequence[Rider]) -> None:
        """Announces all fetches of these hooks, and refuses those that are not in the graph before they are due."""
        for place in self._low.expect([rider.fetches for rider in riders]):
            if riders[place].before_trigger is None:
                check_in_graph(riders[place].hook, riders[place].fetches, self._session.graph)

    def _read_riders(self) -> None:
        """Finds the hooks that take part in every run."""
        self._riderships: dict[tuple[int, int], Ridership] = {}
        self._calls = sum(rider.bit for rider in self._riders if rider.before or rider.after) | self._stacked
        # A hook that shares the trigger of a hook with requests fires when that one does.
        asking = {rider.timer for rider in self._riders if rider.asks and rider.timer is not None}
        self._asking = sum(rider.bit for rider in self._riders if rider.asks or rider.timer in asking)
        self.callers = self._of(0)

    def _of(self, bits: int) -> Ridership:
        """Returns the merged requests of some hooks, in list order, for runs like this one."""
        key = bits, self._here
        found = self._riderships.get(key)
        if found is None:
            if len(self._riderships) >= _MOST_RIDERSHIPS:
                self._riderships.clear()
            riding = [rider for rider in self._riders if rider.bit & bits]
            latches = [leaf.operation for rider in self._riders if rider.bit & self._here for leaf in rider.latches]
            found = self._riderships[key] = Ridership(riding, self.ask_rider, tuple(dict.fromkeys(latches)))
        return found

    def _step(self) -> int | None:
        return self._session.global_step if self._has_step else None

    # Before a run ----------------------------------------------------------------------------------------------

    def decide(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        run: int,
        passed: int,
        available: Callable[[Any, int, float], int] = lambda fetches, most, to_come: most,
    ) -> Ridership:
        """Returns the hooks that take part in the next run, which has these fetches.

        Args:
            fetches: The fetches.
            feed_dict: The caller's feeds.
            run: The number of the run, from 1 on.
            passed: The number of foreseen runs that were made since the last call.
            available: Returns the number of steps for which data are ready, from the fetches, the largest number
                wanted, and the number of steps until a hook is due.
        """
        self._run, self._came = run, None
        self._attempt += 1
        if self._recalled:
            self._bring_back()
        if passed:
            self.let_pass(passed)
        session = self._session
        gain = self._gain if self._planned_gain is None else self._planned_gain
        known = session.lowlevel.known_step if self._has_step else self._last_step
        is_set, step = False, known
        if step is None:
            step, changes = self._last_step + gain, session.lowlevel.step_changes
            # Other code has set the step, perhaps far past the steps at which hooks are due.
            is_set = changes != self._expected_changes
            self._expected_changes = changes + self._changes
        else:
            self._expected_changes = -1
        gained = step - self._last_step
        self._last_step = step
        if gained < 0:
            for timer in self._timers:
                timer.trigger.start(step)
        # The gain of a run may depend on the fed tensors, too.
        fed = feed_key(feed_dict) if feed_dict else None
        if fetches is not self._fetches or fed != self._fed:
            self._look_up(fetches, feed_dict)
            self._fed = fed
            gain = self._gain if self._planned_gain is None else self._planned_gain
        self._reach = reach = step + gain if self._has_step else run
        self._free = 0
        self._foreseen = foreseen = (
            self._steady
            and self._fetches is not _NONE_YET
            and (not self._has_step or (known is not None and bool(self._planned_gain)))
        )
        now = self._now()
        everyone = is_set or gained < 0 or not self._steady or (run >= self._everyone_run and not foreseen)
        # If only the device knows the step after the run, it is asked after the run.
        is_open = self._counts_steps and self._planned_gain is None
        if self._capacity > 1:
            self.repeats, self.room, self.begins_at = self._planned_gain != 0, 1, known
            self.is_called = bool(self._calls & ~self._stacked & self._here)
            if self.repeats and not everyone and known is not None:
                self._make_room(fetches, available)
            run, reach = self._run, self._reach
        self.overdue = everyone or is_open or run >= self._due_run or reach >= self._due_step or now >= self._due_secs
        self._firing = self._asked(reach, now, everyone) if self.overdue else 0
        if foreseen and not self.overdue:
            self._free = self._runs_before(reach)
        bits = (self._calls | self._firing) & self._here
        if self._capacity > 1:
            self._look_who_cuts(self._calls & ~self._stacked & self._here or self._firing)
        return self._riderships.get((bits, self._here)) or self._of(bits)

    def _now(self) -> float:
        """Returns the clock's reading if a trigger needs it, else minus infinity; in step see `InStep.now`."""
        if self._in_step is not None:
            return self._in_step.now()
        return clock.monotonic() if self._due_secs < math.inf else -math.inf

    def _make_room(self, fetches: Any, available: Callable[[Any, int, float], int]) -> None:
        """Decides how many steps the run holds: it ends where a hook is due, and with the data."""
        gain, run, reach = self._planned_gain, self._run, self._reach
        if not gain or self.is_called:
            return
        limit = math.inf if self._session.step_limit is None else self._session.step_limit
        more = min((min(self._due_step, limit) - reach) / gain, min(self._asked_run, self._late_run) - run)
        if self._has_lag:
            more = min(more, self._steps_left(reach // gain) - 1)
        to_come = 1 + (more if more == math.inf else math.ceil(max(0, more)))
        room = int(min(to_come, self._capacity))
        if room > 1:
            self.room = available(fetches, room, to_come)
            self._run += self.room - 1
            self._reach += (self.room - 1) * gain
            self._last_step += (self.room - 1) * gain

    def shorten(self) -> None:
        """Limits the run to one step, from the present global step."""
        gain, step = self._planned_gain or 0, self._low.known_step
        self._run -= self.room - 1
        self.room, self.begins_at = 1, step
        if step is not None:
            self._reach, self._last_step = step + gain, step

    def let_fail(self, made: int) -> int:
        """Notes that the run has failed after this many steps, which count as runs; returns their number."""
        for rider in self._riders:
            if rider.binding is not None and rider.bit & self._here:
                rider.binding.runs += made
        return made

    def _steps_left(self, number: int) -> int:
        """Returns the number of steps to the end of a full run, counted from the step with this number."""
        return self._capacity - (number - 1) % self._capacity

    def _look_who_cuts(self, bits: int) -> None:
        """Logs the hooks that are called so often that no run holds several steps."""
        is_short = self.repeats and self.room == 1
        self._cutters = bits & (self._cutters if self._short_runs else bits) if is_short else 0
        self._short_runs = self._short_runs + 1 if self._cutters else 0
        if self._short_runs <= _MANY_SHORT_RUNS:
            return
        for rider in self._riders:
            if rider.bit & self._cutters and f"cuts {rider.bit}" not in self._warned:
                self._warned.add(f"cuts {rider.bit}")
                _logger.info(
                    "steps_per_run=%d: each run holds one step, for the %s is called on each. Let it fire less often: "
                    "declare trigger and fetches in place of before_run and after_run. Or declare stacked = True, and "
                    "it is called once a run, with the values of all steps.",
                    self._capacity,
                    describe(rider.hook),
                )

    def let_pass(self, passed: int) -> None:
        """Counts foreseen runs that have been made."""
        self._last_step += passed * (self._planned_gain or 0)
        self._short_runs = 0
        for rider in self._riders:
            if rider.binding is not None and rider.bit & self._here:
                rider.binding.runs += passed

    def _asked(self, step: int, now: float, everyone: bool = False) -> int:
        """Asks the triggers that may be due; returns the hooks that fire."""
        run, firing = self._run, 0
        self._due_run = min(self._due_run, run)  # Another attempt asks again, until `plan` sets the next run.
        for timer in self._timers:
            if not timer.ends_runs:
                continue
            timer.due = False
            if everyone or step >= timer.at_step or now >= timer.at_secs or run >= timer.at_run:
                timer.at_run = run  # It is asked again after this run, and in the next attempt.
                if timer.counts:
                    timer.trigger.count_runs(self._runs_of(timer))
                if timer.trigger.should_trigger_for_step(step):
                    timer.due = True
                    firing |= timer.bits
        return firing & self._here

    def _runs_of(self, timer: Timer) -> int:
        """Returns the number of this run for a trigger: a hook that is bound to some runs counts only those."""
        if self._bound:
            for rider in self._riders:
                if rider.timer is timer and rider.binding is not None:
                    return rider.binding.runs + self.room
        return self._run

    @property
    def expected_step(self) -> int | None:
        """The expected global step after the run under way; None in a graph without one."""
        return self._reach if self._has_step else None

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
        runs = self._due_run - self._run - 1
        if self._has_step:
            limit = math.inf if self._session.step_limit is None else self._session.step_limit
            due_step = min(self._due_step, limit)
            runs = min(runs, (due_step - 1 - reach) // self._planned_gain if self._planned_gain else 0)
        return max(runs, 0)

    def _look_up(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        self._here = self._all
        if self._bound:
            asked = operations_of(fetches, self._session.graph)
            for rider in self._riders:
                if rider.binding is not None and rider.bound_to.isdisjoint(asked):
                    self._here &= ~rider.bit
        self._fetches, self._planned_gain, self._changes = _NONE_YET, None, 1
        try:
            # Hooks will probably feed the same again: without it, a fetched placeholder may lack its value.
            always = self._of(self._calls & self._here)
            feeds = always.merged_feeds(feed_dict, self._session.graph) if always.feeders else feed_dict
            gain = self._low.gain(fetches, feeds)
            self._planned_gain, self._changes = gain, int(gain != 0)
        except Exception:  # The run itself raises the error, after `before_run` as always.
            return
        if isinstance(fetches, Tensor | Operation | str):  # A structure may be changed in place.
            self._fetches = fetches

    # In a run --------------------------------------------------------------------------------------------------

    def ask(self, hook: Any, context: SessionRunContext) -> SessionRunArgs | None:
        """Returns the request of a hook that fires in this run; a hook unknown to the session decides by itself."""
        rider = self._by_hook.get(id(hook))
        return ask_alone(hook, context) if rider is None else self.ask_rider(rider, context)

    def ask_rider(self, rider: Rider, context: SessionRunContext) -> SessionRunArgs | None:
        """Returns the request of a hook that fires in this run."""
        rider.asked = self._attempt
        if not (self._firing | self._stacked) & rider.bit:
            return None
        return rider.args if rider.before_trigger is None else rider.before_trigger(context)

    def came_out(self, riders: Ridership) -> list[tuple[int, Rider]]:
        """Returns the hooks that get the results of a successful run, each with the index of its results.

        If the global step is not the expected one, hooks without requests are decided on again.
        """
        if self._stacked:
            self._ask_at_end()
        if not self._has_step or not self._timers:
            return riders.after
        step = self._low.known_step
        if step is None and self.overdue:  # Asks the device, as `plan` would do later.
            step = self._session.global_step
        self._came = step
        if step is None or step == self._reach:
            return riders.after
        now = self._now()
        at_end = self._firing & self._stacked
        fire = self._asked(step, now) | at_end
        self.overdue = self.overdue or bool(fire)
        self._firing = fire & ~(self._asking & ~self._firing)  # Hooks whose request was not made get nothing.
        places = {rider: place for place, rider in enumerate(riders.riders)}
        bits = self._firing | (self._calls & self._here)
        return [(places.get(rider, -1), rider) for rider in self._riders if rider.bit & bits]

    def _ask_at_end(self) -> None:
        """Asks the triggers whose hooks are called at the end of a run, regardless of its number of steps."""
        for timer in self._timers:
            if not timer.ends_runs:
                if timer.counts:
                    timer.trigger.count_runs(self._runs_of(timer))
                if timer.trigger.should_trigger_for_step(self._reach):
                    self._firing |= timer.bits & self._here

    def deliver(self, hook: Any, context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Calls a hook if it fires in this run; a hook unknown to the session decides by itself."""
        rider = self._by_hook.get(id(hook))
        if rider is None:
            deliver_alone(hook, context, run_values)
        else:
            self.deliver_to(rider, context, *run_values)

    def deliver_to(
        self, rider: Rider, context: SessionRunContext, results: Any, options: RunOptions, run_metadata: RunMetadata
    ) -> None:
        """Calls a hook if it fires in this run, after its trigger has noted the firing."""
        timer = rider.timer
        if timer is None or not self._firing & rider.bit or rider.given == self._attempt:
            return
        rider.given = self._attempt
        if timer.fired != self._attempt:  # Another hook may have the same trigger.
            timer.fired, timer.due = self._attempt, False
            came = self._came if self._came is not None else self._run
            timer.elapsed = timer.trigger.update_last_triggered_step(came)
        if rider.before is not None and rider.fetches is not None and rider.asked != self._attempt:
            self._warn_once(
                type(rider.hook).__name__,
                "%s declares fetches, and its before_run did not ask for them: call super().before_run(run_context) "
                "and return what it returns, or leave out fetches.",
                type(rider.hook).__name__,
            )
        elapsed_secs, elapsed_steps = timer.elapsed
        step = self._came if self._has_step else None
        about = step, elapsed_steps if self._has_step else None, elapsed_secs
        if late := rider.late:
            # In step the hooks of all processes are called on the same run.
            late = _LATE_RUNS_IN_STEP if late is True and self._in_step is not None else late
            due_run = math.inf if late is True else self._run + self._lag(rider, late)
            results = results if isinstance(results, DeferredResults) else DeferredResults.of(results)
            rider.waiting.append(Late(results, due_run, *about, options, run_metadata))
            self.waits = True
        else:
            rider.on_trigger(Firing(results, *about, options, run_metadata, context))

    def _lag(self, rider: Rider, late: int) -> int:
        """Returns the delay in runs of a firing that is `late` runs late: to the end of a run, if runs hold several."""
        gain = self._planned_gain
        if not self._has_lag or not gain:
            return late
        number = self._reach // gain
        # Rows may come before the end of a full run, if something else has ended the run.
        here = self._steps_left(number) - 1 if rider.stacked else 0
        after = here + late
        return after + self._steps_left(number + after) - 1

    def _warn_of_what_is_missing(self, rider: Rider) -> None:
        """Warns of a hook that has only a trigger or only an `on_trigger`, and so does nothing."""
        is_called = override(rider.hook, "on_trigger") is not None
        has_trigger = isinstance(getattr(rider.hook, "trigger", None), Trigger)
        place = f"{type(rider.hook).__name__}.on_trigger"
        if rider.before or rider.after or rider.before_trigger or is_called == has_trigger:
            return
        self._warn_once(
            place,
            "The %s has a trigger and no on_trigger: nothing is called when it fires. Define on_trigger(self, firing)."
            if has_trigger
            else "The %s has an on_trigger and no trigger: it never fires. Set trigger in the class, or at the latest "
            "in after_create_session; a subclass that overrides that calls super().",
            describe(rider.hook),
        )

    def _warn_once(self, about: str, text: str, name: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _logger.warning(text, name)

    def retire(self, hook: Any) -> None:
        """Stops calling a hook on each run; see `SessionRunContext.retire`."""
        rider = self._by_hook.get(id(hook))
        if rider is not None and rider.retire():
            self._read_riders()

    def recall(self, hook: Any) -> None:
        """Starts to call a retired hook on each run again, from the next one on."""
        rider = self._by_hook.get(id(hook))
        if rider is not None:
            self._recalled.append(rider)

    def _bring_back(self) -> None:
        if not self._recalled:
            return
        for rider in self._recalled:
            rider.come_back()
        self._recalled.clear()
        self._read_riders()

    # Between runs ----------------------------------------------------------------------------------------------

    def deliver_late(self, context: SessionRunContext, run: float = math.inf, *, is_lost: bool = False) -> None:
        """Calls late hooks whose values have arrived, or whose run has come.

        Args:
            context: The context of the run under way, or a new one.
            run: The number of the last run; by default this waits for all values.
            is_lost: Whether the session is lost: the remaining firings are dropped with a log line, and errors from
                the loss are only logged.
        """
        dropped = 0
        for rider in self._riders:
            waiting = rider.waiting
            while waiting and waiting[0].is_due(run):
                late = waiting.popleft()
                try:
                    values = rider.values(late)
                except Exception:  # Lost with the session; the recovery says why.
                    if not is_lost:
                        raise
                    dropped += 1
                    continue
                try:
                    rider.on_trigger(Firing(values, *late[2:], context))
                except Exception as exc:
                    if not is_lost or not isinstance(self._low.map_error(exc), PREEMPTION_ERRORS):
                        raise
                    _logger.warning("The %s failed in on_trigger: its session is lost.", describe(rider.hook))
            if is_lost:
                dropped += len(waiting)
                waiting.clear()
        if dropped:
            _logger.warning("%d late firings are dropped with their session.", dropped)
        self._await()

    def _await(self) -> None:
        """Finds the results and runs that late hooks wait for."""
        self.waits, self._late_run, awaited = False, math.inf, []
        for rider in self._riders:
            if rider.waiting:
                first, self.waits = rider.waiting[0], True
                if first.due_run == math.inf:
                    awaited.append(first.results)
                elif first.due_run < self._late_run:
                    self._late_run = first.due_run
        self.awaited = tuple(awaited)

    def look_at_latches(self, context: SessionRunContext, *, wait: bool = False) -> None:
        """Calls the hooks whose latch has latched; with `wait`, it first waits for all runs so far."""
        alarms = self._low.latched_count
        elapsed: dict[Latched, tuple[float | None, int | None]] = {}  # Hooks may share a trigger.
        for rider in self._riders:
            for leaf, known in rider.latches.items():
                step = self._session.latched(leaf.operation, wait=wait)
                rider.latches[leaf] = step is not None
                if step is None or known:
                    continue
                # The other parts of its trigger keep their phases: the step may be long past.
                if leaf not in elapsed:
                    elapsed[leaf] = leaf.update_last_triggered_step(step)
                secs, steps = elapsed[leaf]
                about = (step, steps) if self._has_step else (None, None)
                rider.on_trigger(Firing(None, *about, secs, _NO_OPTIONS, RunMetadata(), context))
        self.alarms = alarms

    def finish(self) -> Foreseen | None:
        """Counts a successful run, and asks the triggers when they must be asked next.

        Returns:
            The runs like this one that may follow before a hook is due; None if the next run may be due.
        """
        if self._bound:
            for rider in self._riders:
                if rider.binding is not None and rider.bit & self._here:
                    rider.binding.runs += self.room
        step, self._came = self._came, None
        if step is None and self._has_step:
            step = self._session.global_step if self.overdue else self._low.known_step
        if self._counts_steps:
            self._stood = self._stood + 1 if step is not None and step == self._seen_step else 0
            self.still, self._seen_step = self._stood > 1, step
        if self.overdue:
            self._plan(step)
        if self._free <= 0 or self._has_lag or (step is None and self._has_step):
            return None
        callers = self._calls & self._here
        if callers and self._capacity > 1:
            return None
        self.callers = self._of(callers)
        self._stride = (self._planned_gain or 1) if self._has_step else 1
        self._firing, self.overdue = 0, False
        return Foreseen(self._free, self._due_secs, step, self._planned_gain or 0, self.alarms, self.awaited)

    def go_on(self) -> None:
        """Begins a foreseen run, for the hooks that are called on each run."""
        self._run += 1
        self._attempt += 1
        self._reach += self._stride

    def _plan(self, step: int | None) -> None:
        run = self._run
        if step is not None:
            self._gain = max(1, step - self._last_step)
            self._last_step = step
        due_step = due_secs = due_run = math.inf
        for timer in self._timers:
            if not timer.ends_runs:
                continue
            if timer.at_run <= run:
                timer.plan(run if step is None else step, run, bound=self._bound)
            due_step = min(due_step, timer.at_step)
            due_secs = min(due_secs, timer.at_secs)
            due_run = min(due_run, timer.at_run)
        if run >= self._everyone_run:
            self._everyone_run = run + _LOOK_AGAIN_RUNS
        self._due_step, self._due_secs, self._asked_run = due_step, due_secs, due_run
        # Hooks that take rows are called on each run, so also on that one.
        self._due_run = due_run if self._stacked else min(due_run, self._late_run)
        self._free = self._runs_before(self._last_step) if self._foreseen else 0

    @property
    def riders(self) -> list[Rider]:
        """The hooks, as the next run knows them."""
        self._bring_back()
        return self._riders

    def stand_in_for(self, other: Schedule, results: DeferredResults) -> None:
        """Goes on where another one stands, for a rehearsal with the same hooks: it logs nothing.

        Args:
            other: The other one.
            results: In place of those that its firings wait for.
        """
        for mine, theirs in zip(self._riders, other._riders, strict=True):
            mine.waiting.extend(late._replace(results=results) for late in theirs.waiting)
        for mine, theirs in zip(self._timers, other._timers, strict=True):
            mine.go_on_from(theirs)
        self._due_step, self._due_secs, self._due_run = other._due_step, other._due_secs, other._due_run
        self._asked_run, self._everyone_run, self._gain = other._asked_run, other._everyone_run, other._gain
        self._warned = {f"cuts {rider.bit}" for rider in self._riders}
        self._await()

    def _take_over(self, other: Schedule) -> None:
        """Takes over the state of an earlier schedule."""
        other._bring_back()
        for rider in other._riders:
            mine = self._by_hook.get(id(rider.hook))
            if mine is not None:
                mine.before, mine.after, mine.waiting = rider.before, rider.after, rider.waiting
                mine.latches = rider.latches
        self._attempt, self.alarms = other._attempt, other.alarms
        self._read_riders()
        self._await()


def _has_step(session: Session) -> bool:
    try:
        return session.global_step is not None
    except (RuntimeError, TypeError):  # The graph has no global step, or one that cannot be counted.
        return False
