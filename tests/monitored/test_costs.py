"""The report of a session: all of its time is in it, and everything where it belongs."""

from __future__ import annotations

import logging

import jax
import numpy as np
import pytest
from tests.monitored.conftest import run

import hookline as hl
from hookline import clock, train
from hookline.errors import AbortedError
from hookline.testing import FakeClock

PARTS = ["step", "hooks", "saving", "input", "waiting", "compiling", "starting", "ending", "outside"]


class Slow(train.SessionRunHook):
    """Takes its time in each callback, by the clock."""

    def __init__(self, secs, trigger=None, fetches=None, late=False):
        self.secs, self.trigger, self.fetches, self.late = secs, trigger, fetches, late

    def on_trigger(self, firing):
        clock.sleep(self.secs)


class OnEach(Slow):
    def before_run(self, run_context):
        clock.sleep(self.secs)
        return train.SessionRunArgs("loss:0")

    def after_run(self, run_context, run_values):
        clock.sleep(self.secs)


class Saves(Slow):
    def save_last(self, session, exception):
        clock.sleep(self.secs)

    def end(self, session):
        clock.sleep(self.secs)


def model(batches=None):
    weights = hl.Variable(np.ones(2, np.float32), name="weights")
    loss = hl.op(lambda value: (value**2).sum(), name="loss")(weights)
    other = weights if batches is None else batches
    moved = weights.assign(hl.op(lambda value, by: value * 0.9 + by.sum())(weights, other))
    return hl.group(moved, train.get_or_create_global_step().assign_add(1), name="train"), loss


def adds_up(report):
    return sum(report.secs.values()) == pytest.approx(report.wall_secs, abs=1e-6)


@pytest.fixture
def fake():
    with hl.Graph().as_default(), FakeClock() as fake:
        yield fake


def test_each_second_is_where_it_was_spent(fake):
    train_op, _ = model()
    hooks = [Slow(1.0, train.every(5)), OnEach(0.25), Saves(10.0, train.every(10)), train.StopAtStepHook(last_step=20)]
    with train.MonitoredSession(hooks=hooks, report=True) as session:
        while not session.should_stop():
            clock.sleep(0.5)
            session.run(train_op)
            assert adds_up(session.report())
    report = session.report()
    assert [*report.secs] == PARTS
    assert report.secs == {**dict.fromkeys(PARTS, 0.0), "hooks": 4 + 20 * 0.5, "saving": 30.0, "outside": 10.0}
    assert report.wall_secs == 54.0
    assert (report.runs, report.steps) == (20, 20)
    slow, each, saves, stop = report.hooks
    assert (slow.name, slow.firings, slow.rides, slow.secs) == ("Slow", 4, 0, 4.0)
    assert (each.firings, each.rides, each.secs) == (0, 20, 10.0)
    assert (each.values, each.fetched_bytes) == (20, 80)
    assert (saves.firings, saves.secs) == (2, 30.0)
    assert stop.firings == 1


def test_a_wait_for_batches_is_input(fake):
    def batches():
        while True:
            clock.sleep(2.0)
            yield np.ones(2, np.float32)

    train_op, _ = model(hl.data.iterator(batches, prefetch=0))
    with train.MonitoredSession(report=True) as session:
        for _ in range(3):
            session.run(train_op)
        report = session.report()
    assert report.secs["input"] == pytest.approx(4.0), "the graph has read the first one"
    assert report.secs["step"] == 0.0


def test_a_wait_for_the_device_is_waiting_and_its_hooks():
    def slow(value):
        return jax.lax.fori_loop(0, 30, lambda _, v: v @ value / 300, value).sum()

    with hl.Graph().as_default():
        weights = hl.Variable(np.ones((300, 300), np.float32), name="weights")
        sums = hl.op(slow, name="sums")(weights)
        train_op = hl.group(weights.assign_add(1.0), train.get_or_create_global_step().assign_add(1))
        hooks = [Slow(0, train.every(2), sums), Slow(0, train.every(2), sums, late=2)]
        with train.MonitoredSession(hooks=hooks, report=True) as session:
            for _ in range(8):
                session.run(train_op)
            report = session.report()
    now, _ = report.hooks
    assert now.firings == now.values == 4
    assert now.fetched_bytes == 16
    assert now.waits > 0
    assert report.secs["waiting"] >= now.wait_secs > 0
    assert now.secs < now.wait_secs, "its own time is without the waits"
    assert adds_up(report)


