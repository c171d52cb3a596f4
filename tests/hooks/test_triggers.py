from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import summary
from hookline.testing import FakeClock
from hookline.train import (
    CheckpointSaverHook,
    LoggingTensorHook,
    NeverTriggerTimer,
    ProfilerHook,
    Saver,
    SecondOrStepTimer,
    StepCounterHook,
    SummarySaverHook,
    Trigger,
    at_steps,
    every,
    log_spaced,
    when_step,
)


def fired(trigger: Trigger, steps) -> list[int]:
    out = []
    for step in steps:
        if trigger.should_trigger_for_step(step):
            trigger.update_last_triggered_step(step)
            out.append(step)
    return out


def test_every_fires_on_multiples_also_in_a_resumed_training():
    assert fired(every(100), range(1, 350)) == [100, 200, 300]
    resumed = every(100)
    resumed.start(150)
    assert fired(resumed, range(151, 350)) == [200, 300]


def test_every_fires_on_the_first_run_that_passes_a_multiple():
    assert fired(every(100), range(7, 500, 70)) == [147, 217, 357, 427]


def test_due_multiple_stays_due_until_it_fires():
    trigger = every(10)
    trigger.start(0)
    assert trigger.should_trigger_for_step(10)
    assert trigger.should_trigger_for_step(12)
    assert trigger.steps_until_trigger(12) == 1
    trigger.update_last_triggered_step(12)
    assert not trigger.should_trigger_for_step(12)
    assert trigger.steps_until_trigger(12) == 8


def test_multiple_is_not_lost_when_a_run_advances_less_than_predicted():
    trigger = every(10) & every(secs=60)
    with FakeClock() as clock:
        trigger.start(0)
        assert not trigger.should_trigger_for_step(10)  # foreseen before the run; the time is not over
        clock.advance(60)
        assert not trigger.should_trigger_for_step(9)  # where the run has led
        assert trigger.should_trigger_for_step(10)


def test_seconds_count_from_the_start_then_from_the_last_firing():
    with FakeClock() as clock:
        trigger = every(secs=60)
        trigger.start(0)
        assert not trigger.should_trigger_for_step(1)
        assert (trigger.secs_until_trigger(), trigger.steps_until_trigger(1)) == (60, NeverTriggerTimer().next_step(0))
        clock.advance(75)
        assert trigger.secs_until_trigger() == 0
        assert trigger.should_trigger_for_step(2)
        assert trigger.update_last_triggered_step(2) == (None, None)
        clock.advance(60)
        assert not trigger.should_trigger_for_step(2)
        assert trigger.should_trigger_for_step(5)
        assert trigger.update_last_triggered_step(5) == (60.0, 3)


def test_at_steps_and_log_spaced_fire_at_their_steps():
    assert fired(at_steps(1000, 10, 10, 100), range(0, 2000)) == [10, 100, 1000]
    assert fired(at_steps(3, 4, 9), [2, 7, 8, 12, 20]) == [7, 12]
    assert fired(log_spaced(), range(1, 1100)) == [1, 2, 5, 10, 22, 46, 100, 215, 464, 1000]
    assert fired(log_spaced(per_decade=1), range(5, 2000)) == [10, 100, 1000]
    assert fired(log_spaced(per_decade=30), range(1, 12)) == list(range(1, 12))


def test_predicate_is_called_for_every_step_passed():
    asked = []
    trigger = when_step(lambda step: asked.append(step) or step % 7 == 0)
    trigger.start(0)
    assert fired(trigger, [3, 6, 9, 12, 15]) == [9, 15]
    assert asked == [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14]


def test_and_fires_on_common_steps_and_or_on_all():
    assert fired(every(3) & every(5), range(1, 50)) == [15, 30, 45]
    assert fired(every(3) & every(5), range(0, 50, 2)) == [16, 30, 46]
    assert fired(every(10) | at_steps(1, 2, 3), range(1, 22)) == [1, 2, 3, 10, 20]
    assert fired(every(4) & when_step(lambda step: step > 10), range(1, 22)) == [12, 16, 20]
    assert fired(every(2) & at_steps(3), range(1, 50)) == []
    assert fired(every(997) & every(1009), range(997 * 1009 - 3, 997 * 1009 + 3)) == [997 * 1009]


def test_seconds_in_an_and_stay_due_until_both_fire_and_steps_do_not():
    with FakeClock() as clock:
        trigger = every(10) & every(secs=60)
        trigger.start(0)
        assert fired(trigger, range(1, 13)) == []
        clock.advance(60)
        assert fired(trigger, range(13, 45)) == [20]
        assert (trigger.steps_until_trigger(44), trigger.secs_until_trigger()) == (6, math.inf)
        clock.advance(100)
        assert fired(trigger, range(45, 55)) == [50]
        clock.advance(59)
        assert fired(trigger, range(55, 65)) == []


