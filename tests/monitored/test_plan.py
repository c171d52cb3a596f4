"""A plan foretells what then happens, and changes nothing of it."""

from __future__ import annotations

import collections
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import train
from hookline.errors import InvalidArgumentError
from hookline.session import shared_jit
from hookline.session.cached_step import CachedStep
from hookline.testing import FakeClock, ScriptedSession, read_events


class Says(train.SessionRunHook):
    """Notes at which steps it fires, and on which runs that was where the graph has no step."""

    def __init__(self, trigger, fetches=None, late=False, *, stacked=False):
        self.trigger, self.fetches, self.late, self.stacked = trigger, fetches, late, stacked
        self.steps = []

    def on_trigger(self, firing):
        self.steps.append(firing.context.runs + 1 if firing.global_step is None else firing.global_step)


class SaysOnEach(Says):
    """Rides on each run besides."""

    def before_run(self, run_context):
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)


class SaysAnew(Says):
    """Asks anew each time."""

    def before_trigger(self, run_context):
        return super().before_trigger(run_context)


def model(gain=1):
    weights = hl.Variable(np.ones(2, np.float32), name="weights")
    loss = hl.op(lambda value: (value**2).sum(), name="loss")(weights)
    norm = hl.op(lambda value: abs(value).max(), name="norm")(weights)
    moved = weights.assign(hl.op(lambda value: value * 0.9)(weights))
    step = train.get_or_create_global_step().assign_add(gain)
    return hl.group(moved, step, name="train"), loss, norm


numbers = st.integers(1, 9)
simple = st.one_of(
    st.builds(lambda n: lambda: train.every(n), numbers),
    st.builds(lambda n: lambda: train.spaced(n), numbers),
    st.builds(lambda n: lambda: train.every(runs=n), numbers),
    st.builds(lambda n, m: lambda: train.at_steps(n, n + m, 40), numbers, numbers),
    st.just(train.first_run),
    st.just(train.log_spaced),
    st.builds(lambda n: lambda: train.steps_where(lambda step: step % (n + 2) == 1), numbers),
    st.builds(lambda n: lambda: train.every(n) & train.every(3), numbers),
    st.builds(lambda n: lambda: train.every(n) & train.every(secs=60), numbers),
    st.just(lambda: train.every(secs=60)),
    st.just(lambda: train.spaced(secs=60)),
    st.just(train.NeverTriggerTimer),
)
triggers = st.one_of(simple, st.builds(lambda a, b: lambda: a() | b(), simple, simple))
hook = st.tuples(
    st.sampled_from([Says, Says, Says, SaysOnEach, SaysAnew]),
    triggers,
    st.sampled_from([None, "loss:0", "norm:0"]),
    st.sampled_from([False, True, 2, 3]),
    st.booleans(),
    st.booleans(),
)


@st.composite
def trainings(draw):
    return (
        draw(st.lists(hook, max_size=4)),
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([1, 1, 4, 16])),
        draw(st.integers(0, 7)),
        draw(st.integers(1, 45)),
        draw(st.sampled_from([None, 30])),
    )


def made(kind, make, fetches, late, is_stacked, is_bound, train_op):
    stacked = is_stacked and kind is Says
    found = kind(make(), fetches, late, stacked=stacked)
    return found, train.when(train_op, found) if is_bound else found


class Started:
    """Counts how often each program is started, between two looks."""

    def __init__(self, monkeypatch):
        self.counts = collections.Counter()
        dispatch = CachedStep.dispatch

        def counted(step, *args, **kwargs):
            found = dispatch(step, *args, **kwargs)
            self.counts[step.program.compilations.about] += found is not hl.session.CHANGED
            return found

        monkeypatch.setattr(CachedStep, "dispatch", counted)


def check_foretold(training):
    hooks, gain, steps_per_run, before, steps, last_step = training
    with pytest.MonkeyPatch.context() as monkeypatch, hl.Graph().as_default(), FakeClock():
        started = Started(monkeypatch)
        train_op, *_ = model(gain)
        pairs = [made(*given, train_op) for given in hooks]
        stop = [] if last_step is None else [train.StopAtStepHook(last_step=last_step)]
        with train.MonitoredSession(hooks=[*stop, *(h for _, h in pairs)], steps_per_run=steps_per_run) as session:
            while session.raw_session().global_step < before:
                session.run(train_op)
            raw = session.raw_session()
            raw.settle()
            late = {id(h): len(h.steps) for h, _ in pairs}
            plan = session.plan(steps, train_op)
            begin, stand = raw.global_step, {id(h): len(h.steps) for h, _ in pairs}
            assert begin == plan.begins_at
            assert stand == late, "the plan calls nobody"
            started.counts.clear()
            for _ in range(plan.runs):
                assert not session.should_stop()
                session.run(train_op)
            counts = dict(started.counts)
            end = raw.global_step
            assert session.should_stop() >= plan.is_over, "the last run may hold more than was asked for"
        told = plan.hooks[len(stop) :]
        for (mine, _), foretold in zip(pairs, told, strict=True):
            assert foretold.fires_at == tuple(step for step in mine.steps if begin < step <= plan.ends_at)
        assert counts == {program.about: program.runs for program in plan.programs}
        assert end == plan.ends_at if steps_per_run == 1 else end >= plan.ends_at
        assert plan.is_over == (last_step is not None and plan.ends_at >= last_step)


