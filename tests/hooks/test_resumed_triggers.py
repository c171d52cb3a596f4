"""A training resumed with another trigger fires on the new grid, and does not repeat past firings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline as hl
from hookline import train
from hookline.testing import FakeClock
from hookline.train import SecondOrStepTimer, Trigger, at_steps, every, first_then_every, when_step


class Firings(train.SessionRunHook):
    def __init__(self, trigger: Trigger) -> None:
        self.trigger, self.steps, self.elapsed = trigger, [], []

    def on_trigger(self, firing: train.Firing) -> None:
        self.steps.append(firing.global_step)
        self.elapsed.append(firing.elapsed_steps)


def trained(directory, trigger: Trigger, last_step: int, steps_per_run: int = 1) -> Firings:
    """Trains on to a step, one second a run; returns the hook with its firings."""
    hook = Firings(trigger)
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        hooks = [train.StopAtStepHook(last_step=last_step), hook]
        with (
            FakeClock() as clock,
            train.MonitoredTrainingSession(
                checkpoint_dir=str(directory),
                hooks=hooks,
                log_step_count_steps=None,
                save_summaries_steps=None,
                steps_per_run=steps_per_run,
            ) as session,
        ):
            while not session.should_stop():
                session.run(train_op)
                clock.advance(1)
    return hook


@pytest.mark.parametrize("steps_per_run", [1, 16])
@pytest.mark.parametrize(
    ("before", "after", "last", "fired"),
    [
        pytest.param(every(100), every(20), 300, [260, 280, 300], id="a shorter every"),
        pytest.param(every(20), every(100), 450, [300, 400], id="a longer every"),
        pytest.param(every(100), every(100), 310, [300], id="the same"),
        pytest.param(first_then_every(100), first_then_every(20), 300, [261, 281], id="a shorter spaced"),
        pytest.param(first_then_every(20), first_then_every(100), 450, [341, 441], id="a longer spaced"),
        pytest.param(every(100), first_then_every(20), 300, [260, 280, 300], id="spaced after every"),
        pytest.param(first_then_every(100), every(20), 300, [260, 280, 300], id="every after spaced"),
        pytest.param(SecondOrStepTimer(every_steps=100), every(20), 280, [260, 280], id="every after a timer"),
        pytest.param(every(100), at_steps(10, 220, 270), 300, [270], id="steps of which some are past"),
        pytest.param(at_steps(10), every(20), 280, [260, 280], id="every after steps"),
        pytest.param(every(100), every(20) | at_steps(3, 240, 255), 270, [255, 260], id="an or of it"),
        pytest.param(every(20) | at_steps(3), every(50), 310, [300], id="a part of an or"),
        pytest.param(
            first_then_every(100) | at_steps(230), first_then_every(100), 310, [301], id="an equal part of an or"
        ),
        pytest.param(
            first_then_every(100),
            at_steps(260) | first_then_every(100),
            310,
            [260, 301],
            id="an or with the same as a part",
        ),
        pytest.param(every(100), every(4) & every(10), 300, [260, 280, 300], id="an and"),
        pytest.param(every(4) & every(10), every(6) & every(10), 310, [270, 300], id="another and"),
        pytest.param(when_step(lambda step: step == 5), every(20), 270, [260], id="every after a predicate"),
        pytest.param(every(1000), every(20), 270, [260], id="one that never fired"),
    ],
)
def test_resumed_training_fires_on_the_grid_of_the_new_trigger(tmp_path, before, after, last, fired, steps_per_run):
    trained(tmp_path, before.clone(), 250)
    assert trained(tmp_path, after.clone(), last, steps_per_run).steps == fired


def test_cadence_changed_from_seconds_to_steps_counts_from_the_last_firing(tmp_path):
    assert trained(tmp_path, every(secs=60), 250).steps == [61, 121, 181, 241]
    resumed = trained(tmp_path, every(20), 290)
    assert (resumed.steps, resumed.elapsed) == ([260, 280], [19, 20])


def test_cadence_changed_from_steps_to_seconds_counts_from_the_last_firing(tmp_path):
    assert trained(tmp_path, every(100), 250).steps == [100, 200]
    assert trained(tmp_path, every(secs=60), 300).steps[0] == 260  # 60 seconds after step 200


def test_shorter_cadence_resumed_twice_keeps_its_grid(tmp_path):
    trained(tmp_path, first_then_every(100), 250)
    assert trained(tmp_path, first_then_every(20), 255).steps == []
    assert trained(tmp_path, first_then_every(20), 300).steps == [261, 281]


def test_user_trigger_restores_its_own_state(tmp_path):
    class Doubling(Trigger):
        """Fires at a step, then at twice that step."""

        due = 8

        def next_step(self, after: int) -> int:
            return max(after + 1, self.due)

        def update_last_triggered_step(self, step: int):
            self.due = 2 * step
            return super().update_last_triggered_step(step)

        def get_state(self):
            return super().get_state() | {"due": self.due}

        def set_state(self, state):
            super().set_state(state)
            self.due = state["due"]

    assert trained(tmp_path, Doubling(), 70).steps == [8, 16, 32, 64]
    assert trained(tmp_path, Doubling(), 200).steps == [128]


CADENCES = st.integers(1, 40)
SIMPLE = st.one_of(
    CADENCES.map(every), CADENCES.map(first_then_every), st.sets(CADENCES, min_size=1).map(lambda s: at_steps(*s))
)
TRIGGERS = st.one_of(SIMPLE, st.tuples(SIMPLE, SIMPLE).map(lambda parts: parts[0] | parts[1]))


def fired(trigger: Trigger, steps) -> list[int]:
    found = []
    for step in steps:
        if trigger.should_trigger_for_step(step):
            trigger.update_last_triggered_step(step)
            found.append(step)
    return found


@given(TRIGGERS, st.integers(0, 100))
def test_equal_trigger_fires_as_without_interruption(trigger, saved_at):
    whole = trigger.clone()
    whole.start(0)
    parts = trigger.clone()
    parts.start(0)
    before = fired(parts, range(1, saved_at + 1))
    resumed = trigger.clone()
    resumed.resume(parts.get_state(), saved_at, saved_at)
    assert before + fired(resumed, range(saved_at + 1, 150)) == fired(whole, range(1, 150))


@given(TRIGGERS, CADENCES, st.integers(1, 100), st.integers(1, 16))
def test_every_fires_on_its_own_grid_after_any_trigger(trigger, cadence, saved_at, steps_per_run):
    trigger = trigger.clone()
    trigger.start(0)
    fired(trigger, range(1, saved_at + 1))
    resumed = every(cadence)
    resumed.resume(trigger.get_state(), saved_at, saved_at)
    assert resumed.steps_until_trigger(saved_at) == cadence - saved_at % cadence
    assert fired(resumed, range(saved_at + 1, 150)) == [s for s in range(saved_at + 1, 150) if s % cadence == 0]


class Multiples(Trigger):
    """A trigger of one's own, which prints as an address."""

    def __init__(self, of: int) -> None:
        self.of = of

    def next_step(self, after: int) -> int:
        return (after // self.of + 1) * self.of


@pytest.mark.parametrize("steps_per_run", [1, 16])
def test_user_trigger_with_a_shorter_cadence_keeps_its_grid(tmp_path, steps_per_run):
    assert trained(tmp_path, Multiples(100), 250).steps == [100, 200]
    assert trained(tmp_path, Multiples(20), 300, steps_per_run).steps == [260, 280, 300]
