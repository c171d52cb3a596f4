from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.graph import Graph, get_or_create_global_step, group, op, placeholder
from hookline.hooks import FeedFnHook, SessionRunHook, StopAtStepHook, every
from hookline.monitored import MonitoredSession
from hookline.monitored.hook_list import HookList
from hookline.monitored.hooked import HookedSession
from hookline.testing import ScriptedSession


class Every(SessionRunHook):
    """Fires at or after each multiple of `every`, and says so beforehand."""

    def __init__(self, every):
        self.every, self.due, self.seen, self.fired = every, every, 0, []

    def before_run(self, run_context):
        self.seen += 1

    def after_run(self, run_context, run_values):
        step = run_context.session.global_step
        if step >= self.due:
            self.fired.append(step)
            self.due = (step // self.every + 1) * self.every

    def steps_until_trigger(self, global_step):
        return self.due - global_step


def test_a_hook_is_left_out_of_the_runs_before_its_step(recorder, events):
    raw, paced = ScriptedSession(), Every(10)
    session = HookedSession(raw, HookList([paced, recorder("b")]))
    for _ in range(40):
        session.run("train")
    assert paced.fired == [10, 20, 30, 40]
    assert paced.seen == 5  # once at the start, then where it is due
    assert events.count("b.after") == 40


class EveryMinute(SessionRunHook):
    """Fires each minute, and says so beforehand."""

    def __init__(self):
        self.trigger, self.seen, self.fired = every(secs=60), 0, []

    def after_create_session(self, session, coord):
        self.trigger.start(session.global_step)

    def after_run(self, run_context, run_values):
        self.seen += 1
        step = run_context.session.global_step
        if self.trigger.should_trigger_for_step(step):
            self.trigger.update_last_triggered_step(step)
            self.fired.append(step)

    def secs_until_trigger(self):
        return self.trigger.secs_until_trigger()


def test_a_hook_with_a_clock_is_left_out_of_the_runs_before_its_time(recorder, events, clock):
    timed = EveryMinute()
    timed.trigger.start(0)
    session = HookedSession(ScriptedSession(), HookList([timed, Every(1000), recorder("b")]))
    for _ in range(40):
        clock.advance(10)
        session.run("train")
    assert timed.fired == [6, 12, 18, 24, 30, 36]
    assert timed.seen == 7  # once at the start, then where it is due
    assert events.count("b.after") == 40


def test_what_is_said_in_steps_holds_beside_the_clock(clock):
    class Both(EveryMinute):
        def __init__(self):
            super().__init__()
            self.trigger = every(secs=60) | every(4)

        def steps_until_trigger(self, global_step):
            return self.trigger.steps_until_trigger(global_step)

    timed = Both()
    timed.trigger.start(0)
    session = HookedSession(ScriptedSession(), HookList([timed]))
    for _ in range(20):
        clock.advance(10)
        session.run("train")
    assert timed.fired == [4, 6, 8, 12, 16, 18, 20]
    assert timed.seen == 8


def test_a_hook_whose_time_has_come_is_called_until_the_step_moves(training, clock):
    timed = EveryMinute()
    with MonitoredSession(hooks=[timed]) as session:
        session.run(training.train_op)
        clock.advance(61)
        session.run(training.train_op)
        clock.advance(61)
        for _ in range(3):
            session.run(training.global_step)
        assert timed.fired == [2]
        session.run(training.train_op)
        assert timed.fired == [2, 3]


def test_without_a_global_step_nobody_is_left_out():
    raw, paced = ScriptedSession(global_step=None), Every(10)
    paced.after_run = lambda run_context, run_values: None  # type: ignore[method-assign]
    session = HookedSession(raw, HookList([paced]))
    for _ in range(5):
        session.run("train")
    assert paced.seen == 5


def test_a_hook_that_looks_at_every_step_is_asked_again_only_now_and_then():
    asked = []

    class Timed(SessionRunHook):
        def after_run(self, run_context, run_values):
            pass

        def steps_until_trigger(self, global_step):
            asked.append(global_step)
            return 1

    session = HookedSession(ScriptedSession(), HookList([Timed()]))
    for _ in range(200):
        session.run("train")
    assert asked[:6] == [1, 3, 7, 15, 31, 63]
    assert max(b - a for a, b in itertools.pairwise(asked)) == 64


def test_a_step_that_moves_back_makes_every_hook_seen():
    raw, paced = ScriptedSession(global_step=100), Every(50)
    paced.due = 150
    session = HookedSession(raw, HookList([paced]))
    session.run("train")
    raw.load({"global_step": 10})
    session.run("train")
    assert paced.seen == 2


@pytest.mark.parametrize("gain", [1, 3, 7])
def test_graphs_that_gain_several_steps_a_run_fire_where_they_would_without_pacing(gain):
    raw, paced = ScriptedSession(gain=gain), Every(10)
    session = HookedSession(raw, HookList([paced]))
    for _ in range(60):
        session.run("train")
    expected = Every(10)
    plain = ScriptedSession(gain=gain)
    expected.steps_until_trigger = None  # type: ignore[assignment]
    reference = HookedSession(plain, HookList([expected]))
    for _ in range(60):
        reference.run("train")
    assert paced.fired == expected.fired


class GainingSession(ScriptedSession):
    """Gains as many steps as it is asked for, and says so beforehand unless only the device knows."""

    says = True

    def step_gain(self, fetches, feed_dict=None):
        return sum(fetches) if self.says else None

    def run(self, fetches, *others):
        self._gain = sum(fetches)
        return super().run(fetches, *others)


@given(st.integers(1, 20), st.lists(st.integers(0, 30), min_size=1, max_size=80))
def test_a_hook_fires_on_the_very_run_that_reaches_its_step_whatever_the_runs_gain(every, gains):
    paced, unpaced = Every(every), Every(every)
    unpaced.steps_until_trigger = None  # type: ignore[assignment]
    for hook in (paced, unpaced):
        session, fetches = HookedSession(GainingSession(), HookList([hook])), [0]
        for fetches[0] in gains:  # one list, changed in place
            session.run(fetches)
    assert paced.fired == unpaced.fired


@given(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=80))
def test_where_the_device_alone_knows_the_gain_a_due_hook_is_seen_at_the_latest_one_run_late(every, gains):
    raw, paced = GainingSession(), Every(every)
    raw.says = False
    session = HookedSession(raw, HookList([paced]))
    for gain in gains:
        due_before = paced.due <= raw.global_step
        seen = paced.seen
        session.run([gain])
        assert not due_before or paced.seen == seen + 1


