"""Between two firings runs are only counted down; whatever makes that wrong is noticed on the next run."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import errors, train


class Due(train.SessionRunHook):
    """Due each 50 steps; remembers where it was called."""

    def __init__(self):
        self.seen = []

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.global_step))

    def steps_until_trigger(self, global_step):
        return 50 - global_step % 50


def runs_until_stop(session, fetches, feeds=lambda number: None, at_most=200):
    number = 0
    while not session.should_stop() and number < at_most:
        session.run(fetches, feeds(number))
        number += 1
    return number


def test_a_gain_that_grows_is_seen_where_somebody_reads_the_step():
    step = train.get_or_create_global_step()
    gain = hl.placeholder("int32", [], name="gain")
    train_op = step.assign_add(gain)

    class Reader(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            assert run_context.session.global_step > 0

    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=300), Reader()]) as session:
        assert runs_until_stop(session, train_op, lambda number: {gain: 1 if number < 5 else 50}) == 11


def test_steps_that_a_hook_adds_are_counted():
    step = train.get_or_create_global_step()
    train_op, more = step.assign_add(1), step.assign_add(9)

    class Adds(train.SessionRunHook):
        def before_run(self, run_context):
            return train.SessionRunArgs(more)

    with train.MonitoredSession(hooks=[Adds(), train.StopAtStepHook(last_step=60)]) as session:
        assert runs_until_stop(session, train_op) == 6


def test_a_failed_run_does_not_hide_that_the_step_was_set():
    step = train.get_or_create_global_step()
    x = hl.placeholder("float32", [2], name="x")
    with hl.control_dependencies([hl.Variable(np.zeros(2, "float32")).assign_add(x)]):
        train_op = step.assign_add(1)
    hook = Due()
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(10):
            session.run(train_op, {x: np.ones(2, "float32")})
        with pytest.raises(errors.InvalidArgumentError):
            session.run(train_op, {x: np.ones(3, "float32")})
        session.raw_session().load({"global_step": 1000})
        session.run(train_op, {x: np.ones(2, "float32")})
    assert hook.seen[-1] == 1001


def test_a_hook_that_raises_when_it_is_asked_leaves_the_others_when_they_were_due():
    train_op = train.get_or_create_global_step().assign_add(1)

    class Raises(train.SessionRunHook):
        raised = False

        def after_run(self, run_context, run_values):
            pass

        def steps_until_trigger(self, global_step):
            if global_step == 10 and not self.raised:
                self.raised = True
                raise ValueError("once")
            return 10 - global_step % 10

    class Twice(Due):
        def steps_until_trigger(self, global_step):
            return 1 if global_step % 10 == 0 else 10 - global_step % 10

    twice = Twice()
    with train.MonitoredSession(hooks=[Raises(), twice]) as session:
        for number in range(1, 26):
            if number == 10:
                with pytest.raises(ValueError, match="once"):
                    session.run(train_op)
            else:
                session.run(train_op)
    assert {10, 11, 20, 21} <= set(twice.seen)


@pytest.mark.parametrize("often", [2, 3, 7])
def test_one_that_counts_runs_is_not_put_off_by_one_that_fires_more_often(often):
    train_op = train.get_or_create_global_step().assign_add(1)
    lines = []
    rare = train.LoggingTensorHook({"a": hl.constant(1.0)}, every_n_iter=10, formatter=lambda values: lines.append(1))
    other = train.LoggingTensorHook({"b": hl.constant(2.0)}, every_n_iter=often)
    with train.MonitoredSession(hooks=[rare, other]) as session:
        for _ in range(30):
            session.run(train_op)
    assert len(lines) == 3
