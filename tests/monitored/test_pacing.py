from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.hooks import SessionRunHook
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
    assert len(asked) <= 5


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


@given(st.integers(1, 20), st.lists(st.integers(0, 5), min_size=1, max_size=80))
def test_a_due_hook_is_seen_at_the_latest_one_run_late(every, gains):
    raw, paced = ScriptedSession(), Every(every)
    session = HookedSession(raw, HookList([paced]))
    for gain in gains:
        due_before = paced.due <= raw.global_step
        seen = paced.seen
        raw._gain = gain
        session.run("train")
        assert not due_before or paced.seen == seen + 1


def test_one_leap_of_the_step_does_not_make_hooks_be_seen_for_ever():
    raw, paced = ScriptedSession(), Every(1000)
    session = HookedSession(raw, HookList([paced]))
    session.run("train")
    raw.load({"global_step": 5000})  # somebody else's steps
    for _ in range(100):
        session.run("train")
    assert paced.seen < 10
