"""Which callbacks a firing calls; and when the phase of a trigger moves."""

from __future__ import annotations

import itertools
import logging

import pytest
from tests.monitored.conftest import QUICK, run, warnings_of
from tests.stand_ins import Forwards

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.train import SessionRunArgs


def job(directory, last_step, *hooks, save_steps=1):
    """Trains up to a step, in a graph of its own, and saves."""
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(directory),
            hooks=[*hooks, train.StopAtStepHook(last_step=last_step)],
            save_checkpoint_steps=save_steps,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:
            while not session.should_stop():
                session.run(train_op)


# Delivery --------------------------------------------------------------------------------------------------------


def test_before_trigger_adds_feeds_options_and_fetches_to_firing_runs(fires, train_op):
    x = hl.placeholder("float32", [], name="x")
    doubled = x * 2.0

    class Feeds(fires):
        def before_trigger(self, run_context):
            assert run_context.expected_step % 3 == 0
            return SessionRunArgs(doubled, {x: float(run_context.expected_step)}, hl.RunOptions(trace_level=1))

    hook = Feeds(train.every(3))
    seen = []

    class Looks(train.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(run_values.options.trace_level)

    with train.MonitoredSession(hooks=[hook, Looks()]) as session:
        run(session, train_op, 7)
    assert [float(firing.values) for firing in hook.firings] == [6.0, 12.0]
    assert seen == [0, 0, 1, 0, 0, 1, 0]
    assert [firing.options.trace_level for firing in hook.firings] == [1, 1]
    assert hook.firings[0].run_metadata is not hook.firings[1].run_metadata


def test_base_callbacks_deliver_also_through_super(fires, train_op):
    calls = []

    class Wraps(fires):
        def before_run(self, run_context):
            asked = super().before_run(run_context)
            calls.append(("before", asked is not None))
            return asked

        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            calls.append(("after", len(self.firings)))

    hook = Wraps(train.every(2), fetches="global_step:0")
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op, 4)
    assert calls == [
        ("before", False), ("after", 0), ("before", True), ("after", 1),
        ("before", False), ("after", 1), ("before", True), ("after", 2),
    ]  # fmt: skip
    assert [int(firing.values) for firing in hook.firings] == [1, 3]


def test_subclass_without_super_replaces_the_delivery(fires, train_op, caplog):
    class Before(fires):
        def before_run(self, run_context):
            return None

    class After(fires):
        def after_run(self, run_context, run_values):
            self.seen = run_values.results

    before, after = Before(train.every(2), fetches="global_step:0"), After(train.every(2))
    with train.MonitoredSession(hooks=[before, after]) as session:
        run(session, train_op, 6)
    assert before.steps == [2, 4, 6]
    assert [firing.values for firing in before.firings] == [None] * 3
    assert after.firings == []
    (warning,) = warnings_of(caplog)
    assert warning.startswith("Before declares fetches, and its before_run did not request them")


def test_declared_fetches_reach_an_after_run_that_calls_super(train_op):
    class Reads(train.SessionRunHook):
        trigger, fetches = train.every(3), "global_step:0"
        seen = ()

        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            self.seen = (*self.seen, run_values.results if run_values.results is None else int(run_values.results))

    hook = Reads()
    with train.MonitoredSession(hooks=[hook]) as session:
        run(session, train_op, 6)
    assert hook.seen == (None, None, 2, None, None, 5)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: train.every(3), [3, 6, 9]),
        (lambda: train.first_then_every(3), [1, 4, 7, 10]),
        (lambda: train.every(runs=4), [1, 5, 9]),
        (train.first_run, [1]),
    ],
)
@pytest.mark.parametrize("fetches", [None, "global_step:0"])
def test_forwarded_hook_moves_its_own_trigger(make, steps, fetches, fires, train_op):
    hook = fires(make(), fetches=fetches)
    with train.MonitoredSession(hooks=[Forwards(hook)]) as session:
        run(session, train_op, 10)
    assert hook.steps == steps
    assert [firing.values is None for firing in hook.firings] == [fetches is None] * len(steps)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: train.every(3), [3, 6]),
        (lambda: train.first_then_every(3), [1, 4, 7]),
        (lambda: train.every(runs=3), [1, 4, 7]),
        (train.first_run, [1]),
        (lambda: train.first_run() | train.every(5), [1, 5]),
    ],
)
def test_trigger_of_a_forwarded_hook_starts_again_in_the_next_session(make, steps, fires, train_op):
    hook = fires(make())
    for _ in range(2):
        hook.firings.clear()
        with train.MonitoredSession(hooks=[Forwards(hook)]) as session:
            run(session, train_op, 7)
        assert hook.steps == steps
        assert hook.elapsed[0] == (None, None)


