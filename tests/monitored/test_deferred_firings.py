"""Hooks that can wait for their values (`deferred`), and hooks that a latch fires."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import numpy as np
import pytest
from tests.monitored.conftest import QUICK, monitored, run

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.session import DeferredResults  # No public session delivers values when a test wants it.
from hookline.testing import FakeSession


class SlowSession(FakeSession):
    """Values of deferred hooks arrive when the test wants it; each is the step of its run."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.arrived, self.lost = 0, False

    def run_with_hook_fetches(self, fetches, watched, feed_dict=None, options=None, run_metadata=None):
        result, values = super().run_with_hook_fetches(fetches, watched, feed_dict, options, run_metadata)
        return result, tuple(_At(self, self.global_step) if isinstance(v, DeferredResults) else v for v in values)


class _At(DeferredResults):
    def __init__(self, session, step):
        super().__init__(self._read, [])
        self._session, self._step = session, step

    def is_ready(self):
        return self._session.arrived >= self._step

    def _read(self):
        if self._session.lost:
            raise AbortedError(None, None, "the device is lost")
        return self._step


@pytest.fixture
def noting(fires):
    """Returns a kind of hook that records, for each firing, its step, its value, and the number of runs."""

    class Notes(fires):
        def __init__(self, *given, calls=None, name="", **declared):
            super().__init__(*given, **declared)
            self.calls, self.name = [] if calls is None else calls, name

        def on_trigger(self, firing):
            super().on_trigger(firing)
            assert firing.values == firing.global_step
            self.calls.append((self.name, firing.global_step, firing.context.session.global_step))

    return Notes


def test_deferred_hook_is_called_between_runs_in_order_when_its_values_are_ready(noting):
    raw, calls = SlowSession(), []
    hooks = noting(train.every(2), "x", True, calls=calls, name="a"), noting(train.every(3), "x", True, calls=calls)
    session = monitored(raw, *hooks)
    run(session, "train", 6)
    assert calls == []  # No run waits for it.
    raw.arrived = 4
    session.run("train")
    assert calls == [("a", 2, 6), ("a", 4, 6), ("", 3, 6)]
    session.close()
    assert calls[3:] == [("a", 6, 7), ("", 6, 7)]


def test_hook_deferred_by_runs_is_called_exactly_that_many_runs_later(noting):
    for arrived in (0, 100):
        raw, calls = SlowSession(), []
        raw.arrived = arrived
        hooks = [noting(train.every(4), "x", late, calls=calls, name=late) for late in (True, 1, 3, 6)]
        session = monitored(raw, *hooks)
        run(session, "train", 13)
        assert [call for call in calls if call[0] is not True] == [
            (1, 4, 5), (3, 4, 7), (1, 8, 9), (6, 4, 10), (3, 8, 11), (1, 12, 13),
        ]  # fmt: skip
        session.close()  # Sooner only there.
        assert [call for call in calls if call[0] is not True][6:] == [(3, 12, 13), (6, 8, 13), (6, 12, 13)]


def test_arrived_values_of_another_hook_do_not_advance_a_firing(noting):
    raw, calls = SlowSession(), []
    hooks = noting(train.every(1), "x", True), noting(train.every(5), "x", 3, calls=calls)
    session = monitored(raw, *hooks)
    for number in range(20):
        session.run("train")
        raw.arrived = number  # There is always something to deliver before the next run.
    assert calls == [("", 5, 8), ("", 10, 13), ("", 15, 18)]


def test_deferred_hook_without_fetches_is_deferred(fires):
    order = []

    class Notes(fires):
        def on_trigger(self, firing):
            order.append((firing.global_step, firing.context.session.global_step))

    session = monitored(FakeSession(), Notes(train.every(3), late=2))
    run(session, "train", 8)
    assert order == [(3, 5), (6, 8)]


def test_deferred_firing_has_the_elapsed_time_of_its_own_run(fires, clock):
    raw = SlowSession()
    hook = fires(train.every(2), "x", 3)
    session = monitored(raw, hook)
    for _ in range(9):
        clock.advance(1)
        session.run("train")
    assert hook.steps == [2, 4, 6]
    assert hook.elapsed == [(None, None), (2, 2.0), (2, 2.0)]


def test_hook_with_overridden_run_callbacks_is_not_deferred(noting):
    class Sees(noting):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)

    raw = FakeSession(values={"x": 0})
    hook = Sees(train.every(2), None, True)
    hook.on_trigger = lambda firing: hook.calls.append((firing.global_step, firing.context.session.global_step))
    session = monitored(raw, hook)
    run(session, "train", 4)
    assert hook.calls == [(2, 2), (4, 4)]


@pytest.fixture
def model():
    step = train.get_or_create_global_step()
    x = hl.placeholder("float32", [3], name="x")
    doubled = x * 2.0
    with hl.control_dependencies([doubled]):
        return step.assign_add(1), x, doubled