def test_and_of_two_triggers_in_seconds_uses_only_the_clock():
    with FakeClock() as clock:
        trigger = every(secs=10) & every(secs=60)
        trigger.start(0)
        assert trigger.secs_until_trigger() == 60
        assert trigger.steps_until_trigger(0) > 10**15
        clock.advance(60)
        assert fired(trigger, [1, 2]) == [1]


def test_parts_of_an_or_keep_their_phases():
    with FakeClock() as clock:
        trigger = every(secs=60) | SecondOrStepTimer(every_steps=10)
        trigger.start(0)
        assert fired(trigger, range(1, 15)) == [1, 11]
        clock.advance(60)
        assert fired(trigger, range(15, 35)) == [15, 21, 31]
        assert (trigger.steps_until_trigger(34), trigger.secs_until_trigger()) == (7, 60)
        trigger.reset()
        assert fired(trigger, [34]) == [34]


def test_external_firing_counts_for_all_parts():
    trigger = SecondOrStepTimer(every_steps=10) | SecondOrStepTimer(every_steps=7)
    trigger.update_last_triggered_step(0)
    assert fired(trigger, range(1, 22)) == [7, 10, 14, 20, 21]


def test_recovery_rewinds_triggers():
    trigger = every(10) | at_steps(14)
    trigger.start(0)
    assert fired(trigger, range(1, 35)) == [10, 14, 20, 30]
    trigger.start(12)
    assert trigger.last_triggered_step() == 12
    assert trigger.update_last_triggered_step(14) == (None, None)
    assert fired(trigger, range(15, 35)) == [20, 30]


def test_user_trigger_composes():
    class Squares(Trigger):
        def next_step(self, after):
            return (math.isqrt(max(after, 0)) + 1) ** 2

    assert fired(Squares() & every(2), range(1, 40)) == [4, 16, 36]


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: every(), ValueError, "exactly one of steps, secs, runs or epochs, got none"),
        (lambda: every(1, secs=1), ValueError, "exactly one of steps, secs, runs or epochs, got steps and secs"),
        (lambda: every(0), ValueError, "steps >= 1, got 0"),
        (lambda: every(2.5), TypeError, "a whole number as steps, got 2.5"),
        (lambda: every(secs=-1), ValueError, "secs >= 0, got -1"),
        (lambda: every(secs=math.nan), ValueError, "a number as secs, got nan"),
        (lambda: at_steps(), ValueError, "one step or more, got none"),
        (lambda: at_steps([1, 2]), TypeError, r"a whole number as steps, got \[1, 2\]"),
        (lambda: log_spaced(0), ValueError, "per_decade >= 1, got 0"),
        (lambda: when_step(10), TypeError, "a function of the step, got 10"),
        (lambda: every(3) | 5, TypeError, "unsupported operand"),
        (lambda: (lambda a: a & a)(every(3)), ValueError, r"\(every\(3\) & every\(3\)\) has the same trigger twice"),
    ],
)
def test_wrong_arguments_are_refused(make, error, complaint):
    with pytest.raises(error, match=complaint):
        make()


leaves = st.one_of(
    st.integers(1, 12).map(lambda n: f"every({n})"),
    st.integers(0, 9).map(lambda secs: f"every(secs={secs})"),
    st.lists(st.integers(0, 60), min_size=1, max_size=5).map(lambda s: f"at_steps({', '.join(map(str, s))})"),
    st.integers(1, 5).map(lambda n: f"log_spaced({n})"),
    st.integers(2, 6).map(lambda n: f"when_step(lambda step: step % {n} == 1)"),
    st.integers(1, 9).map(lambda n: f"SecondOrStepTimer(every_steps={n})"),
    st.integers(0, 9).map(lambda secs: f"SecondOrStepTimer(every_secs={secs})"),
)
triggers = st.recursive(leaves, lambda t: st.tuples(t, st.sampled_from("|&"), t).map(lambda x: f"({' '.join(x)})"))
runs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60)
start = st.integers(0, 20)


@given(trigger=triggers, start=start, runs=runs)
def test_hook_called_only_when_due_fires_on_the_same_steps(trigger, start, runs):
    with FakeClock(start=0.0) as clock:
        seen, paced = eval(trigger), eval(trigger)
        for each in (seen, paced):
            each.start(start)
        steps, deadline = paced.steps_until_trigger(start), clock.monotonic() + paced.secs_until_trigger()
        look_at = start + steps
        step = start
        for gain, secs in [(1, 0), *runs]:  # A timer that was never asked fires wherever it is asked first.
            step += gain
            clock.advance(secs)
            expected = fired(seen, [step])
            if step >= look_at or clock.monotonic() >= deadline:
                assert fired(paced, [step]) == expected
                look_at = step + paced.steps_until_trigger(step)
                deadline = clock.monotonic() + paced.secs_until_trigger()
            else:
                assert expected == []


