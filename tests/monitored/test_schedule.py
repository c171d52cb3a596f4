"""The session owns the trigger: which hook fires in a run, its fetches, and when its phase moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitored.conftest import Reference, monitored, run, warnings_of

import hookline as hl
from hookline import group, op, placeholder, train
from hookline.testing import FakeSession
from hookline.train import get_or_create_global_step

# Declarations, and when they are read ----------------------------------------------------------------------------


def test_hook_with_a_trigger_is_called_only_in_the_runs_in_which_it_fires(train_op, fires):
    hook = fires(train.every(10), fetches="global_step:0")
    raw = FakeSession(values={"global_step:0": 7})
    session = monitored(raw, hook)
    run(session, "train", 40)
    assert hook.steps == [10, 20, 30, 40]
    assert [firing.values for firing in hook.firings] == [7] * 4
    assert [number for number, asked in enumerate(raw.requests, 1) if asked.hook_fetches] == [10, 20, 30, 40]


def test_declarations_are_read_after_after_create_session(train_op, fires):
    class Late(fires):
        def after_create_session(self, session, coord):
            self.trigger, self.fetches = train.every(3), session.graph.as_graph_element("global_step:0")

    hook = Late()
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op, 7)
    assert hook.steps == [3, 6]
    assert [int(firing.values) for firing in hook.firings] == [2, 5]  # as before the update


def test_after_create_session_may_mark_the_trigger_as_fired(train_op, fires):
    class Marked(fires):
        def after_create_session(self, session, coord):
            self.trigger.update_last_triggered_step(session.global_step)

    hook = Marked(train.first_then_every(4))
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op, 9)
    assert hook.steps == [4, 8]
    assert hook.firings[0].elapsed_steps == 4


def test_trigger_in_steps_needs_a_global_step_and_the_error_names_the_hook(fires):
    hl.constant(1.0, name="x")
    with pytest.raises(RuntimeError, match=r"The hook Fires fires at steps \(every\(10\)\), and the graph has no"):
        train.MonitoredSession(hooks=[fires(train.every(10))])


@pytest.mark.parametrize("make", [lambda: train.every(runs=2), lambda: train.every(secs=2), train.first_run])
def test_other_triggers_need_no_global_step(make, clock, fires):
    x = hl.constant(1.0, name="x")
    hook = fires(make(), fetches=x)
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            clock.advance(1)
            session.run(x)
    assert hook.firings
    assert {(firing.global_step, firing.elapsed_steps, float(firing.values)) for firing in hook.firings} == {
        (None, None, 1.0)
    }


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [({"trigger": 10}, "must have a Trigger .or None. as trigger, got 10"),
     ({"trigger": train.every(3), "late": -1}, "must have True, False or a number of runs as deferred, got -1"),
     ({"trigger": train.every(3), "late": "yes"}, "must have True, False or a number of runs as deferred, got 'yes'")],
)  # fmt: skip
def test_invalid_declaration_names_the_hook(declared, complaint, train_op, fires):
    with pytest.raises(TypeError, match=f"The hook Fires {complaint}"):
        train.MonitoredSession(hooks=[fires(**declared)])


@pytest.mark.parametrize("late", [False, True, 1])
def test_hook_without_on_trigger_only_gets_before_trigger(late, train_op):
    class Asks:
        trigger = train.every(2) | train.latched(hl.latch(hl.constant(2.0) > 1.0))
        asked = 0

        def before_trigger(self, run_context):
            self.asked += 1

    hook = Asks()
    hook.deferred = late
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op, 5)
    assert hook.asked == 2


def test_trigger_on_a_class_with_slots_names_the_hook():
    class Slots:
        __slots__ = ()
        trigger = train.every(2)

        def on_trigger(self, firing):
            raise AssertionError

    complaint = "The hook Slots has __slots__, so it cannot hold its own copy of the trigger every.2. of its"
    with pytest.raises(TypeError, match=complaint):
        train.MonitoredSession(hooks=[Slots()])


def test_on_trigger_without_a_trigger_is_logged(train_op, caplog, fires):
    with train.MonitoredSession(hooks=[fires()]):
        pass
    (warning,) = warnings_of(caplog)
    assert "Fires has an on_trigger and no trigger: it never fires" in warning


@pytest.mark.parametrize("fetches", [None, "global_step:0"])
def test_trigger_without_a_callback_is_logged_once(fetches, training, caplog):
    class Misspelt(train.SessionRunHook):
        def __init__(self):
            self.trigger, self.fetches = train.every(2), fetches

        def on_triger(self, firing):
            raise AssertionError

    with train.MonitoredSession(hooks=[Misspelt(), Misspelt()]) as session:
        run(session, training.train_op, 3)
        session.add_hook(Misspelt())
        run(session, training.train_op, 3)
    (warning,) = warnings_of(caplog)
    assert "Misspelt has a trigger and no on_trigger: nothing is called when it fires" in warning


@pytest.mark.parametrize(
    ("fetches", "kind", "what"),
    [("nope:0", KeyError, "nope"), ({"a": ["nope"]}, KeyError, "nope"), (7, TypeError, "got 7")],
)
@pytest.mark.parametrize("late", [False, True])
def test_declared_fetches_missing_in_the_graph_are_refused_before_any_run(fetches, kind, what, late, train_op, fires):
    with pytest.raises(kind, match=f"The hook Fires fetches something that is not in the graph: .*{what}"):
        train.MonitoredSession(hooks=[fires(train.every(1000), fetches=fetches, late=late)])


@pytest.mark.parametrize("callback", ["before_run", "before_trigger"])
def test_callback_with_a_wrong_return_value_is_named(callback, train_op, fires):
    hook = type("Wrong", (fires,), {callback: lambda self, run_context: "loss:0"})(train.every(1))
    complaint = f"The hook Wrong must return None or a SessionRunArgs from {callback}, got 'loss:0'"
    with pytest.raises(TypeError, match=complaint), train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op)


# The decision ----------------------------------------------------------------------------------------------------


class GainingSession(FakeSession):
    """Advances as many steps as requested, and predicts it unless only the device knows."""

    says = True

    def step_delta(self, fetches, feed_dict=None):
        return sum(fetches) if self.says else None

    def _run(self, asked):
        self._step_increment = sum(asked.fetches)
        return super()._run(asked)


TRIGGERS = {
    "every": lambda n: train.every(n),
    "spaced": lambda n: train.first_then_every(n),
    "at": lambda n: train.at_steps(n, 2 * n, 5 * n),
    "where": lambda n: train.when_step(lambda step: step % n == 0),
    "runs": lambda n: train.every(runs=n),
    "either": lambda n: train.every(n) | train.every(runs=n + 1),
    "both": lambda n: train.every(n) & train.every(2),
}


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("kind", TRIGGERS)
@given(n=st.integers(1, 20), gains=st.lists(st.integers(0, 30), min_size=1, max_size=80))
def test_hook_without_fetches_fires_in_the_run_that_reaches_its_step(kind, says, n, gains, fires):
    raw, hook, reference = GainingSession(), fires(TRIGGERS[kind](n)), Reference(TRIGGERS[kind](n))
    raw.says = says
    session, fetches = monitored(raw, hook), [0]
    for fetches[0] in gains:  # one list, changed in place
        session.run(fetches)
        reference.after(fetches, raw.global_step)
    assert hook.steps == reference.steps


@given(n=st.integers(1, 20), gains=st.lists(st.integers(0, 5), min_size=1, max_size=80))
def test_hook_with_fetches_fires_at_most_one_run_later_if_the_step_delta_is_unknown(n, gains, fires):
    raw, hook = GainingSession(values={"x": 1}), fires(train.every(n), fetches="x")
    raw.says = False
    session = monitored(raw, hook)
    due = n
    for gain in gains:
        was_due, fired = due <= raw.global_step, len(hook.firings)
        session.run([gain])
        assert not was_due or len(hook.firings) == fired + 1
        if len(hook.firings) > fired:
            assert hook.firings[-1].values == 1
            due = (raw.global_step // n + 1) * n


@pytest.mark.parametrize(("fetches", "steps"), [(None, [64, 124, 184]), ("global_step:0", [124, 184, 244])])
def test_fed_step_delta_is_known_after_the_run(fetches, steps, fires):
    gain = hl.placeholder("int32", [], name="gain")
    advance, hook = get_or_create_global_step().assign_add(gain), fires(train.every(50), fetches=fetches)
    with train.MonitoredSession(hooks=[hook]) as session:
        for number in range(1, 11):
            session.run(advance, {gain: 1 if number < 5 else 60})
    assert hook.steps[: len(steps)] == steps


@pytest.mark.parametrize("by_a_hook", [False, True])
def test_run_that_jumps_over_the_last_step_ends_the_training(by_a_hook):
    x, step = placeholder("float32", (), name="x"), get_or_create_global_step()
    one, ten = (group(step.assign_add(gain), op(lambda x: x)(x)) for gain in (1, 10))
    feeds = {"x:0": 1.0}
    hooks = [train.StopAtStepHook(last_step=10), train.FeedFnHook(lambda: feeds)][: 1 + by_a_hook]
    with train.MonitoredSession(hooks=hooks) as session:
        for fetches in [one] * 5 + [ten]:
            assert not session.should_stop()
            session.run(fetches, None if by_a_hook else feeds)
        assert session.should_stop()
        assert session.raw_session().global_step == 15


class RunsRaw(train.SessionRunHook):
    """Advances the step itself before each run."""

    def __init__(self, fetches):
        self._fetches = fetches

    def before_run(self, run_context):
        run_context.session.run(self._fetches)


@pytest.mark.parametrize(("fetches", "steps"), [(None, [10, 20, 30]), ("global_step:0", [12, 22, 32])])
def test_step_moved_in_before_run_counts_in_the_same_run_without_fetches(fetches, steps, train_op, fires):
    hook = fires(train.every(10), fetches=fetches)
    with train.MonitoredSession(hooks=[RunsRaw(train_op), hook]) as session:
        run(session, train_op, 16)
    assert hook.steps == steps


def test_steps_added_by_a_hook_are_counted(train_op):
    more = get_or_create_global_step().assign_add(9)

    class Adds(train.SessionRunHook):
        def before_run(self, run_context):
            return train.SessionRunArgs(more)

    with train.MonitoredSession(hooks=[Adds(), train.StopAtStepHook(last_step=60)]) as session:
        runs = 0
        while not session.should_stop():
            session.run(train_op)
            runs += 1
    assert runs == 6


def test_step_set_forward_counts_at_the_next_run_also_after_a_failed_run(training, fires):
    hook = fires(train.every(50))
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, training.train_op, 10)
        session.raw_session().load({"global_step": 1000})
        training.faults.append(ValueError("once"))
        with pytest.raises(ValueError, match="once"):
            session.run(training.train_op)
        session.run(training.train_op)
        assert hook.steps == [1001]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("make", [lambda: train.every(50), lambda: train.first_then_every(50)])
def test_step_set_back_moves_the_phase_back_also_if_the_next_run_fails(make, fails, training, fires):
    hook = fires(make())
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, training.train_op, 110)
        before = len(hook.firings)
        session.raw_session().load({"global_step": 10})
        if fails:
            training.faults.append(ValueError("once"))
            with pytest.raises(ValueError, match="once"):
                session.run(training.train_op)
        run(session, training.train_op, 100)
    again = hook.firings[before:]
    assert [firing.global_step for firing in again] == ([50, 100] if hook.steps[0] == 50 else [51, 101])
    assert [firing.elapsed_steps for firing in again] == [None, 50]


def test_one_jump_of_the_step_does_not_cause_permanent_checks(fires):
    raw, hook = FakeSession(), fires(train.every(1000))
    asked, ask = [], hook.trigger.should_trigger_for_step
    hook.trigger.should_trigger_for_step = lambda step: asked.append(step) or ask(step)
    session = monitored(raw, hook)
    session.run("train")
    raw.load({"global_step": 5000})  # somebody else's steps
    run(session, "train", 100)
    assert hook.steps == [5001]
    assert len(asked) < 10


def test_trigger_in_seconds_is_checked_by_the_clock_and_waits_for_a_step(training, clock, fires):
    timed, both = fires(train.every(secs=60)), fires(train.every(secs=60) | train.every(4))
    with train.MonitoredSession(hooks=[timed, both]) as session:
        for _ in range(20):
            clock.advance(10)
            session.run(training.train_op)
        assert timed.steps == [6, 12, 18]
        assert both.steps == [4, 6, 8, 12, 16, 18, 20]
        for _ in range(2):
            clock.advance(61)
            run(session, training.global_step, 3)
            assert timed.steps == [6, 12, 18, 20]
        session.run(training.train_op)
        assert timed.steps == [6, 12, 18, 20, 21]


def test_trigger_that_raises_does_not_change_when_other_hooks_fire(train_op, fires):
    def predicate(step):
        if number in range(3, 9):
            raise ValueError("on fire")
        return step % 3 == 0

    often, raising, rare = fires(train.every(1)), fires(train.when_step(predicate)), fires(train.every(5))
    with train.MonitoredSession(hooks=[often, raising, rare]) as session:
        for number in range(1, 16):  # noqa: B007 - the predicate reads it
            try:
                session.run(train_op)
            except ValueError:
                session.raw_session().run(train_op)  # on to the next step
    assert often.steps == [1, 2, *range(9, 16)]
    assert rare.steps == [9, 10, 15]
    assert raising.steps == [9, 12, 15]
