"""TimeLimitHook, and `time_limit_secs` of a Loop: the last step is saved before the limit."""

from __future__ import annotations

import numpy as np
import pytest

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.testing import FakeClock, RecordingHook

STEP_SECS, SAVE_SECS = 1.0, 100.0


@pytest.fixture
def clock():
    with FakeClock(start=1000.0) as fake:
        yield fake


class Step(train.SessionRunHook):
    """Lets each run take some seconds."""

    def __init__(self, clock):
        self.clock = clock

    def after_run(self, run_context, run_values):
        self.clock.advance(STEP_SECS)


def loop():
    return hl.train.Loop(
        lambda w, batch: (w + batch.sum(), {}), np.float32(0), lambda: iter(np.ones((1000, 1), np.float32))
    )


def test_session_stops_before_the_limit(model, clock):
    runs = model.train_until_stop(train.TimeLimitHook(secs=600), Step(clock), at_most=1000)
    assert 600 - 30 * STEP_SECS <= runs * STEP_SECS <= 600


def test_recovery_does_not_reset_the_time(model, clock):
    lose = RecordingHook(failures={"after_run": [*[None] * 200, AbortedError(None, None, "lost")]})
    runs = model.train_until_stop(train.TimeLimitHook(secs=600), Step(clock), lose, at_most=1000)
    assert 200 < runs * STEP_SECS <= 600


def test_last_step_is_saved_within_the_limit_and_a_restart_continues(tmp_path, clock):
    saver = train.Saver()
    saver.add_pre_commit(lambda: clock.advance(SAVE_SECS))
    options = train.CheckpointOptions(saver=saver, save_steps=200)
    logdir, steps = str(tmp_path), [0]
    for _ in range(2):
        begin = clock.monotonic()
        loop().run(logdir, time_limit_secs=1000, hooks=[Step(clock)], checkpoints=options, progress=False)
        assert clock.monotonic() - begin <= 1000
        steps.append(int(train.latest_checkpoint(logdir).rpartition("-")[2]))
        assert steps[-1] > steps[-2] + 200


def test_time_of_compiling_is_not_kept_back(clock):
    def step(w, batch):
        clock.advance(300)  # While it is traced.
        return w + batch.sum(), {}

    trained = hl.train.Loop(step, np.float32(0), lambda: iter(np.ones((1000, 1), np.float32)))
    begin = clock.monotonic()
    made = trained.run(time_limit_secs=900, hooks=[Step(clock)], progress=False)
    spent = clock.monotonic() - begin
    assert 900 - 40 * STEP_SECS <= spent <= 900
    assert made > 200


def test_without_a_directory_it_just_stops(clock):
    trained = loop()
    assert 0 < trained.run(time_limit_secs=600, hooks=[Step(clock)], progress=False) <= 600


def test_saver_measures_its_last_save(model, clock, tmp_path):
    saver = train.Saver()
    saver.add_pre_commit(lambda: clock.advance(SAVE_SECS))
    with model.session() as session:
        session.run(model.train)
        assert saver.last_save_secs == 0
        saver.save(session, str(tmp_path / "model"))
    assert saver.last_save_secs == SAVE_SECS
    assert saver.clone().last_save_secs == 0


def test_seconds_must_be_positive():
    with pytest.raises(ValueError, match="TimeLimitHook requires secs > 0, got 0"):
        train.TimeLimitHook(0)
