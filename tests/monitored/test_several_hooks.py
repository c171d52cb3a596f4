"""Several hooks with triggers, in one session and in several; wrapped hooks; calls of hooks to the session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitored.conftest import QUICK, run, warnings_of
from tests.stand_ins import Servers

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.testing import FakeClock

# Several hooks, several sessions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True, 2])
def test_hooks_that_share_a_trigger_fire_together(late, fires, train_op):
    trigger = train.every(4)
    asking, idle, other = fires(trigger, fetches="global_step:0", late=late), fires(trigger), fires(train.every(3))
    with train.MonitoredSession(hooks=[idle, other, asking]) as session:
        run(session, train_op, 13)
    assert asking.steps == idle.steps == [4, 8, 12]
    assert asking.elapsed == idle.elapsed


def test_hooks_that_share_a_trigger_fire_together_after_an_unexpected_step(fires):
    jump = train.get_or_create_global_step().assign_add(5)
    trigger = train.every(10)
    idle, asking = fires(trigger), fires(trigger, fetches="global_step:0")
    with train.MonitoredSession(hooks=[RunsRaw(jump), idle, asking]) as session:
        run(session, jump, 4)
    assert idle.steps == asking.steps
    assert asking.steps


class RunsRaw(train.SessionRunHook):
    """Advances the step itself before the first run."""

    def __init__(self, fetches):
        self._fetches = fetches

    def before_run(self, run_context):
        if not run_context.runs:
            run_context.session.run(self._fetches)


def test_hook_fires_once_per_run_though_it_calls_super_twice_and_again_in_a_retry(training, fires):
    class Twice(fires):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            super().after_run(run_context, run_values)

    class Fails(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.runs == 3 and not self.has_failed:
                self.has_failed = True
                raise ValueError

        has_failed = False

    trigger = train.every(runs=2)
    alone, twice = fires(trigger), Twice(trigger)
    with train.MonitoredSession(hooks=[Fails(), alone, twice]) as session:
        run(session, training.train_op, 3)
        with pytest.raises(ValueError):  # noqa: PT011 - it is ours
            session.run(training.train_op)
        run(session, training.train_op, 3)
    assert alone.steps == twice.steps == [1, 3, 6]
    assert [steps for steps, _ in alone.elapsed] == [steps for steps, _ in twice.elapsed] == [None, 2, 3]


def test_trigger_declared_by_a_class_has_a_phase_per_hook(fires, train_op):
    class Prints(fires):
        trigger = train.every(2)

    other = train.get_or_create_global_step().assign_add(1).op
    first, second = Prints(), Prints()
    with train.MonitoredSession(hooks=[train.only_for(train_op, first), train.only_for(other, second)]) as session:
        run(session, train_op, 3)
        with hl.Graph().as_default():  # An evaluation meanwhile, say.
            count = train.get_or_create_global_step().assign_add(1)
            with train.MonitoredSession(hooks=[inner := Prints()]) as evaluation:
                run(evaluation, count, 5)
        session.run(other)
        run(session, train_op, 2)
    assert inner.steps == [2, 4]
    assert first.steps == [2, 5, 6]  # step 4 was made elsewhere
    assert second.steps == [4]
    assert Prints.trigger.last_triggered_step() is None


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("make", [lambda: train.every(3), lambda: train.every(runs=3), train.first_run])
def test_trigger_starts_again_in_the_next_session(make, add, fires, train_op):
    hook, reference = fires(make()), fires(make())
    for _ in range(2):
        hook.firings.clear()
        with train.MonitoredSession(hooks=[] if add else [hook]) as session:
            if add:
                session.add_hook(hook)
            run(session, train_op, 7)
    with train.MonitoredSession(hooks=[reference]) as session:
        run(session, train_op, 7)
    assert hook.steps == reference.steps
    assert hook.elapsed[0] == (None, None)


def test_added_hook_keeps_phases_and_deferred_firings_of_the_others(fires, train_op):
    first, counts = fires(train.first_run()), fires(train.every(runs=4))
    late, added = fires(train.every(4), fetches="global_step:0", late=5), fires(train.first_run())
    with train.MonitoredSession(hooks=[first, counts, late]) as session:
        run(session, train_op, 6)
        session.add_hook(added)
        run(session, train_op, 2)
        assert late.steps == []
        run(session, train_op, 2)
    assert (first.steps, counts.steps, added.steps) == ([1], [1, 5, 9], [7])
    assert late.steps == [4, 8]


class OnEachRun(train.SessionRunHook):
    """Is called on each run, and fires besides."""

    def __init__(self, trigger, fetches, late):
        self.trigger, self.fetches, self.deferred, self.steps = trigger, fetches, late, []

    def before_run(self, run_context):
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)

    def on_trigger(self, firing):
        self.steps.append(firing.global_step)


NUMBERS = st.integers(1, 9)
SIMPLE = st.one_of(
    st.builds(lambda n: lambda: train.every(n), NUMBERS),
    st.builds(lambda n: lambda: train.first_then_every(n), NUMBERS),
    st.builds(lambda n: lambda: train.every(runs=n), NUMBERS),
    st.builds(lambda n, more: lambda: train.at_steps(n, n + more, 40), NUMBERS, NUMBERS),
    st.just(train.first_run),
    st.just(train.log_spaced),
    st.builds(lambda n: lambda: train.when_step(lambda step: step % (n + 2) == 1), NUMBERS),
    st.builds(lambda n: lambda: train.every(n) & train.every(3), NUMBERS),
    st.just(lambda: train.every(secs=60)),
)
HOOK = st.tuples(
    st.booleans(),
    st.one_of(SIMPLE, st.builds(lambda one, other: lambda: one() | other(), SIMPLE, SIMPLE)),
    st.sampled_from([None, "loss:0", "norm:0"]),
    st.sampled_from([False, True, 2, 3]),
    st.booleans(),
)


@given(
    hooks=st.lists(HOOK, min_size=1, max_size=4),
    gain=st.sampled_from([1, 2]),
    steps_per_run=st.sampled_from([1, 1, 4, 16]),
    last_step=st.integers(1, 52),
)
def test_other_hooks_and_steps_per_run_do_not_change_when_a_hook_fires(hooks, gain, steps_per_run, last_step, fires):
    def steps_of(hooks, steps_per_run):
        with hl.Graph().as_default(), FakeClock():
            weight = hl.Variable(1.0, name="weight")
            for name, function in (("loss", lambda value: value**2), ("norm", abs)):
                hl.op(function, name=name)(weight)
            op = hl.group(weight.assign(weight * 0.9), train.get_or_create_global_step().assign_add(gain))
            made = [
                (OnEachRun if is_on_each else fires)(make(), fetches, late)
                for is_on_each, make, fetches, late, _ in hooks
            ]
            given = [
                train.only_for(op, one) if is_bound else one for one, (*_, is_bound) in zip(made, hooks, strict=True)
            ]
            stop = train.StopAtStepHook(last_step=last_step)
            with train.MonitoredSession(hooks=[*given, stop], steps_per_run=steps_per_run) as session:
                while not session.should_stop():
                    session.run(op)
            return [one.steps for one in made]

    assert steps_of(hooks, steps_per_run) == [steps_of([hook], 1)[0] for hook in hooks]


class TriggerSet(train.SessionRunHook):
    """Sets its trigger in a callback."""

    def __init__(self, callback, trigger):
        setattr(self, callback, lambda *_: setattr(self, "trigger", trigger))

    def on_trigger(self, firing):
        pass


@pytest.mark.parametrize("callback", ["begin", "after_create_session"])
@pytest.mark.parametrize("add", [False, True])
def test_hooks_that_share_a_part_of_their_triggers_are_refused(callback, add, fires, train_op):
    part = train.every(3)
    first, second = fires(part), TriggerSet(callback, part | train.at_steps(5))
    with (
        pytest.raises(RuntimeError, match="Fires and the hook TriggerSet share the trigger every.3. as a part"),
        train.MonitoredSession(hooks=[first] if add else [first, second]) as session,
    ):
        session.add_hook(second)


@pytest.mark.parametrize("make", [lambda: train.every(3), lambda: train.every(runs=3)])
def test_shared_trigger_of_hooks_wrapped_for_different_runs_is_refused(make, fires, train_op):
    trigger, other = make(), hl.no_op(name="other")
    for hooks in (
        [fires(trigger), train.only_for(other, fires(trigger))],
        [train.only_for(train_op, fires(trigger)), train.only_for("other", fires(trigger))],
    ):
        with pytest.raises(RuntimeError, match="and the hook Fires share the trigger .* and take part in different"):
            train.MonitoredSession(hooks=hooks)


@pytest.mark.parametrize("make", [lambda: train.every(3), lambda: train.every(runs=3)])
def test_shared_trigger_of_hooks_wrapped_for_the_same_runs_fires_both(make, fires, train_op):
    trigger, other = make(), hl.group(train.get_or_create_global_step().assign_add(1), name="other")
    first, second = fires(trigger), fires(trigger, fetches="global_step:0")
    with train.MonitoredSession(hooks=[train.only_for(other, first), train.only_for("other", second)]) as session:
        for _ in range(4):
            run(session, [train_op, other], 1)
            run(session, other, 2)
    assert first.steps == second.steps
    assert first.steps


@pytest.mark.parametrize("how", ["given", "begin", "after_create_session", "part"])
def test_trigger_is_used_in_one_open_session(how, fires, train_op):
    trigger = train.every(4)
    first = fires(trigger)
    if how == "given":
        second = fires(trigger)
    else:
        second = TriggerSet(how, trigger) if how != "part" else fires(trigger | train.first_run())
    with train.MonitoredSession(hooks=[first]) as session:
        complaint = "The trigger every.4. of the hook .* serves another session that is still open"
        with pytest.raises(RuntimeError, match=complaint):
            train.MonitoredSession(hooks=[second])
        run(session, train_op, 4)
    with train.MonitoredSession(hooks=[second]) as session:  # Now it is free.
        run(session, train_op, 4)
    assert first.steps == [4]


# train.only_for ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(train_op):
    """Two training operations that share the global step."""
    return train_op, hl.group(train.get_or_create_global_step().assign_add(1), name="other")


# Calls to the session --------------------------------------------------------------------------------------------


def test_stop_callbacks_ends_run_callbacks_until_the_next_raw_session(training, fires):
    calls = []

    class Once(fires):
        def before_run(self, run_context):
            calls.append(run_context.session.global_step)
            run_context.stop_callbacks(self)
            return super().before_run(run_context)

        def after_run(self, run_context, run_values):
            raise AssertionError

    hook = Once(train.every(3), fetches=training.global_step)
    with train.MonitoredSession(hooks=[hook], **QUICK) as session:
        run(session, training.train_op, 7)
        assert calls == [0]
        training.faults.append(AbortedError(None, None, "lost"))
        run(session, training.train_op, 4)
    assert calls == [0, 0]
    assert hook.steps == [3, 6, 3]


def test_stop_callbacks_keeps_overridden_callbacks_of_a_subclass(train_op):
    calls = []

    class Retires(train.SessionRunHook):
        def before_run(self, run_context):
            calls.append("before")
            run_context.stop_callbacks(self)

    class Sub(Retires):
        def after_run(self, run_context, run_values):
            calls.append("after")

    class Mixed:
        def after_run(self, run_context, run_values):
            calls.append("mixed")

    class Mixture(Mixed, Retires):
        pass

    class Plain(Mixed, train.SessionRunHook):
        def before_run(self, run_context):
            run_context.stop_callbacks(self)
            run_context.stop_callbacks(Retires())  # Nobody knows it.

    with train.MonitoredSession(hooks=[Sub()]) as session:
        run(session, train_op, 3)
    assert calls == ["before", "after", "after", "after"]
    calls.clear()
    with train.MonitoredSession(hooks=[Mixture()]) as session:
        run(session, train_op, 2)
    assert calls == ["before", "mixed", "mixed"]
    calls.clear()
    with train.MonitoredSession(hooks=[Plain()]) as session:
        run(session, train_op, 2)
    assert calls == []


def test_step_limit_holds_for_every_run(fires):
    jump = train.get_or_create_global_step().assign_add(4)

    class Limits(train.SessionRunHook):
        def after_create_session(self, session, coord):
            session.set_last_step(10)

    hook = fires(train.every(runs=1))
    with train.MonitoredSession(hooks=[Limits(), hook]) as session:
        run(session, jump, 5)
    assert hook.steps == [4, 8, 12, 12, 12]


def test_constant_step_is_logged_by_the_session_at_most_five_times(training, fires, caplog):
    hooks = fires(train.every(10)), fires(train.every(20))
    with train.MonitoredSession(hooks=hooks, **QUICK) as session:
        run(session, training.train_op, 3)
        assert warnings_of(caplog) == []
        run(session, training.global_step, 4)
        training.faults.append(AbortedError(None, None, "lost"))
        session.run(training.train_op)
        run(session, training.global_step, 9)
    told = [warning for warning in warnings_of(caplog) if "The global step has stayed at" in warning]
    assert len(told) == 5


def test_constant_step_is_not_logged_without_hooks_that_count_steps(training, fires, caplog):
    with train.MonitoredSession(hooks=[fires(train.every(runs=2)), fires(train.every(secs=1))]) as session:
        run(session, training.global_step, 9)
    assert warnings_of(caplog) == []


# Other ways to run -----------------------------------------------------------------------------------------------


def test_step_function_fires_hooked_runs_and_counts_raw_steps(training, fires):
    hook, asking = fires(train.every(4)), fires(train.every(4), fetches=training.global_step)

    def step(step_context):
        step_context.session.run(training.train_op)
        step_context.run_with_hooks(training.train_op)
        step_context.run_with_hooks(training.train_op)

    with train.MonitoredSession(hooks=[hook, asking], **QUICK) as session:
        for number in range(4):
            if number == 2:
                training.faults.extend([None, None, AbortedError(None, None, "lost")])
            session.run_step_fn(step)
    assert hook.steps == asking.steps == [5, 8, 5]


def test_steps_of_another_worker_count_when_a_worker_sees_them(fires):
    servers = Servers()

    def worker(creator):
        with hl.Graph().as_default():
            hooks = fires(train.every(5)), fires(train.every(5), fetches="global_step:0")
            train_op = train.get_or_create_global_step().assign_add(1)
            return hooks, train.MonitoredSession(creator(master=servers), hooks=hooks), train_op

    (idle, asking), first, train_op = worker(train.ChiefSessionCreator)
    (other, _), second, other_op = worker(train.WorkerSessionCreator)
    with first, second:
        for number in range(12):
            first.run(train_op)
            if number % 2:
                second.run(other_op)
    assert (idle.steps, other.steps) == ([5, 10, 16], [6, 12, 15])
    assert asking.steps == [7, 11, 17]  # in the next run of its own