def test_forwarded_hook_is_notified_of_its_latch_in_each_session(fires):
    step = train.get_or_create_global_step()
    latch = hl.latch(hl.op(lambda value: value >= 2, name="above")(step))
    train_op = hl.group(step.assign_add(1))
    hook = fires(train.latched(latch))
    for _ in range(2):
        hook.firings.clear()
        with train.MonitoredSession(hooks=[Forwards(hook)]) as session:
            for _ in range(9):
                session.run(train_op)
                session.raw_session().latched(latch, wait=True)
        assert hook.steps == [3]


def test_before_trigger_of_a_forwarded_hook_is_called_before_it_fires(fires):
    calls = []

    class Asks(fires):
        def before_trigger(self, run_context):
            calls.append("before")

        def on_trigger(self, firing):
            calls.append(firing.global_step)

    jump = train.get_or_create_global_step().assign_add(5)
    with train.MonitoredSession(hooks=[Forwards(Asks(train.every(5)))]) as session:
        run(session, jump, 5)
    assert calls == ["before", 10, "before", 20]


def test_forwarded_stop_hook_stops(train_op):
    with train.MonitoredSession(hooks=[Forwards(train.StopAtStepHook(last_step=4))]) as session:
        while not session.should_stop():
            session.run(train_op)
        assert session.raw_session().global_step == 4


# The phase -------------------------------------------------------------------------------------------------------


class Fails(train.SessionRunHook):
    """Raises once in a callback, in the given runs."""

    def __init__(self, callback, *runs):
        self.callback, self.runs, self.attempts = callback, runs, 0

    def before_run(self, run_context):
        self.attempts += 1
        self._fail("before_run")

    def after_run(self, run_context, run_values):
        self._fail("after_run")

    def _fail(self, callback):
        if callback == self.callback and self.attempts in self.runs:
            raise ValueError("once")


@pytest.mark.parametrize(
    "make", [lambda: train.every(3), lambda: train.first_then_every(3), lambda: train.every(runs=3)]
)
def test_attempt_that_failed_before_its_step_moves_no_trigger(make, fires, training):
    hook, reference = fires(make(), fetches=training.global_step), fires(make())
    with train.MonitoredSession(hooks=[Fails("before_run", 3, 5, 9), hook]) as session:
        for number in range(1, 14):
            if number in (3, 5, 9):
                with pytest.raises(ValueError, match="once"):
                    session.run(training.train_op)
            else:
                session.run(training.train_op)
    with train.MonitoredSession(hooks=[reference]) as session:
        run(session, training.train_op, 10)
    assert hook.steps == reference.steps


@pytest.mark.parametrize(
    ("make", "steps"), [(lambda: train.every(3), [5, 6, 9]), (lambda: train.first_then_every(3), [1, 5, 8])]
)
def test_firing_prevented_by_another_hooks_error_comes_in_the_next_run(make, steps, fires, train_op):
    hook = fires(make(), fetches="global_step:0")
    with train.MonitoredSession(hooks=[Fails("after_run", 3, 4, 7), hook]) as session:
        for number in range(1, 11):
            if number in (3, 4, 7):
                with pytest.raises(ValueError, match="once"):
                    session.run(train_op)
            else:
                session.run(train_op)
    assert hook.steps == steps


def test_phase_moves_just_before_on_trigger_in_list_order(fires, train_op):
    seen = []

    class Looks(fires):
        def on_trigger(self, firing):
            seen.append([hook.trigger.last_triggered_step() for hook in hooks])

    hooks = [Looks(train.every(2)), Looks(train.every(2))]
    with train.MonitoredSession(hooks=hooks) as session:
        run(session, train_op, 4)
    assert seen == [[2, None], [2, 2], [4, 2], [4, 4]]


def test_raising_on_trigger_has_fired_and_later_hooks_fire_in_the_next_run(fires, train_op):
    class Raises(fires):
        def on_trigger(self, firing):
            super().on_trigger(firing)
            raise ValueError("once")

    hooks = fires(train.every(5)), Raises(train.every(5)), fires(train.every(5))
    with train.MonitoredSession(hooks=hooks) as session:
        for _ in range(8):
            try:
                session.run(train_op)
            except ValueError:
                assert session.raw_session().global_step == 5
    assert [hook.steps for hook in hooks] == [[5], [5], [6]]