@pytest.mark.parametrize("late", [True, 1000])
def test_deferred_firings_precede_the_next_save_and_the_first_end(late, model, fires, tmp_path):
    train_op, x, doubled = model
    order = []

    class Notes(fires):
        def on_trigger(self, firing):
            order.append(firing.global_step)

        def end(self, session):
            order.append("end")

    class Listener:
        def before_save(self, session, step):
            order.append(f"save {step}")

    hook = Notes(train.every(runs=2), {"doubled": doubled}, late)
    scaffold = train.Scaffold()
    saver = train.CheckpointSaverHook(str(tmp_path), save_steps=3, listeners=[Listener()], scaffold=scaffold)
    with train.MonitoredSession(train.ChiefSessionCreator(scaffold), hooks=[saver, hook]) as session:
        for number in range(5):
            session.run(train_op, {x: np.full(3, number, "f")})
    assert order == ["save 0", 1, 3, "save 3", 5, "save 5", "end"]


def test_deferred_firing_may_request_a_stop(fires):
    class Stops(fires):
        def on_trigger(self, firing):
            firing.context.request_stop()

    raw = SlowSession()
    session = monitored(raw, Stops(train.every(2), "x", True))
    run(session, "train", 4)
    assert not session.should_stop()
    raw.arrived = 2
    session.run("train")
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="Run called even after should_stop requested"):
        session.run("train")


def test_stop_requested_during_delivery_takes_effect(fires):
    class Stops(fires):
        def on_trigger(self, firing):
            firing.context.request_stop()

    class Settles(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.runs == 3:
                run_context.deliver_pending()

    session = monitored(SlowSession(), Stops(train.every(2), "x", 50), Settles())
    run(session, "train", 3)
    assert not session.should_stop()
    session.run("train")
    assert session.should_stop()


def test_deferred_firing_keeps_no_feeds_alive(model, fires):
    train_op, x, doubled = model

    class Fed(np.ndarray):
        pass

    with train.MonitoredSession(hooks=[fires(train.every(1), doubled, 1000)]) as session:
        fed = np.ones(3, "f").view(Fed)
        alive = weakref.ref(fed)
        session.run(train_op, {x: fed})
        del fed
        session.run(train_op, {x: np.ones(3, "f")})
        gc.collect()
        assert alive() is None


def test_error_in_a_deferred_firing_is_an_error_of_the_run(noting):
    class Fails(noting):
        def on_trigger(self, firing):
            super().on_trigger(firing)
            raise ValueError("cannot")

    raw, other = SlowSession(), noting(train.every(2), "x", True)
    failing = Fails(train.every(2), "x", True)
    session = monitored(raw, failing, other)
    run(session, "train", 3)
    raw.arrived = 2
    with pytest.raises(ValueError, match="cannot"):
        session.run("train")
    session.run("train")
    assert (failing.steps, other.steps) == ([2], [2])


def test_recovery_delivers_arrived_values_and_drops_the_rest_with_one_log_line(noting, creator_of, caplog):
    raws = SlowSession(results=[None] * 5 + [AbortedError(None, None, "lost")]), SlowSession()
    hooks = noting(train.every(1), "x", True), noting(train.every(2), "x", True), noting(train.every(2), "x", 20)
    raws[0].arrived = 0
    with caplog.at_level(logging.WARNING), train.MonitoredSession(creator_of(*raws), hooks=hooks, **QUICK) as session:
        run(session, "train", 5)
        raws[0].arrived = 3
        session.run("train")
        assert [hook.steps for hook in hooks] == [[1, 2, 3], [2], []]
        raws[1].arrived = 3
        run(session, "train", 3)
        assert [hook.steps for hook in hooks] == [[1, 2, 3, 1, 2, 3], [2, 2], []]
    (dropped,) = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert dropped == "5 deferred firings were dropped with their session."
    assert hooks[2].steps == [2, 4]


def test_values_lost_with_the_device_are_dropped_at_a_recovery(noting, creator_of, caplog):
    raws = SlowSession(results=[None] * 3 + [AbortedError(None, None, "lost")]), SlowSession()
    hook = noting(train.every(1), "x", True)
    with train.MonitoredSession(creator_of(*raws), hooks=[hook], **QUICK) as session:
        run(session, "train", 3)
        raws[0].lost, raws[0].arrived = True, 9  # A failed value is as ready as one that has arrived.
        session.run("train")
        assert hook.steps == []
    assert "2 deferred firings were dropped with their session." in caplog.text  # The first says why it was lost.
    assert hook.steps == [1]


@pytest.mark.parametrize("does", ["stops", "fails"])
def test_actions_of_a_deferred_hook_at_a_recovery_count(does, fires, creator_of):
    class Arrives(SlowSession):
        """Loses itself in the second run, and in that run the values of the first arrive."""

        def _run(self, asked):
            self.arrived = len(self.requests)
            return super()._run(asked)

    class Does(fires):
        def on_trigger(self, firing):
            super().on_trigger(firing)
            if len(self.firings) == 1 and does == "fails":
                raise ValueError("cannot")
            firing.context.request_stop()

    hook, raw = Does(train.every(1), "x", True), Arrives(results=[None, AbortedError(None, None, "lost")])
    with train.MonitoredSession(creator_of(raw, SlowSession()), hooks=[hook], **QUICK) as session:
        session.run("train")
        if does == "fails":
            with pytest.raises(ValueError, match="cannot"):
                session.run("train")
        else:
            session.run("train")
            assert session.should_stop()
        assert hook.steps == [1]


# Latches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def watched():
    step = train.get_or_create_global_step()
    x = hl.placeholder("float32", [], name="x")
    latch = hl.latch(x > 10.0, name="above")
    return step.assign_add(1), x, latch


def test_latched_trigger_fires_once_without_values_at_the_latching_step(watched, fires):
    train_op, x, latch = watched
    hook, asking = fires(train.latched(latch)), fires(train.latched(latch), fetches=x)
    with train.MonitoredSession(hooks=[hook, asking]) as session:
        for number in range(1, 60):
            session.run(train_op, {x: 20.0 if number in (5, 9, 50) else 0.0})
    for each in (hook, asking):
        assert [(firing.global_step, firing.values) for firing in each.firings] == [(5, None)]
        assert each.elapsed == [(None, None)]


def test_deliver_pending_finds_a_latch(watched, fires):
    train_op, x, latch = watched
    hook, seen = fires(train.latched(latch)), []

    class Settles(train.SessionRunHook):
        trigger = train.every(4)

        def on_trigger(self, firing):
            firing.context.deliver_pending()
            seen.append((firing.global_step, list(hook.steps)))

    with train.MonitoredSession(hooks=[Settles(), hook]) as session:
        for number in range(1, 9):
            session.run(train_op, {x: 20.0 if number == 4 else 0.0})
    assert seen == [(4, [4]), (8, [4])]


def test_every_run_evaluates_the_latch_for_any_fetches(watched, fires):
    train_op, x, latch = watched
    other = x + 1.0
    hook = fires(train.latched(latch))
    with train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op, {x: 1.0})
        session.run(other, {x: 20.0})
        session.run(train_op, {x: 1.0})
    assert hook.steps == [1]