def test_compilations_have_causes_and_are_no_part_of_the_step(caplog):
    with hl.Graph().as_default():
        x = hl.placeholder("float32", [None], name="x")
        weights = hl.Variable(np.float32(0), name="weights")
        loss = hl.op(lambda w, x: (w + x).sum(), name="loss")(weights, x)
        train_op = hl.group(weights.assign_add(loss), train.get_or_create_global_step().assign_add(1))
        with train.MonitoredSession(report=True) as session:
            session.run(train_op, {x: np.ones(2, np.float32)})
            session.run([train_op, loss], {x: np.ones(2, np.float32)})
            session.run(train_op, {x: np.ones(3, np.float32)})
            session.add_hook(Slow(0, train.every(4), hl.Graph.get_tensor_by_name(session.graph, "weights:0")))
            session.run(train_op, {x: np.ones(3, np.float32)})
            report = session.report()
    causes = [made.cause for made in report.compilations]
    assert causes[:2] == ["first run", "first run"], "one initialises"
    assert causes[2:] == ["a new fetch: loss:0", "x:0 is float32[3], it was float32[2]", "hooks ask for weights:0"]
    assert all(made.secs > 0 for made in report.compilations)
    assert report.secs["compiling"] == pytest.approx(sum(made.secs for made in report.compilations), rel=0.01)
    assert "first run" in str(report)
    assert "hooks ask for weights:0" in str(report)


def test_it_goes_on_over_a_recovery_and_an_error_ends_with_it(training, caplog):
    caplog.set_level(logging.INFO, "hookline.monitored.costs")
    training.faults.extend([None, AbortedError(None, None, "preempted"), None, None, ValueError("broken")])
    hook = Slow(0, train.every(1))
    policy = train.RecoveryPolicy(initial_backoff_secs=0)
    session = train.MonitoredSession(hooks=[hook], recovery=policy, report=True)
    with pytest.raises(ValueError, match="broken"), session:
        run(session, training.train_op, 5)
    report = session.report()
    assert report.runs == 4, "each call of run"
    assert report.hooks[0].firings == 3
    assert adds_up(report)
    assert [r.getMessage() for r in caplog.records if r.name == "hookline.monitored.costs"] == [str(report)]
    assert session.report() == report, "it is over"


def test_only_a_session_that_was_asked_to_measures():
    with hl.Graph().as_default():
        train_op, _ = model()
        with train.MonitoredSession() as session:
            assert "run" not in vars(session), "no wrapper"
            low = session.raw_session().lowlevel
            assert low.ahead.look.__func__ is type(low.ahead).look
            with pytest.raises(RuntimeError, match="Make it with report=True"):
                session.report()
        with pytest.raises(TypeError, match="report"):
            train.MonitoredSession(report="yes")
        with train.SingularMonitoredSession(report=True) as session:
            session.run(train_op)
            assert session.report().runs == 1


def test_a_hook_that_rides_again_or_comes_later_is_measured_once(fake):
    train_op, _ = model()
    with train.MonitoredSession(hooks=[OnEach(1.0)], report=True) as session:
        session.run(train_op)
        session.add_hook(Slow(3.0, train.every(1)))
        session.run(train_op)
        report = session.report()
    assert [(hook.rides, hook.firings, hook.secs) for hook in report.hooks] == [(2, 0, 4.0), (0, 1, 3.0)]


def test_a_run_of_several_steps_counts_once(fake):
    train_op, _ = model()
    hooks = [train.StopAtStepHook(last_step=33)]
    with train.MonitoredSession(hooks=hooks, steps_per_run=8, report=True) as session:
        while not session.should_stop():
            session.run(train_op)
    report = session.report()
    assert report.steps == 33
    assert report.runs < 10


def test_its_table_has_all_of_it(fake):
    train_op, _ = model()
    with train.MonitoredSession(hooks=[OnEach(0.5)], report=True) as session:
        for _ in range(4):
            session.run(train_op)
    first, heads, *lines = str(session.report()).splitlines()
    assert first == "4.000 s: 4 runs, 4 steps, 2 compilations."
    assert heads.split() == ["s", "%", "µs", "a", "step"]
    assert [line.split()[0] for line in lines[:9]] == PARTS
    assert lines[1].split()[1:4] == ["4.000", "100.0", "1000000.0"]
    assert lines[9].split() == ["hook", "firings", "rides", "s", "waits", "s", "values", "bytes"]
    assert lines[10].split() == ["OnEach", "0", "4", "4.000", "0", "0.000", "4", "16"]


def test_a_run_in_a_step_function_is_a_run(fake):
    train_op, _ = model()
    with train.MonitoredSession(hooks=[OnEach(0.5)], report=True) as session:
        session.run_step_fn(lambda step_context: step_context.run_with_hooks(train_op))
        session.run_step_fn(lambda step_context: session.run(train_op))
        report = session.report()
    assert report.runs == 2
    assert (report.secs["hooks"], report.secs["outside"]) == (2.0, 0.0)
