"""How many Python calls a run makes at most: each takes its time in a short step, and none is made without need."""

from __future__ import annotations

import io
import sys

import jax.numpy as jnp
import pytest

import hookline as hl
from hookline import summary, train


class OnEach(train.SessionRunHook):
    def __init__(self, fetches=None):
        self.args = None if fetches is None else train.SessionRunArgs(fetches)

    def before_run(self, run_context):
        return self.args

    def after_run(self, run_context, run_values):
        pass


def standard(directory, loss):
    return [
        train.StopAtStepHook(last_step=10_000),
        train.StepCounterHook(100, output_dir=directory),
        train.SummarySaverHook(100, output_dir=directory, summary_op=summary.merge_all()),
        train.LoggingTensorHook({"loss": loss}, every_n_iter=100),
        train.NanTensorHook(loss),
        train.CheckpointSaverHook(directory, save_secs=600),
    ]


def others(directory, loss):
    return [
        train.GlobalStepWaiterHook(wait_until_step=0),
        train.ProfilerHook(save_steps=500, output_dir=directory),
        train.ProgressHook({"loss": loss}, trigger=train.every(100), file=io.StringIO()),
        train.WatchdogHook(stall_secs=3600),
    ]


# The hooks; and the calls of most runs, of one that polls (one of ten may), and of one that fires.
AT_MOST = {
    "no hook is called": (lambda directory, loss: [train.StopAtStepHook(last_step=10_000)], 7, 30, None),
    "a hook on each run": (lambda directory, loss: [OnEach()], 20, 45, None),
    "a hook that asks on each run": (lambda directory, loss: [OnEach(loss)], 30, 60, None),
    "standard hooks": (standard, 9, 25, 260),
    "the other hooks": (others, 7, 30, 200),
}


def calls_of(function, *arguments):
    """Returns how many Python functions a call has called, with itself."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", AT_MOST)
def test_run_makes_at_most_the_given_number_of_python_calls(kind, tmp_path):
    hooks, usual, at_a_look, firing = AT_MOST[kind]
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        weights = hl.Variable(jnp.ones(8), name="weights")
        loss = hl.op(lambda weights: (weights**2).sum())(weights)
        summary.scalar("loss", loss)
        summary.scalar("twice", loss * 2)
        train_op = hl.group(weights.assign_sub(0.01 * weights), step.assign_add(1))
        with train.MonitoredSession(hooks=hooks(str(tmp_path), loss)) as session:
            counts = [calls_of(session.run, train_op) for _ in range(400)]
    between = counts[202:299]
    assert min(between) <= usual
    looks = [count for count in between if count > min(between)]
    assert len(looks) <= len(between) // 10
    assert max(looks, default=0) <= at_a_look
    assert firing is None or max(counts[299:301]) <= firing


def test_plain_run_with_the_same_feeds_makes_at_most_20_calls():
    x = hl.placeholder("float32", (), name="x")
    double = x + x
    with hl.Session() as session:
        counts = [calls_of(session.run, double, {x: float(value)}) for value in range(60)]
    assert sorted(counts)[50] <= 20