@given(trigger=triggers, start=start, before=runs, after=runs)
def test_state_of_a_trigger_restores_it_completely(trigger, start, before, after):
    with FakeClock(start=0.0) as clock:
        trigger, restarted, step = eval(trigger), eval(trigger), start
        trigger.start(start)
        for gain, secs in before:
            step += gain
            clock.advance(secs)
            fired(trigger, [step])
        restarted.set_state(json.loads(json.dumps(trigger.get_state())))
        restarted.start(step)
        for gain, secs in after:
            step += gain
            clock.advance(secs)
            assert fired(restarted, [step]) == fired(trigger, [step])


def holds(trigger, step):
    """The model of triggers in steps: a set of steps, written down once more."""
    if isinstance(trigger, tuple):
        one, sign, other = trigger
        return (any if sign == "|" else all)(holds(part, step) for part in (one, other))
    return step % trigger == 0


multiples = st.recursive(st.integers(1, 9), lambda t: st.tuples(t, st.sampled_from("|&"), t), max_leaves=4)


def built(trigger):
    if isinstance(trigger, tuple):
        one, sign, other = trigger
        return built(one) | built(other) if sign == "|" else built(one) & built(other)
    return every(trigger)


@given(trigger=multiples, start=start, gains=st.lists(st.integers(0, 7), max_size=60))
def test_triggers_in_steps_fire_on_a_set_of_steps_for_any_increments(trigger, start, gains):
    tried, step = built(trigger), start
    tried.start(start)
    for gain in gains:
        passed = range(step + 1, step + gain + 1)
        step += gain
        assert fired(tried, [step]) == ([step] if any(holds(trigger, s) for s in passed) else [])


def test_trigger_replaces_the_cadence_of_every_hook(model, tmp_path, caplog):
    caplog.set_level("INFO", logger="hookline")
    loss = summary.scalar("loss", model.loss)
    saver = Saver(max_to_keep=None)
    hooks = [
        StepCounterHook(trigger=every(10), output_dir=str(tmp_path)),
        SummarySaverHook(trigger=every(10), output_dir=str(tmp_path), summary_op=loss),
        LoggingTensorHook({"loss": model.loss}, trigger=every(10), formatter=lambda values: "logged"),
        CheckpointSaverHook(str(tmp_path), trigger=every(10), saver=saver),
    ]
    with model.session(*hooks) as session:
        for _ in range(35):
            session.run(model.train)
    assert [path.rpartition("-")[2] for path in saver.last_checkpoints] == ["0", "10", "20", "30", "35"]
    assert caplog.messages.count("logged") == 3
    assert sum(message.startswith("global_step/sec") for message in caplog.messages) == 2


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda **given: StepCounterHook(**given), {"every_n_steps": 100, "trigger": every(10)}),
        (lambda **given: StepCounterHook(**given), {"every_n_steps": 100, "every_n_secs": 1}),
        (lambda **given: StepCounterHook(every_n_steps=None, **given), {"every_n_secs": 1, "trigger": every(10)}),
        (lambda **given: StepCounterHook(every_n_steps=None, **given), {}),
        (lambda **given: SummarySaverHook(summary_op="loss:0", **given), {"save_steps": 1, "trigger": every(10)}),
        (lambda **given: SummarySaverHook(summary_op="loss:0", **given), {}),
        (lambda **given: ProfilerHook(**given), {"save_steps": 1, "trigger": every(10)}),
        (lambda **given: ProfilerHook(**given), {}),
        (lambda **given: LoggingTensorHook(["loss"], **given), {"every_n_iter": 1, "trigger": every(10)}),
        (lambda **given: LoggingTensorHook(["loss"], **given), {"every_n_secs": 1, "trigger": every(10)}),
        (lambda **given: CheckpointSaverHook("dir", **given), {"save_secs": 1, "trigger": every(10)}),
        (lambda **given: CheckpointSaverHook("dir", **given), {"save_steps": 1, "save_secs": 1, "trigger": every(10)}),
    ],
)
def test_hook_needs_exactly_one_cadence(make, given):
    with pytest.raises(ValueError, match=f"trigger, got {', '.join(given) or 'none'}"):
        make(**given)


def test_at_end_works_with_a_trigger(model, caplog):
    caplog.set_level("INFO", logger="hookline")
    hook = LoggingTensorHook({"loss": model.loss}, trigger=at_steps(3), at_end=True, formatter=lambda values: "logged")
    model.train_until_stop(hook, at_most=5)
    assert caplog.messages.count("logged") == 2


def test_predicate_is_called_for_a_bounded_number_of_steps_after_a_jump():
    asked = []

    def predicate(step):
        asked.append(step)
        return step == 5 * 10**9 - 20_000

    trigger = when_step(predicate)
    trigger.start(0)
    assert not trigger.should_trigger_for_step(5 * 10**9)
    assert len(asked) <= 10_001
