"""Every hook that hookline exports keeps the contract that it asks of its users' train."""

from __future__ import annotations

import itertools
import threading

import pytest

from hookline import Graph, Variable, constant, get_default_graph, summary, train
from hookline.testing import RecordingHook, check_hook
from hookline.train import Saver, SessionRunHook, every, get_or_create_eval_step


def summary_saver(tmp_path, **cadence):
    loss = get_default_graph().get_tensor_by_name("loss:0")
    return train.SummarySaverHook(output_dir=str(tmp_path), summary_op=summary.scalar("loss", loss), **cadence)


def checkpoint_saver(tmp_path, **arguments):
    counter = itertools.count()
    return train.CheckpointSaverHook(str(tmp_path / str(next(counter))), saver=Saver(), **arguments)


def evaluating(hook):
    get_or_create_eval_step()
    return hook


HOOKS = {
    "SessionRunHook": lambda tmp_path: SessionRunHook(),
    "RecordingHook": lambda tmp_path: RecordingHook(fetches={"loss": "loss:0", "none": []}),
    "StopAtStepHook, num_steps": lambda tmp_path: train.StopAtStepHook(num_steps=3),
    "StopAtStepHook, last_step": lambda tmp_path: train.StopAtStepHook(last_step=1000),
    "StopAtStepHook, passed": lambda tmp_path: train.StopAtStepHook(last_step=7),
    "GlobalStepWaiterHook": lambda tmp_path: train.GlobalStepWaiterHook(wait_until_step=0),
    "SummarySaverHook, steps": lambda tmp_path: summary_saver(tmp_path, save_steps=2),
    "SummarySaverHook, secs": lambda tmp_path: summary_saver(tmp_path, save_secs=0),
    "SummarySaverHook, trigger": lambda tmp_path: summary_saver(tmp_path, trigger=every(secs=60) | every(2)),
    "SummarySaverHook, nowhere": lambda tmp_path: train.SummarySaverHook(save_steps=1, summary_op="loss:0"),
    "StepCounterHook": lambda tmp_path: train.StepCounterHook(every_n_steps=2, output_dir=str(tmp_path)),
    "StepCounterHook, secs": lambda tmp_path: train.StepCounterHook(every_n_steps=None, every_n_secs=0),
    "LoggingTensorHook": lambda tmp_path: train.LoggingTensorHook(["loss", "weights"], every_n_iter=2),
    "LoggingTensorHook, at_end": lambda tmp_path: train.LoggingTensorHook(["loss"], at_end=True),
    "NanTensorHook": lambda tmp_path: train.NanTensorHook("loss"),
    "NanTensorHook, strict": lambda tmp_path: train.NanTensorHook("loss", False, include_inf=True, strict=True),
    "NanTensorHook, skip": lambda tmp_path: train.NanTensorHook("loss", on_nan="skip"),
    "NanTensorHook, rollback": lambda tmp_path: train.NanTensorHook("loss", on_nan="rollback", saver=Saver()),
    "WatchdogHook": lambda tmp_path: train.WatchdogHook(stall_secs=3600),
    "TimeLimitHook": lambda tmp_path: train.TimeLimitHook(secs=3600),
    "SinkHook": lambda tmp_path: train.SinkHook(output_dir=str(tmp_path), hparams={"rate": 0.1}),
    "ProfilerHook": lambda tmp_path: train.ProfilerHook(save_steps=4, output_dir=str(tmp_path), show_memory=True),
    "ProfilerHook, secs": lambda tmp_path: train.ProfilerHook(save_secs=3600, output_dir=str(tmp_path)),
    "ProgressHook": lambda tmp_path: train.ProgressHook({"the loss": "loss"}, last_step=8),
    "ProgressHook, trigger": lambda tmp_path: train.ProgressHook(trigger=every(2)),
    "CheckpointSaverHook, steps": lambda tmp_path: checkpoint_saver(tmp_path, save_steps=2),
    "CheckpointSaverHook, both": lambda tmp_path: checkpoint_saver(tmp_path, save_steps=2, save_secs=0),
    "StopAfterNEvalsHook": lambda tmp_path: evaluating(train.StopAfterNEvalsHook(3)),
    "StopAfterNEvalsHook, all": lambda tmp_path: evaluating(train.StopAfterNEvalsHook(None)),
    "SummaryAtEndHook": lambda tmp_path: train.SummaryAtEndHook(str(tmp_path)),
    "FinalOpsHook": lambda tmp_path: train.FinalOpsHook(["loss:0", "weights:0"]),
    "FunctionHook": lambda tmp_path: train.FunctionHook(lambda firing: None, every=2, fetches="loss:0"),
    "FeedFnHook": lambda tmp_path: train.FeedFnHook(dict),
}


# The same hook under another name goes through little else.
ALIKE = {
    "StopAtStepHook, num_steps",
    "StopAtStepHook, passed",
    "SummarySaverHook, secs",
    "SummarySaverHook, trigger",
    "SummarySaverHook, nowhere",
    "StepCounterHook, secs",
    "LoggingTensorHook, at_end",
    "NanTensorHook, strict",
    "ProfilerHook, secs",
    "ProgressHook, trigger",
    "CheckpointSaverHook, both",
    "StopAfterNEvalsHook, all",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.campaign if name in ALIKE else ()) for name in HOOKS]
)
def test_exported_hook_passes_the_battery(name, tmp_path):
    check_hook(lambda: HOOKS[name](tmp_path))


