"""Wrong arguments of hooks, sessions and savers: one sentence each that says who, what was wrong, and what to give."""

from __future__ import annotations

import logging

import pytest

import hookline as hl
from hookline import summary, train


def training(**arguments):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        train.MonitoredTrainingSession(**arguments).close()


def monitored(**arguments):
    with hl.Graph().as_default():
        train.MonitoredSession(**arguments).close()


def written_at(step, folder):
    with summary.FileWriter(folder) as writer:
        writer.add_summary(summary.encode.scalar("loss", 1.0), step)


MISTAKES = {
    "saving each nan seconds": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_secs=float("nan")), ValueError,
        "MonitoredTrainingSession requires a number as save_checkpoint_secs, got nan",
    ),
    "saving each 2.5 steps": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps=2.5), TypeError,
        "requires a whole number as save_checkpoint_steps, got 2.5",
    ),
    "saving each '10' steps": (
        lambda tmp: training(checkpoint_dir=tmp, save_checkpoint_steps="10"), TypeError, "_steps, got '10'",
    ),
    "summaries each '10' seconds": (
        lambda tmp: training(checkpoint_dir=tmp, save_summaries_secs="10"), TypeError, "save_summaries_secs, got '10'",
    ),
    "speed each 0.5 steps": (
        lambda tmp: training(checkpoint_dir=tmp, log_step_count_steps=0.5), TypeError, "log_step_count_steps, got 0.5",
    ),
    "a number as folder": (
        lambda tmp: training(checkpoint_dir=5), TypeError, r"a path \(or None\) as checkpoint_dir, got 5",
    ),
    "a number as folder of a creator": (
        lambda tmp: train.ChiefSessionCreator(checkpoint_dir=5), TypeError, "as checkpoint_dir, got 5",
    ),
    "text as scaffold": (
        lambda tmp: training(scaffold="x"), TypeError,
        r"ChiefSessionCreator requires a Scaffold \(or None\) as scaffold, got 'x'",
    ),
    "a number as recovery": (
        lambda tmp: monitored(recovery=3), TypeError, r"requires a RecoveryPolicy \(or None\) as recovery, got 3",
    ),
    "text as grace": (
        lambda tmp: monitored(stop_grace_period_secs="x"), TypeError, "a number as stop_grace_period_secs, got 'x'",
    ),
    "text as attempts": (
        lambda tmp: train.RecoveryPolicy(max_attempts="3"), TypeError, "a whole number as max_attempts, got '3'",
    ),
    "nan as wait": (
        lambda tmp: train.RecoveryPolicy(initial_backoff_secs=float("nan")), ValueError, "backoff_secs, got nan",
    ),
    "text as last step": (
        lambda tmp: train.StopAtStepHook(last_step="10"), TypeError,
        "StopAtStepHook requires a whole number as last_step, got '10'",
    ),
    "a fraction as last step": (lambda tmp: train.StopAtStepHook(last_step=1.5), TypeError, "last_step, got 1.5"),
    "a negative last step": (lambda tmp: train.StopAtStepHook(last_step=-5), ValueError, "last_step >= 0, got -5"),
    "a flag as number of steps": (lambda tmp: train.StopAtStepHook(num_steps=True), TypeError, "num_steps, got True"),
    "text as cadence": (
        lambda tmp: train.LoggingTensorHook(["loss"], every_n_iter="10"), TypeError, "every_n_iter, got '10'",
    ),
    "nothing to log": (
        lambda tmp: train.LoggingTensorHook([], every_n_iter=1), ValueError, "requires a tensor or more to log",
    ),
    "a name to log": (
        lambda tmp: train.LoggingTensorHook("loss", every_n_iter=1), TypeError, r"got 'loss'\. Put it in a list",
    ),
    "text as timer": (
        lambda tmp: train.SecondOrStepTimer(every_steps="10"), TypeError, "a whole number as every_steps, got '10'",
    ),
    "nan as timer": (
        lambda tmp: train.SecondOrStepTimer(every_secs=float("nan")), ValueError, "a number as every_secs, got nan",
    ),
    "text as step to wait for": (
        lambda tmp: train.GlobalStepWaiterHook("10"), TypeError, "a whole number as wait_until_step, got '10'",
    ),
    "text as checkpoints to keep": (
        lambda tmp: train.Saver(max_to_keep="5"), TypeError, "Saver requires a whole number as max_to_keep, got '5'",
    ),
    "a step of more than 64 bits": (lambda tmp: written_at(2**70, tmp), ValueError, "a step of at most 64 bits, got"),
    "a name as graph": (
        lambda tmp: train.get_or_create_global_step("g"), TypeError, r"give a hookline\.Graph or None, got 'g'",
    ),
    "no name for a summary": (
        lambda tmp: summary.scalar(None, 1.0), TypeError, "The name of a summary is a string, got None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_argument_is_named_with_what_is_required(name, tmp_path):
    mistake, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        mistake(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


def test_what_turns_a_hook_off_is_no_mistake(tmp_path):
    training(checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, save_summaries_steps=0, log_step_count_steps=-1)
    assert train.latest_checkpoint(str(tmp_path)) is None
    training(checkpoint_dir=tmp_path, save_checkpoint_steps=10, save_checkpoint_secs=600.5)
    assert train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0")


def test_a_training_that_never_counts_is_warned_of_once(caplog):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        v = hl.Variable(0.0, name="v")
        forgets = v.assign_add(1.0)
        with train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=10)]) as sess:
            for _ in range(250):
                sess.run(forgets)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "the global step has stayed at 0 over 100 runs, and may never reach 10" in lines[0]
