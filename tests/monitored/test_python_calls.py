"""How many Python calls a run makes: each takes its time in a short step, and none is made that is not needed."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import pytest

import hookline as hl
from hookline import summary, train


class OnEach(train.SessionRunHook):
    def before_run(self, run_context):
        return None

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


KINDS = {
    "no hook is called": lambda directory, loss: [train.StopAtStepHook(last_step=10_000)],
    "a hook on each run": lambda directory, loss: [OnEach()],
    "standard hooks": standard,
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


@pytest.mark.parametrize(
    ("kind", "usual", "at_a_look", "firing"),
    [("no hook is called", 7, 30, None), ("a hook on each run", 20, 45, None), ("standard hooks", 9, 25, 260)],
)
def test_a_run_makes_no_more_than(kind, usual, at_a_look, firing, tmp_path):
    with hl.Graph().as_default():
        step = train.get_or_create_global_step()
        weights = hl.Variable(jnp.ones(8), name="weights")
        loss = hl.op(lambda weights: (weights**2).sum())(weights)
        summary.scalar("loss", loss)
        summary.scalar("twice", loss * 2)
        train_op = hl.group(weights.assign_sub(0.01 * weights), step.assign_add(1))
        with train.MonitoredSession(hooks=KINDS[kind](str(tmp_path), loss)) as session:
            counts = [calls_of(session.run, train_op) for _ in range(400)]
    between = counts[202:299]
    assert min(between) <= usual
    looks = [count for count in between if count > min(between)]
    assert len(looks) <= len(between) // 10
    assert max(looks) <= at_a_look
    assert firing is None or counts[300] <= firing