@given(training=trainings())
def test_what_a_plan_foretells_happens(training):
    check_foretold(training)


@pytest.mark.campaign
@settings(max_examples=500, deadline=None)
@given(training=trainings())
def test_what_a_plan_foretells_happens_in_many_trainings(training):
    check_foretold(training)


@pytest.fixture
def session():
    with hl.Graph(seed=1).as_default():
        train_op, *_ = model()
        hooks = [
            train.StopAtStepHook(last_step=1000),
            Says(train.every(100), "loss:0", late=True),
            Says(train.every(300) | train.every(secs=60)),
        ]
        with train.MonitoredSession(hooks=hooks) as session:
            session.train_op = train_op
            yield session


def test_a_plan_of_a_thousand_steps_is_a_short_table(session):
    assert str(session.plan(5000, session.train_op)).splitlines() == [
        "Steps 0 to 1000 of train, where the training ends: 1000 runs, 2 programs of the step.",
        "  StopAtStepHook  at step 1000",
        "                  stops the training at step 1000",
        "  Says            each 100: 100, 200, ..., 1000 (10 times)",
        "                  asks for loss:0, for when they come",
        "  Says            at steps 300, 600, 900",
        "                  not foreseen: the time of every(secs=60)",
        "Programs:",
        "  990 runs from step 1, to be compiled: outputs none; writes weights, global_step",
        "  10 runs from step 100, to be compiled: outputs loss:0 and hook fetches; writes weights, global_step",
    ]


def stands(hooks, session):
    """Returns what a plan might have changed."""
    # The clock goes on meanwhile.
    triggers = [re.sub(r"'waited_secs': [0-9.e-]+", "", str(hook.trigger.get_state())) for hook in hooks]
    return triggers, [list(hook.steps) for hook in hooks], session.raw_session().global_step


def trained(folder, caplog, *, plans):
    """Returns what a training leaves that draws keys, saves, and takes another hook, and what it has compiled."""
    caplog.clear()
    shared_jit.forget_all()
    with hl.Graph(seed=1).as_default():
        weights = hl.Variable(np.ones(2, np.float32), name="weights")
        moved = weights.assign(hl.op(lambda value, key: value + jax.random.normal(key, (2,)))(weights, hl.random_key()))
        norm, total = (hl.op(f, name=f.__name__)(weights) for f in (jnp.max, jnp.sum))
        train_op = hl.group(moved, train.get_or_create_global_step().assign_add(1))
        hooks = [Says(train.every(3) | train.spaced(4) | train.every(runs=5), norm), Says(train.first_run())]
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=hooks, save_checkpoint_steps=4, log_step_count_steps=2
        ) as session:
            for number in range(10):
                if number == 1:
                    hooks.append(Says(train.every(2), total))
                    session.add_hook(hooks[-1])
                if plans:
                    session.raw_session().settle()
                    before = stands(hooks, session)
                    session.plan(50, train_op)
                    assert stands(hooks, session) == before
                session.run(train_op)
            values = {name: np.asarray(value).tolist() for name, value in session.raw_session().snapshot().items()}
    compiled = [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]
    # The name of an events file has the time and the machine's name.
    files = sorted(path.name.partition(".tfevents")[0] for path in folder.iterdir())
    events = sorted(event.step for event in read_events(folder))  # A save is complete when it is.
    return [hook.steps for hook in hooks], values, compiled, files, events


def test_a_plan_leaves_the_training_as_it_was(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline.session.compilation")
    planned = trained(tmp_path / "planned", caplog, plans=True)
    assert planned == trained(tmp_path / "plain", caplog, plans=False)
    assert planned[0][0], "or it compares nothing"


def test_it_says_who_saves_and_stops_and_rides_on_each_run(tmp_path):
    with hl.Graph().as_default():
        train_op, *_ = model()
        hooks = [
            train.StopAtStepHook(num_steps=20),
            SaysOnEach(train.every(5)),
            SaysAnew(train.every(5), "loss:0"),
            train.FinalOpsHook("loss:0"),
        ]
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=8, save_summaries_steps=None
        ) as session:
            plan = session.plan(50, train_op)
    assert (plan.ends_at, plan.is_over) == (20, True)
    _, saver, stop, each, anew, final = plan.hooks
    assert (saver.name, saver.saves, saver.fires_at, saver.at_end) == ("CheckpointSaverHook", True, (8, 16), True)
    assert (stop.stops_at, stop.fires_at) == (20, (20,))
    assert each.each_run == ("before_run", "after_run")
    assert each.unforeseen == ("whether its before_run and after_run call super(): otherwise it does not fire",)
    assert anew.unforeseen == ("further requests of its before_trigger",)
    assert (final.trigger, final.fires_at, final.at_end) == ("", (), True)
    assert "called at the end alone" in str(plan)


