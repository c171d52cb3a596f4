"""Hooks go on where they stood: their states are in the checkpoints."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hookline as hl
from hookline import summary, train
from hookline.errors import AbortedError
from hookline.testing import FakeClock, check_hook, read_events
from hookline.train import (
    CheckpointSaverHook,
    LoggingTensorHook,
    RecoveryPolicy,
    SessionRunHook,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
    every,
    only_for,
)


class EarlyStopping(SessionRunHook):
    """Stops when its value has not become better for `patience` runs."""

    def __init__(self, values, patience=3):
        self.values, self.patience = values, patience
        self.best, self.waited, self.recent = float("inf"), 0, np.zeros(2)

    def get_state(self):
        return {"best": self.best, "waited": self.waited, "recent": self.recent}

    def set_state(self, state):
        self.best, self.waited, self.recent = state["best"], state["waited"], state["recent"]

    def after_run(self, run_context, run_values):
        value = self.values[run_context.session.global_step - 1]
        self.recent[:] = self.recent[1], value
        self.waited = 0 if value < self.best else self.waited + 1
        self.best = min(self.best, value)
        if self.waited == self.patience:
            run_context.request_stop()


VALUES = [5.0, 3.0, 4.0, 4.0, 2.0, 2.5, 2.4, 2.3, 1.0]


def job(directory, *hooks, steps=100, faults=(), **arguments):
    """Trains until a hook stops it, or for so many runs, in a graph of its own. Returns the last global step."""
    faults = list(faults)
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        lose = hl.host_op(lambda: (_ for _ in ()).throw(faults.pop()) if faults else 0.0)
        with hl.control_dependencies([lose.node()] if faults else []):
            train_op = step.assign_add(1)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(directory),
            hooks=hooks,
            log_step_count_steps=None,
            save_summaries_steps=None,
            checkpoints=train.CheckpointOptions(recovery=RecoveryPolicy(initial_backoff_secs=0)),
            **arguments,
        ) as session:
            for _ in range(steps):
                if session.should_stop():
                    break
                session.run(train_op)
            return session.raw_session().global_step


@pytest.mark.parametrize(
    "interrupted_at", [2, 6, *[pytest.param(step, marks=pytest.mark.campaign) for step in (1, 3, 4, 5, 7)]]
)
def test_hook_state_is_restored_after_a_restart(tmp_path, interrupted_at):
    assert job(tmp_path / "whole", EarlyStopping(VALUES)) == 8
    job(tmp_path / "parts", EarlyStopping(VALUES), steps=interrupted_at)
    again = EarlyStopping(VALUES)
    assert job(tmp_path / "parts", again) == 8
    assert again.best == 2.0
    assert again.recent.tolist() == [2.4, 2.3]


def test_recovery_restores_hook_states_with_the_model(tmp_path):
    hook = EarlyStopping(VALUES)
    lost = [AbortedError(None, None, "lost")]
    assert job(tmp_path, hook, steps=5, faults=lost, save_checkpoint_steps=1) == 5
    assert (hook.best, hook.waited) == (2.0, 0)


def test_state_that_does_not_fit_is_logged(tmp_path, caplog):
    class Fussy(SessionRunHook):
        def get_state(self):
            return {"old": 1}

        def set_state(self, state):
            self.new = state["new"]

    job(tmp_path, Fussy(), steps=2)
    job(tmp_path, Fussy(), steps=1)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        "hook Fussy starts over, because it cannot be restored from its state in the checkpoint: KeyError: 'new'"
        in warning
    )


def test_state_that_cannot_be_saved_names_the_hook(tmp_path):
    class Wrong(SessionRunHook):
        def get_state(self):
            return {"when": object()}

    with pytest.raises(hl.errors.InvalidArgumentError, match=r"hooks/.*Wrong/state/when"):
        job(tmp_path, Wrong(), steps=1)


@pytest.mark.parametrize(
    "interrupted_at", [7, *[pytest.param(step, marks=pytest.mark.campaign) for step in (1, 3, 10, 14)]]
)
def test_cadences_keep_their_phase_over_a_restart(tmp_path, interrupted_at):
    """Each step once, without a gap, as in an uninterrupted job."""

    def train_up_to(directory, last_step):
        with hl.Graph().as_default():
            step = train.get_or_create_global_step()
            train_op = step.assign_add(1)
            scalar = summary.scalar("step", hl.op(lambda value: value * 1.0)(step))
            hooks = [
                SummarySaverHook(save_steps=4, output_dir=str(directory), summary_op=scalar),
                StepCounterHook(every_n_steps=3, output_dir=str(directory)),
                CheckpointSaverHook(str(directory), save_steps=5, scaffold=(scaffold := train.Scaffold())),
                StopAtStepHook(last_step=last_step),
            ]
            creator = train.ChiefSessionCreator(scaffold, checkpoint_dir=str(directory))
            with FakeClock() as clock, train.MonitoredSession(creator, hooks) as session:
                while not session.should_stop():
                    clock.advance(1)
                    session.run(train_op)

    train_up_to(tmp_path / "whole", 20)
    for last_step in (interrupted_at, 20):
        train_up_to(tmp_path / "parts", last_step)

    def written(directory):
        return sorted(
            (event.step, value.tag)
            for event in read_events(str(directory))
            if event.HasField("summary")
            for value in event.summary.value
        )

    assert written(tmp_path / "parts") == written(tmp_path / "whole")


def test_trigger_in_seconds_counts_elapsed_time_before_a_restart(tmp_path):
    with FakeClock() as clock:
        hook = LoggingTensorHook(["global_step"], trigger=every(secs=100))
        clock.advance(1)
        job(tmp_path, Advancing(clock, 30), hook, steps=2)
        hook = LoggingTensorHook(["global_step"], trigger=every(secs=100))
        seen = []
        hook.log = lambda values, elapsed_secs: seen.append(values["global_step"])
        job(tmp_path, Advancing(clock, 30), hook, steps=3)
    assert seen == [4]  # as the fifth run read it: the clock is read before a run


class Advancing(SessionRunHook):
    def __init__(self, clock, secs):
        self.clock, self.secs = clock, secs

    def before_run(self, run_context):
        self.clock.advance(self.secs)


def test_wrapped_and_deferred_hooks_have_states(tmp_path):
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        for best in (float("inf"), 1.0):
            bound, late = EarlyStopping([1.0] * 9, patience=99), EarlyStopping([1.0] * 9, patience=99)
            late.state_key = "late"
            with train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=[only_for(train_op, bound)]
            ) as session:
                session.add_hook(late)
                assert (bound.best, late.best) == (best, best)
                session.run(train_op)


def test_check_hook_finds_a_state_that_is_not_restored():
    class Forgetful(SessionRunHook):
        runs = 0

        def after_run(self, run_context, run_values):
            self.runs += 1

        def get_state(self):
            return {"runs": self.runs}

    check_hook(lambda: StepCounterHook(every_n_steps=2))
    with pytest.raises(AssertionError, match=r"The state was {'runs': 3} when it was saved, and {'runs': 0} after"):
        check_hook(Forgetful)