@pytest.mark.parametrize("make", [lambda: train.every(3), lambda: train.every(runs=3), train.first_run])
def test_on_trigger_that_loses_the_session_is_called_again_in_the_retry(make, fires, train_op):
    class Loses(fires):
        def on_trigger(self, firing):
            super().on_trigger(firing)
            if len(self.firings) == 1:
                raise AbortedError(None, None, "lost")

    hook = Loses(make())
    with train.MonitoredSession(hooks=[hook], **QUICK) as session:
        run(session, train_op, 5)
    first = hook.steps[0]
    assert hook.steps[:2] == [first, first if first == 1 else 3]


@pytest.mark.parametrize(
    "interrupted_at", [7, *[pytest.param(step, marks=pytest.mark.campaign) for step in (1, 3, 4, 10)]]
)
def test_hook_with_only_a_trigger_resumes_exactly(interrupted_at, fires, tmp_path):
    def triggers():
        yield from (train.every(4), train.first_then_every(4), train.every(4) | train.at_steps(6, 9))
        yield train.every(2) & train.every(3)

    def steps(directory, *lasts):
        found = []
        for last in lasts:
            hooks = [fires(trigger) for trigger in triggers()]
            job(directory, last, *hooks, save_steps=5)
            found.append([[(firing.global_step, firing.elapsed_steps) for firing in hook.firings] for hook in hooks])
        return [[*itertools.chain(*each)] for each in zip(*found, strict=True)]

    assert steps(tmp_path / "parts", interrupted_at, 20) == steps(tmp_path / "whole", 20)


def test_trigger_set_in_after_create_session_is_restored(fires, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for last in (3, 6):
            job(tmp_path, last)
    assert "states of hooks that are not in this session" not in caplog.text


@pytest.mark.parametrize(
    ("make", "saves", "expected"),
    [
        (lambda: train.every(10), False, [(10, None), (20, 10), (10, None), (20, 10)]),
        pytest.param(
            lambda: train.first_then_every(10),
            False,
            [(1, None), (11, 10), (21, 10), (1, None), (11, 10)],
            marks=pytest.mark.campaign,
        ),
        (lambda: train.every(10), True, [(10, None), (20, 10), (20, 10), (30, 10)]),
        pytest.param(
            lambda: train.first_then_every(10),
            True,
            [(1, None), (11, 10), (21, 10), (21, 10), (31, 10)],
            marks=pytest.mark.campaign,
        ),
        # Runs are never taken back.
        (lambda: train.every(runs=10), True, [(1, None), (11, 10), (21, 10), (20, None), (30, 10)]),
        pytest.param(
            lambda: train.every(100) | train.every(runs=10),
            True,
            [(1, None), (11, 10), (21, 10), (20, 9), (30, 10)],
            marks=pytest.mark.campaign,
        ),
        pytest.param(train.first_run, True, [(1, None), (13, 12)], marks=pytest.mark.campaign),
        (lambda: train.at_steps(15) | train.first_run(), True, [(1, None), (15, 14), (13, 12), (15, 2)]),
    ],
)
def test_recovery_rewinds_the_phase_with_the_step(make, saves, expected, fires, training, tmp_path):
    hook = fires(make())
    savers = [train.CheckpointSaverHook(str(tmp_path), save_steps=12)] if saves else []
    creator = train.ChiefSessionCreator(checkpoint_dir=str(tmp_path) if saves else None)
    with train.MonitoredSession(creator, hooks=[hook, *savers], **QUICK) as session:
        run(session, training.train_op, 23)
        training.faults.append(AbortedError(None, None, "lost"))
        run(session, training.train_op, 20)
    assert [(firing.global_step, firing.elapsed_steps) for firing in hook.firings] == expected


def test_elapsed_seconds_are_those_of_the_phase(fires, train_op, clock):
    hook = fires(train.every(10))
    with train.MonitoredSession(hooks=[hook]) as session:
        for number in range(1, 31):
            clock.advance(2)
            session.run(train_op)
            if number == 25:
                session.raw_session().load({"global_step": 5})
    assert hook.elapsed == [(None, None), (10, 20.0), (None, None)]


def test_count_of_runs_starts_in_each_process_and_is_not_saved(fires, tmp_path):
    for last, steps in ((8, [1, 6]), (16, [9, 14])):
        hook = fires(train.every(runs=5))
        job(tmp_path, last, hook)
        assert hook.steps == steps


def test_hook_saves_its_state_and_the_session_the_phase_of_its_trigger(fires, tmp_path):
    class Counts(fires):
        count = 0

        def on_trigger(self, firing):
            self.count += 1

        def get_state(self):
            return {"count": self.count}

        def set_state(self, state):
            self.count = state["count"]

    for last in (5, 12):
        hook = Counts(train.first_then_every(4))
        job(tmp_path, last, hook)
    assert hook.count == 3  # at steps 1, 5 and 9
