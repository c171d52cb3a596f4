"""A user's own saver, no subclass of anything: the session finds the methods it needs by name."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import hookline as hl
from hookline import errors, train
from hookline.train import Saver, latest_checkpoint, load_variable

QUICK = {"recovery": train.RecoveryPolicy(initial_backoff_secs=0)}
NAN = float("nan")


class OwnSaver:
    """Saves at a cadence, at the end and after a failure; holds its directory meanwhile."""

    def __init__(self, directory, save_steps=5):
        self.trigger = train.every(save_steps)
        self.directory, self.saved = directory, []

    def begin(self):
        self.saver = Saver()
        Path(self.directory, "held").touch(exist_ok=False)

    def after_create_session(self, session, coord):
        session.hook_data.setdefault("savers", {})[self.saver] = self.save_now

    def on_trigger(self, firing):
        firing.context.deliver_pending()
        self.save_now(firing.context.session)

    def end(self, session):
        self.save_now(session)

    def save_on_failure(self, session, exception):
        self.save_now(session)

    def after_close(self):
        Path(self.directory, "held").unlink()

    def save_now(self, session):
        step = session.global_step
        if step not in self.saved:
            self.saver.save(session, str(Path(self.directory, "own")), global_step=step)
            self.saved.append(step)

    @property
    def is_held(self):
        return Path(self.directory, "held").exists()


class Job:
    """`weight` is multiplied by the fed value, and `train` counts one step."""

    def __init__(self):
        self.step = train.get_or_create_global_step()
        self.factor = hl.placeholder("float32", [], name="factor")
        self.weight = hl.Variable(1.0, name="weight")
        self.loss = self.weight * self.factor
        with hl.control_dependencies([self.weight.assign(self.loss)]):
            self.train = self.step.assign_add(1)

    def session(self, *hooks, directory=None):
        creator = train.ChiefSessionCreator(checkpoint_dir=directory and str(directory))
        return train.MonitoredSession(creator, hooks=hooks, **QUICK)

    def run(self, session, *factors, fail_after=False):
        for factor in factors:
            session.run(self.train, {self.factor: factor})
        if fail_after:
            raise KeyError("mine")


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def saver(tmp_path):
    return OwnSaver(str(tmp_path))


def test_user_saver_saves_at_its_cadence_and_the_end_and_is_restored(job, saver, tmp_path):
    with job.session(saver) as session:
        job.run(session, *[2.0] * 7)
    assert saver.saved == [5, 7]
    with job.session(directory=tmp_path) as session:
        assert session.raw_session().global_step == 7
        assert session.run(job.weight) == 128.0


def test_error_in_a_run_saves_the_state_of_the_last_completed_run(job, saver):
    with pytest.raises(errors.InvalidArgumentError), job.session(saver) as session:
        job.run(session, 2.0, 2.0, 2.0, np.ones(3, "f"))
    assert saver.saved == [3]


def test_error_in_the_body_saves_the_state(job, saver, tmp_path):
    with pytest.raises(KeyError, match="mine"), job.session(saver) as session:
        job.run(session, 2.0, 2.0, fail_after=True)
    assert saver.saved == [2]
    assert load_variable(latest_checkpoint(str(tmp_path)), "weight") == 4.0


def test_state_marked_invalid_is_not_saved(job, saver):
    class Condemns(train.SessionRunHook):
        trigger = train.every(3)

        def on_trigger(self, firing):
            firing.context.session.mark_invalid(ValueError("bad"))

    with pytest.raises(KeyError, match="mine"), job.session(saver, Condemns()) as session:
        job.run(session, 2.0, 2.0, 2.0, fail_after=True)
    assert saver.saved == []


def test_nan_that_is_an_error_is_not_saved(job, saver):
    nan = train.NanTensorHook(job.loss, on_nan="raise")
    with pytest.raises(errors.NanLossDuringTrainingError), job.session(saver, nan) as session:
        job.run(session, 2.0, NAN, 2.0, 2.0, 2.0)
    assert saver.saved == []


def test_nan_found_after_an_error_in_the_body_is_not_saved(job, saver):
    nan = train.NanTensorHook(job.loss, on_nan="raise")
    with pytest.raises(KeyError, match="mine"), job.session(saver, nan) as session:
        job.run(session, 2.0, NAN, fail_after=True)
    assert saver.saved == []


def test_invalid_reason_is_set_in_the_savers_end_after_a_nan_that_stops(job, tmp_path):
    class Careful(OwnSaver):
        def save_now(self, session):
            if session.invalid_reason is None:
                super().save_now(session)

    saver = Careful(str(tmp_path))
    with job.session(saver, train.NanTensorHook(job.loss, on_nan="stop")) as session:
        job.run(session, 2.0, NAN, 2.0, 2.0, 2.0)
        assert session.should_stop()
    assert saver.saved == []


@pytest.mark.parametrize("bad", [[NAN], [NAN, np.ones(3, "f")]])
def test_error_after_a_nan_that_stops_saves_nothing(bad, job, saver):
    nan = train.NanTensorHook(job.loss, on_nan="stop")
    with pytest.raises((KeyError, errors.InvalidArgumentError)), job.session(nan, saver) as session:
        job.run(session, 2.0, *bad, fail_after=True)
    assert saver.saved == []


def test_sigterm_is_handled_and_saved_with_a_user_saver_alone(job, saver):
    def train_on(session):
        job.run(session, 2.0, 2.0, 2.0)
        signal.raise_signal(signal.SIGTERM)
        job.run(session, 2.0)

    with pytest.raises(errors.Preempted), job.session(saver) as session:
        train_on(session)
    assert saver.saved == [3]
    assert not saver.is_held


def test_saver_is_released_when_the_session_closes(job, saver):
    with job.session(saver) as session:
        job.run(session, 2.0)
        assert saver.is_held
    assert not saver.is_held


@pytest.mark.parametrize("callback", ["begin", "after_create_session"])
def test_saver_is_released_if_the_session_cannot_be_created(callback, job, saver):
    class Fails:
        pass

    def fail(*given):
        assert saver.is_held
        raise ValueError("cannot begin")

    setattr(Fails, callback, fail)
    with pytest.raises(ValueError, match="cannot begin"):
        job.session(saver, Fails())
    assert not saver.is_held
    assert saver.saved == []


def test_nan_hook_rolls_back_with_a_user_saver(job, tmp_path, caplog):
    saver = OwnSaver(str(tmp_path), save_steps=2)
    nan = train.NanTensorHook(job.loss, on_nan="rollback")
    with job.session(saver, nan) as session:
        job.run(session, *[2.0] * 3, NAN, *[2.0] * 8)
        assert np.isfinite(session.raw_session().run(job.weight))
        assert session.raw_session().global_step == 12  # The step goes on.
    assert "The weights were restored from" in caplog.text


def test_evaluation_keeps_the_best_checkpoint_of_a_user_saver(job, tmp_path):
    away = hl.op(lambda weight, factor: abs(weight * factor - 16.0))(job.weight, job.factor)
    saver = OwnSaver(str(tmp_path), save_steps=100)
    evaluate = train.Evaluate(
        {"loss": away}, [{job.factor: 1.0}], every=2, keep_best="loss", output_dir=str(tmp_path / "eval")
    )
    with job.session(saver, evaluate) as session:
        job.run(session, *[2.0] * 6)
    assert saver.saved == [2, 4, 6]
    assert evaluate.best["loss"].step == 4
    assert train.load(str(tmp_path), like={"weight": 0.0}, step="best")["weight"] == 16.0
