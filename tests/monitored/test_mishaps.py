"""Invariants although hooks, threads and errors come at bad moments."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import numpy as np
import pytest
from tests.monitored.conftest import QUICK, run

import hookline as hl
from hookline import train
from hookline.errors import AbortedError, UnavailableError


class Limits(train.SessionRunHook):
    def __init__(self, step):
        self.step = step

    def after_create_session(self, session, coord):
        session.set_last_step(self.step)


@pytest.mark.parametrize("others", [[], [train.StepCounterHook(every_n_steps=1000)]])
@pytest.mark.parametrize("gain", [1, 3])
def test_step_limit_holds_in_runs_that_call_no_hook(others, gain):
    train_op = train.get_or_create_global_step().assign_add(gain)
    with train.MonitoredSession(hooks=[Limits(50), *others]) as session:
        run(session, train_op, 80)
        assert session.raw_session().global_step == (50 if gain == 1 else 51)


def test_step_limit_of_an_added_hook_holds_from_then_on(train_op):
    with train.MonitoredSession() as session:
        run(session, train_op, 10)
        session.add_hook(Limits(15))
        run(session, train_op, 40)
        assert session.raw_session().global_step == 15


@pytest.mark.parametrize("fires", [True, False])
def test_feeds_are_freed_with_their_run_also_with_hooks(fires):
    x = hl.placeholder("float32", [1000], name="x")
    total = hl.Variable(np.zeros(1000, "float32"), name="total")
    train_op = hl.group(total.assign_add(x), train.get_or_create_global_step().assign_add(1))

    class Fires(train.SessionRunHook):
        trigger = train.every(1)

        def on_trigger(self, firing):
            pass

    class Called(train.SessionRunHook):
        def before_run(self, run_context):
            pass

    class Batch(np.ndarray):
        pass

    gone = []
    gc.collect()
    gc.disable()
    try:
        with train.MonitoredSession(hooks=[Fires() if fires else Called()]) as session:
            for _ in range(5):
                batch = np.ones(1000, "float32").view(Batch)
                gone.append(weakref.ref(batch))
                session.run(train_op, {x: batch})
                del batch
            assert [ref() is None for ref in gone] == [True] * 5
    finally:
        gc.enable()


def test_sticky_stop_is_seen_by_every_thread(train_op):
    answers, started, enough = [], threading.Event(), threading.Event()

    class Stops(train.SessionRunHook):
        trigger = train.at_steps(3)

        def on_trigger(self, firing):
            firing.context.request_stop()

    def poll(session):
        started.set()
        while not enough.is_set():
            answers.append(session.should_stop())

    with train.MonitoredSession(hooks=[Stops()]) as session:
        run(session, train_op, 3)
        threads = [threading.Thread(target=poll, args=(session,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        mine = [session.should_stop() for _ in range(5000)]
        enough.set()
        for thread in threads:
            thread.join()
    assert all(mine)
    assert all(answers)


@pytest.mark.parametrize("wrong", [{"trigger": 100}, {"deferred": -1}])
def test_hook_with_an_invalid_declaration_is_not_added_and_a_recovery_continues(wrong, training, fires):
    hook = fires(train.every(10))
    vars(hook).update(wrong)
    with train.MonitoredSession(**QUICK) as session:
        run(session, training.train_op, 2)
        for _ in range(2):
            with pytest.raises(TypeError, match="The hook Fires must have"):
                session.add_hook(hook)
        training.faults.append(AbortedError(None, None, "lost"))
        run(session, training.train_op, 3)


def test_second_operation_without_a_step_is_not_reported_as_stalled(train_op, caplog):
    reads = hl.group(hl.constant(1.0))
    with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=10)]) as session:
        while not session.should_stop():
            session.run(reads)
            session.run(train_op)
    assert "has stayed" not in caplog.text


@pytest.mark.parametrize("saves", [False, True])
def test_deferred_hooks_get_arrived_values_after_an_exception(saves, train_op, tmp_path, fires):
    late = fires(train.every(1), "global_step:0", True)
    hooks = [late, *([train.CheckpointSaverHook(str(tmp_path), save_steps=1000)] if saves else [])]

    def trains(session):
        run(session, train_op, 3)
        session.run_step_fn(lambda step_context: step_context.session.deliver_pending())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), train.MonitoredSession(hooks=hooks) as session:
        trains(session)
    assert late.steps == [1, 2, 3]


def test_failing_after_close_prevents_no_other_after_close_and_reopens_the_graph(train_op):
    class Closes(train.SessionRunHook):
        closed = 0

        def __init__(self, error=None):
            self.error = error

        def after_close(self):
            self.closed += 1
            if self.error:
                raise self.error

    first, second = Closes(OSError("cannot give back")), Closes()
    with pytest.raises(OSError, match="cannot give back"), train.MonitoredSession(hooks=[first, second]) as session:
        session.run(train_op)
    assert (first.closed, second.closed) == (1, 1)
    assert not hl.get_default_graph().finalized
    first.error = None
    with train.MonitoredSession(hooks=[first, second]) as session:
        session.run(train_op)


@pytest.mark.parametrize("error", [StopIteration(), ValueError("b")])
def test_delivery_that_fails_at_close_delivers_the_rest(error, train_op):
    given = []

    class Late(train.SessionRunHook):
        trigger, fetches, deferred = train.every(1), "global_step:0", 100

        def __init__(self, name, error=None):
            self.name, self.error = name, error

        def on_trigger(self, firing):
            given.append((self.name, firing.global_step))
            if self.error is not None:
                error, self.error = self.error, None
                raise error

    hooks = [Late("a", error), Late("b")]
    ends_in_order = isinstance(error, StopIteration)
    if ends_in_order:
        with train.MonitoredSession(hooks=hooks) as session:
            run(session, train_op, 3)
        assert sorted(given) == [(name, step) for name in "ab" for step in (1, 2, 3)]
    else:
        session = train.MonitoredSession(hooks=hooks)
        run(session, train_op, 3)
        with pytest.raises(ValueError, match="b"):
            session.close()
        assert given == [("a", 1)], "their runs have not come"


@pytest.mark.parametrize("happens", ["a hook is added", "a recovery"])
def test_phases_continue_without_a_global_step(happens, clock, caplog, fires):
    caplog.set_level(logging.ERROR)
    faults, hook = [], fires(train.first_then_every(secs=1000))

    def step():
        if faults:
            raise faults.pop()

    fetches = hl.host_op(step)()

    with train.MonitoredSession(hooks=[hook], **QUICK) as session:
        run(session, fetches, 5)
        if happens == "a recovery":
            faults.append(UnavailableError(None, None, "away"))
        else:
            session.add_hook(train.SessionRunHook())
        run(session, fetches, 5)
        clock.advance(1001)
        run(session, fetches, 2)
    assert [firing.context.runs for firing in hook.firings] == [0, 10]


def test_counted_latch_is_kept_when_a_hook_is_added(fires):
    x = hl.placeholder("float32", (), name="x")
    train_op = hl.group(train.get_or_create_global_step().assign_add(1), hl.op(lambda x: x)(x))
    latch = hl.latch(hl.op(lambda x: x > 1)(x))
    hook = fires(train.latched(latch))
    with train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op, {x: 0.0})
        session.run(train_op, {x: 2.0})
        session.raw_session().latched(latch, wait=True)
        session.add_hook(train.SessionRunHook())
        session.run(train_op, {x: 0.0})
        assert hook.steps == [2]


def test_earlier_runs_of_others_do_not_count_for_an_added_wrapped_hook(train_op, fires):
    other, hook = hl.group(train_op), fires(train.every(runs=3))
    with train.MonitoredSession() as session:
        run(session, other, 10)
        session.add_hook(train.only_for(other, hook))
        run(session, other, 7)
    assert [firing.context.runs for firing in hook.firings] == [10, 13, 16]
