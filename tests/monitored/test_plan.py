"""A plan foretells what then happens, and changes nothing of it."""

from __future__ import annotations

import collections
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import train
from hookline.errors import InvalidArgumentError
from hookline.session.cached_step import CachedStep
from hookline.testing import FakeClock, ScriptedSession


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


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(training=trainings())
def test_what_a_plan_foretells_happens(training):
    check_foretold(training)


@pytest.mark.campaign
@settings(max_examples=2000, deadline=None)
@given(training=trainings())
def test_what_a_plan_foretells_happens_in_many_trainings(training):
    check_foretold(training)