@pytest.mark.parametrize("fed_by_a_hook", [False, True])
def test_a_run_that_leaps_over_the_last_step_ends_the_training(fed_by_a_hook):
    with Graph().as_default():
        x, step = placeholder("float32", (), name="x"), get_or_create_global_step()
        one, ten = (group(step.assign_add(gain), op(lambda x: x)(x)) for gain in (1, 10))
        feeds = {"x:0": 1.0}
        hooks = [StopAtStepHook(last_step=10), FeedFnHook(lambda: feeds)][: 1 + fed_by_a_hook]
        with MonitoredSession(hooks=hooks) as session:
            for fetches in [one] * 5 + [ten]:
                assert not session.should_stop()
                session.run(fetches, None if fed_by_a_hook else feeds)
            assert session.should_stop()
            assert session.run_step_fn(lambda step_context: step_context.session.global_step) == 15


def test_the_gain_of_a_single_fetch_is_looked_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr(ScriptedSession, "step_gain", lambda self, fetches, feed_dict: asked.append(fetches) or 1)
    session = HookedSession(ScriptedSession(), HookList([Every(10)]))
    for fetches in ["train"] * 20 + ["other"] * 20:
        session.run(fetches)
    assert asked == ["train", "other"]


def test_one_leap_of_the_step_does_not_make_hooks_be_seen_for_ever():
    raw, paced = ScriptedSession(), Every(1000)
    session = HookedSession(raw, HookList([paced]))
    session.run("train")
    raw.load({"global_step": 5000})  # somebody else's steps
    for _ in range(100):
        session.run("train")
    assert paced.seen < 10


def test_a_hook_that_raises_when_asked_leaves_the_others_when_they_were_due():
    class Often(SessionRunHook):
        def __init__(self):
            self.seen = []

        def after_run(self, run_context, run_values):
            self.seen.append(run_context.session.global_step)

        def steps_until_trigger(self, global_step):
            return 3 if global_step < 3 else 1

    class Raising(Often):
        def steps_until_trigger(self, global_step):
            if 3 <= global_step < 9:
                raise ValueError("on fire")
            return 3

    often, raising = Often(), Raising()
    count = get_or_create_global_step().assign_add(1)
    with MonitoredSession(hooks=[often, raising]) as session:
        for number in range(1, 16):
            try:
                session.run(count)
            except ValueError:
                assert 3 < number < 9
    assert often.seen == [1, *range(4, 16)]
    assert raising.seen == [1, *range(4, 10), 12, 15]