def test_latch_in_an_or_keeps_the_phase_of_the_other_triggers(watched, fires):
    train_op, x, latch = watched
    hook = fires(train.every(5) | train.latched(latch))
    spaced = fires(train.first_then_every(4) | train.latched(latch))
    with train.MonitoredSession(hooks=[hook, spaced]) as session:
        for number in range(1, 101):
            session.run(train_op, {x: 20.0 if number == 8 else 0.0})
    assert sorted(hook.steps) == sorted([*range(5, 101, 5), 8])
    assert sorted(spaced.steps) == sorted([*range(1, 101, 4), 8])


def test_latch_may_latch_again_after_a_recovery(watched, fires):
    _, x, latch = watched
    faults = []

    def pull():
        for _ in range(len(faults)):
            raise faults.pop()
        return 0.0

    with hl.control_dependencies([hl.host_op(pull).node()]):
        step = train.get_global_step().assign_add(1)
    hook = fires(train.latched(latch))
    with train.MonitoredSession(hooks=[hook], **QUICK) as session:
        for number in range(1, 6):
            session.run(step, {x: 20.0 if number == 3 else 0.0})
        session.raw_session().deliver_pending()
        run_until_noticed(session, step, x, hook)
        faults.append(AbortedError(None, None, "lost"))
        for number in range(1, 6):
            session.run(step, {x: 20.0 if number == 2 else 0.0})
    assert hook.steps == [3, 2]


def run_until_noticed(session, fetches, x, hook):
    for _ in range(100):
        if hook.firings:
            return
        session.run(fetches, {x: 0.0})


def test_error_in_a_firing_does_not_hide_the_latch_from_other_hooks(watched, fires):
    train_op, x, latch = watched

    class Raises(fires):
        def on_trigger(self, firing):
            super().on_trigger(firing)
            raise ValueError("seen")

    raising, other = Raises(train.latched(latch)), fires(train.latched(latch))
    with train.MonitoredSession(hooks=[raising, other]) as session:
        with pytest.raises(ValueError, match="seen"):  # noqa: PT012 - in any of these runs
            for number in range(1, 100):
                session.run(train_op, {x: 20.0 if number == 2 else 0.0})
        session.run(train_op, {x: 0.0})
        assert (raising.steps, other.steps) == ([2], [2])


def test_deferred_firings_run_on_the_thread_of_the_session(model, fires):
    train_op, x, doubled = model
    threads = []

    class Notes(fires):
        def on_trigger(self, firing):
            threads.append(threading.current_thread())

    with train.MonitoredSession(hooks=[Notes(train.every(1), doubled, True)]) as session:
        for _ in range(5):
            session.run(train_op, {x: np.ones(3, "f")})
    assert threads == [threading.current_thread()] * 5