def test_battery_covers_every_exported_hook():
    tested = {name.split(",")[0] for name in HOOKS}
    exported = {name for name in train.__all__ if name.endswith("Hook")}
    assert exported <= tested


WITHOUT_A_STEP = (
    "SessionRun",
    "Recording",
    "Logging",
    "Watchdog",
    "TimeLimit",
    "StopAfterNEvals",
    "FinalOps",
    "Function",
    "FeedFn",
)


@pytest.mark.parametrize("name", [name for name in HOOKS if not name.startswith(WITHOUT_A_STEP)])
def test_graph_without_a_global_step_is_refused_by_name(name, tmp_path):
    with Graph().as_default():
        Variable(1.0, name="loss")
        with pytest.raises(RuntimeError, match=f"{name.split(',')[0]} requires a global step"):
            HOOKS[name](tmp_path).begin()


# Of each way to be called now and then: none, with a trigger, with a latch, and in each run.
BEFORE_RUN = {"StopAtStepHook, last_step", "CheckpointSaverHook, steps", "NanTensorHook", "SinkHook"}


def is_quick(name, callback):
    return name not in ALIKE if callback == "after_run" else name in BEFORE_RUN


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        pytest.param(name, callback, marks=() if is_quick(name, callback) else pytest.mark.campaign)
        for name in HOOKS
        for callback in ("before_run", "after_run")
    ],
)
def test_a_subclass_that_overrides_a_run_callback_is_called_on_every_run(name, callback, model, tmp_path):
    Variable(1.0, name="weights")
    hook = HOOKS[name](tmp_path)
    seen = []

    def counting(self, *given):
        seen.append(callback)
        return getattr(super(subclass, self), callback)(*given)

    subclass = type("Counting", (type(hook),), {callback: counting})
    hook.__class__ = subclass
    assert model.train_until_stop(hook, at_most=9) == len(seen)


@pytest.mark.parametrize("callback", ["before_run", "after_run"])
def test_callback_set_on_the_hook_object_is_called_on_every_run(callback, model):
    hook = train.StopAtStepHook(last_step=9)
    seen, original = [], getattr(hook, callback)
    setattr(hook, callback, lambda *given: seen.append(callback) or original(*given))
    assert model.train_until_stop(hook) == len(seen) == 9


# Mistakes that the battery must find ------------------------------------------------------------------------------


class AddsAtEachBegin(SessionRunHook):
    def begin(self):
        constant(1.0)


class AddsLater(SessionRunHook):
    def after_create_session(self, session, coord):
        session.graph.reopen()
        with session.graph.as_default():
            constant(1.0)


class Trains(SessionRunHook):
    def after_run(self, run_context, run_values):
        run_context.session.run("train")


class FeedsTheLoss(SessionRunHook):
    def before_run(self, run_context):
        return train.SessionRunArgs(None, feed_dict={"loss:0": 0.0})


class ReturnsFetches(SessionRunHook):
    def before_run(self, run_context):
        return "loss:0"


class ReturnsSomething(SessionRunHook):
    def end(self, session):
        return "done"


class NeedsARun(SessionRunHook):
    def after_run(self, run_context, run_values):
        self.ran = True

    def end(self, session):
        assert self.ran


class ServesOnce(SessionRunHook):
    ended = False

    def begin(self):
        assert not self.ended, "used up"

    def end(self, session):
        self.ended = True


class AsksForText(SessionRunHook):
    trigger = every(runs=1)

    def before_trigger(self, run_context):
        return "loss"


class FiresAndReturns(SessionRunHook):
    trigger = every(runs=1)

    def on_trigger(self, firing):
        return 5


class FiresAndReturnsWithSlots:
    __slots__ = ("trigger",)

    def __init__(self):
        self.trigger = every(runs=1)

    def on_trigger(self, firing):
        return 5


class LosesCountInRecovery(SessionRunHook):
    def after_create_session(self, session, coord):
        assert not hasattr(self, "session"), "created twice"
        self.session = session

    def begin(self):
        vars(self).pop("session", None)


class LeavesAThread(SessionRunHook):
    release = threading.Event()

    def begin(self):
        threading.Thread(target=self.release.wait, name="left behind").start()


class KeepsInfinity(train.SessionRunHook):
    """Keeps floats that a difference does not compare."""

    def __init__(self):
        self.best, self.last = float("inf"), float("nan")

    def get_state(self):
        return {"best": self.best, "last": self.last}

    def set_state(self, state):
        self.best, self.last = state["best"], state["last"]


def test_infinity_and_nan_in_a_state_are_restored():
    check_hook(KeepsInfinity)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (AddsAtEachBegin, "second begin on the same graph changed it"),
        (AddsLater, "added to the graph after begin"),
        (Trains, "results changed"),
        (FeedsTheLoss, "results changed"),
        (ReturnsFetches, "must return None or a SessionRunArgs"),
        (ReturnsSomething, "end must return None, got 'done'"),
        (NeedsARun, "no attribute 'ran'"),
        (ServesOnce, "used up"),
        (FiresAndReturns, "on_trigger must return None, got 5"),
        (FiresAndReturnsWithSlots, "on_trigger must return None, got 5"),
        (AsksForText, "before_trigger must return None or a SessionRunArgs, got 'loss'"),
        (LosesCountInRecovery, "created twice"),
        (LeavesAThread, "left threads"),
    ],
)
def test_battery_finds_each_mistake(broken, complaint):
    LeavesAThread.release.clear()
    try:
        with pytest.raises((AssertionError, AttributeError, TypeError), match=complaint):
            check_hook(broken)
    finally:
        LeavesAThread.release.set()
