from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.testing import FakeClock
from hookline.train import NeverTriggerTimer, SecondOrStepTimer, Trigger


def fired(timer: Trigger, steps: list[int]) -> list[int]:
    out = []
    for step in steps:
        if timer.should_trigger_for_step(step):
            timer.update_last_triggered_step(step)
            out.append(step)
    return out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "exactly one of every_secs or every_steps, got neither"),
        ({"every_secs": 1.0, "every_steps": 1}, "exactly one of every_secs or every_steps, got both"),
        ({"every_steps": 0}, "every_steps >= 1, got 0"),
        ({"every_secs": -1}, "every_secs >= 0, got -1"),
    ],
)
def test_timer_needs_exactly_one_valid_cadence(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        SecondOrStepTimer(**arguments)


@pytest.mark.parametrize("cadence", [{"every_secs": 2.0}, {"every_steps": 3}])
def test_timer_fires_at_the_first_call_and_never_twice_at_one_step(cadence):
    with FakeClock() as clock:
        timer = SecondOrStepTimer(**cadence)
        assert timer.last_triggered_step() is None
        assert timer.should_trigger_for_step(7)
        assert timer.update_last_triggered_step(7) == (None, None)
        clock.advance(1000)
        assert not timer.should_trigger_for_step(7)
        assert timer.last_triggered_step() == 7


def test_timer_in_seconds_fires_by_the_clock_and_returns_the_elapsed_time():
    with FakeClock() as clock:
        timer = SecondOrStepTimer(every_secs=10)
        timer.update_last_triggered_step(1)
        clock.advance(9.5)
        assert not timer.should_trigger_for_step(2)
        clock.advance(0.5)
        assert timer.should_trigger_for_step(5)
        assert timer.update_last_triggered_step(5) == (10.0, 4)
        assert not timer.should_trigger_for_step(6)


def test_reset_timer_has_never_fired():
    timer = SecondOrStepTimer(every_steps=100)
    timer.update_last_triggered_step(1)
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)


def test_timer_detects_an_earlier_step_by_itself():
    timer = SecondOrStepTimer(every_steps=10)
    fired(timer, list(range(1, 58)))
    assert fired(timer, list(range(21, 58))) == [21, 31, 41, 51]


def test_timer_rewound_before_its_first_firing_starts_again():
    timer = SecondOrStepTimer(every_steps=10)
    fired(timer, list(range(100, 130)))
    timer.start(40)
    assert fired(timer, list(range(41, 63))) == [41, 51, 61]


def test_rewinding_to_a_later_step_changes_nothing():
    timer = SecondOrStepTimer(every_steps=10)
    timer.update_last_triggered_step(5)
    timer.start(9)
    assert timer.last_triggered_step() == 5
    assert timer.steps_until_trigger(9) == 6


@pytest.mark.parametrize("tell", [True, False])
@pytest.mark.parametrize("cadence", [{"every_secs": 10}, {"every_steps": 10}])
def test_no_rate_is_reported_across_a_step_decrease(cadence, tell):
    with FakeClock() as clock:
        timer = SecondOrStepTimer(**cadence)
        timer.update_last_triggered_step(1)
        timer.update_last_triggered_step(101)
        if tell:
            timer.start(50)
        clock.advance(10)
        assert timer.should_trigger_for_step(61)
        assert timer.update_last_triggered_step(61) == (None, None)
        clock.advance(10)
        assert timer.update_last_triggered_step(71) == (10.0, 10)


def test_timer_in_seconds_fires_again_after_a_step_decrease():
    with FakeClock() as clock:
        timer = SecondOrStepTimer(every_secs=10)
        timer.update_last_triggered_step(1)
        timer.update_last_triggered_step(101)
        timer.start(50)
        assert not timer.should_trigger_for_step(51)
        clock.advance(10)
        assert timer.should_trigger_for_step(52)


def test_never_trigger_timer_never_fires():
    timer = NeverTriggerTimer()
    assert not timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert timer.last_triggered_step() is None
    timer.start(0)
    timer.reset()
    assert timer.steps_until_trigger(0) > 10**15


def test_timer_in_seconds_predicts_its_next_firing():
    with FakeClock() as clock:
        timer = SecondOrStepTimer(every_secs=3600)
        assert (timer.steps_until_trigger(0), timer.secs_until_trigger()) == (1, 0)
        timer.update_last_triggered_step(1)
        clock.advance(600)
        assert (timer.steps_until_trigger(1), timer.secs_until_trigger()) == (sys.maxsize, 3000)
        steps = SecondOrStepTimer(every_steps=50)
        steps.update_last_triggered_step(1)
        assert ((timer | steps).steps_until_trigger(1), (timer | steps).secs_until_trigger()) == (50, 3000)


gains = st.lists(st.integers(0, 7), max_size=80)


@given(every=st.integers(1, 9), start=st.integers(0, 50), gains=gains)
def test_step_timer_follows_its_model_for_any_steps(every, start, gains):
    timer, last, step = SecondOrStepTimer(every_steps=every), None, start
    for gain in gains:
        step += gain
        due = last is None or (step != last and step >= last + every)
        assert timer.should_trigger_for_step(step) == due
        if due:
            assert timer.update_last_triggered_step(step)[1] == (None if last is None else step - last)
            last = step


@given(every=st.floats(0.5, 9), moves=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=60))
def test_timer_in_seconds_follows_its_model_for_any_steps_and_times(every, moves):
    with FakeClock(start=0.0) as clock:
        timer, last, step = SecondOrStepTimer(every_secs=every), None, 0
        for gain, secs in moves:
            step += gain
            clock.advance(secs)
            due = last is None or (step != last[0] and clock.monotonic() >= last[1] + every)
            assert timer.should_trigger_for_step(step) == due
            if due:
                timer.update_last_triggered_step(step)
                last = step, clock.monotonic()


@given(
    every=st.integers(1, 9),
    start=st.integers(0, 20),
    gain=st.integers(1, 7),
    ran=st.integers(0, 60),
    back=st.integers(0, 60),
)
def test_rewound_step_timer_equals_the_timer_at_that_step(every, start, gain, ran, back):
    steps = list(range(start, start + ran + 1, gain))
    timer = SecondOrStepTimer(every_steps=every)
    whole = fired(timer, steps)
    restored = max(start, steps[-1] - back)
    timer.start(restored)
    assert fired(timer, [s for s in steps if s > restored]) == [s for s in whole if s > restored]


@given(every=st.integers(1, 9), back_and_forth=st.lists(st.integers(-30, 10), max_size=60))
def test_elapsed_steps_are_never_negative_and_firings_never_overdue(every, back_and_forth):
    timer, step = SecondOrStepTimer(every_steps=every), 0
    for move in back_and_forth:
        step = max(0, step + move)
        if timer.should_trigger_for_step(step):
            _, elapsed = timer.update_last_triggered_step(step)
            assert elapsed is None or elapsed > 0
        assert 1 <= timer.steps_until_trigger(step) <= every


def test_timer_rewound_beyond_its_memory_keeps_its_phase():
    timer = SecondOrStepTimer(every_steps=10)
    fired(timer, range(1, 20_000))
    timer.start(305)
    assert fired(timer, range(306, 340)) == [311, 321, 331]
    restored = SecondOrStepTimer(every_steps=10)
    restored.set_state(timer.get_state())
    restored.start(315)
    assert fired(restored, range(316, 340)) == [321, 331]