class WhenAsked(train.Trigger):
    """Is due when somebody has said so."""

    said = False

    def next_step(self, after):
        return after + 1

    def is_due(self, step):
        return self.said

    def __repr__(self):
        return "when_asked"


class Squares(train.Trigger):
    """The steps alone decide."""

    def next_step(self, after):
        return (int(after**0.5) + 1) ** 2


def test_what_nobody_foresees_is_said_so():
    with hl.Graph().as_default():
        train_op, loss, _ = model()
        latch = hl.latch(loss < 0, name="below")
        told = [
            WhenAsked(),
            WhenAsked() | train.every(4),
            Squares(),
            train.latched(latch) | train.at_steps(3),
            train.every(2) & train.every(secs=1),
        ]
        with train.MonitoredSession(hooks=[Says(trigger) for trigger in told]) as session:
            found = [(hook.fires_at, hook.unforeseen) for hook in session.plan(10, train_op).hooks]
    assert found == [
        ((), ("when_asked, which decides itself when it is due",)),
        ((4, 8), ("when_asked, which decides itself when it is due",)),
        ((1, 4, 9), ()),
        ((3,), ("latched(below), which fires it when the device finds the condition",)),
        ((), ("the time of every(secs=1)",)),
    ]


def test_runs_are_counted_where_the_step_stands_still_or_there_is_none():
    with hl.Graph().as_default():
        _, loss, _ = model()
        with train.MonitoredSession(hooks=[Says(train.every(runs=3), loss)]) as session:
            session.run(loss)
            plan = session.plan(7, loss)
    assert (plan.counts, plan.begins_at, plan.ends_at, plan.hooks[0].fires_at) == ("run", 1, 8, (4, 7))
    with hl.Graph().as_default():
        weights = hl.Variable(1.0, name="weights")
        op = weights.assign_add(1.0)
        with train.SingularMonitoredSession(hooks=[Says(train.every(runs=3), weights, late=2)]) as session:
            plan = session.plan(7, op)
    assert (plan.counts, plan.ends_at, plan.hooks[0].fires_at) == ("run", 7, (1, 4, 7))
    assert "at runs 1, 4, 7" in str(plan)


def test_a_gain_that_the_device_alone_knows_counts_as_one():
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        op = step.assign(hl.op(lambda step: step + 2)(step))
        with train.MonitoredSession(hooks=[Says(train.every(3))]) as session:
            plan = session.plan(6, op)
    assert plan.hooks[0].fires_at == (3, 6)
    assert plan.unforeseen == ("Only the device knows the gain of a run in steps: it counts as one step here.",)


def test_what_is_fed_is_given_by_its_keys():
    with hl.Graph().as_default():
        x = hl.placeholder("float32", [], name="x")
        op = hl.group(hl.Variable(0.0, name="sum").assign_add(x), train.get_or_create_global_step().assign_add(1))
        with train.MonitoredSession() as session:
            assert session.plan(3, op, {x: None}).runs == 3
            with pytest.raises(InvalidArgumentError, match="x") as refused:
                session.plan(3, op)
    assert "plan calls no hook: name in its feed_dict what hooks feed" in refused.value.__notes__[0]


def test_the_train_op_is_what_is_run_by_default():
    with hl.Graph().as_default():
        op = train.Optimizer(optax.sgd(0.1)).minimize(
            hl.op(lambda w: w**2)(hl.Variable(1.0, name="w")), train.get_or_create_global_step()
        )
        with train.MonitoredSession() as session:
            assert session.plan(3).fetches == (op.name,)
    with (
        hl.Graph().as_default(),
        train.MonitoredSession() as session,
        pytest.raises(ValueError, match="plan requires the fetches .* has 0 train ops"),
    ):
        session.plan()


def test_a_plan_asked_for_wrongly_says_so(session):
    op = session.train_op
    with pytest.raises(TypeError, match="plan requires a whole number as steps"):
        session.plan(1.5, op)
    with pytest.raises(ValueError, match="steps"):
        session.plan(0, op)
    with pytest.raises(ValueError, match="no operation 'nothing'"):
        session.plan(5, "nothing")
    with pytest.raises(RuntimeError, match="from inside one of its runs"):
        session.run_step_fn(lambda step_context: session.plan(5, op))
    session.close()
    with pytest.raises(RuntimeError, match="already closed"):
        session.plan(5, op)


def test_a_session_of_ones_own_has_a_plan_without_programs(creator_of):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        hook = Says(train.every(3), "loss:0")
        with train.MonitoredSession(creator_of(ScriptedSession()), hooks=[hook]) as session:
            plan = session.plan(9, "train")
    assert (plan.hooks[0].fires_at, plan.programs, hook.steps) == ((3, 6, 9), (), [])
    assert plan.unforeseen == ("The programs: this session does not list them.",)


def test_a_callback_may_be_anything_that_can_be_called():
    """A method of a list, say, belongs to no module."""
    seen = []
    hook = train.SessionRunHook()
    hook.before_run, hook.trigger = seen.append, train.every(steps=5)
    train_op = train.get_or_create_global_step().assign_add(1)
    with train.MonitoredSession(hooks=[hook]) as session:
        assert "SessionRunHook" in str(session.plan(20, train_op.op))
    assert not seen
