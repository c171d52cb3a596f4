"""A training with a sticky stop trains no step when it is started again; and ways to lift the stop."""

from __future__ import annotations

import os
import re

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl

BATCHES = [np.full(2, number, np.float32) for number in range(40)]


def step(state, batch):
    return {"w": state["w"] + 1.0}, {"loss": jnp.where(batch[0] == 13, jnp.nan, batch[0])}


def evaluate(state, batch):
    return {"loss": jnp.maximum(state["w"], 6.0), "error": jnp.maximum(state["w"], 12.0)}


class StopAbove(hl.train.SessionRunHook):
    def __init__(self, tensor, most):
        self.trigger, self.fetches, self.most = hl.train.every(2), tensor, most
        self.final = f"the loss is above {most}"

    def on_trigger(self, firing):
        if np.max(firing.values) > self.most:
            firing.context.request_stop(final=self.final)


def train(folder, last_step=30, *, metric="loss", patience=2, most=None, stops=True, hooks_too=(), **started):
    """Trains in a new loop, as a new process would; returns the step at which it ends."""
    loop = hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES, steps_per_run=started.pop("steps_per_run", 1))
    found = hl.train.Evaluate(evaluate, BATCHES[:1], every=2)
    hooks = [*hooks_too, found]
    if most is not None:
        hooks.append(StopAbove(loop.metrics["loss"], most))
    elif stops:
        hooks.append(hl.train.StopIfNoImprovement(metric, patience))
    loop.run(
        folder,
        last_step,
        hooks=hooks,
        progress=False,
        checkpoints=hl.train.CheckpointOptions(save_steps=2),
        nan_check=None,
        **started,
    )
    return int(loop.result["w"])


# The evaluations from step 2 to 6 give 6, so two without an improvement are over at step 6.
NO_IMPROVEMENT = "loss of 'eval' has not improved for 2 evaluations; the best is 6 at step 2"
STOPS = {
    "no improvement": ({"patience": 2}, 6, NO_IMPROVEMENT),
    "a hook of one's own": ({"most": 8}, 10, "the loss is above 8"),
}


def saved(folder):
    return {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder) if "model" in name}


@pytest.mark.parametrize("steps_per_run", [1, 4])
@pytest.mark.parametrize("what", STOPS)
def test_training_with_a_sticky_stop_trains_no_step_and_saves_nothing(what, steps_per_run, tmp_path, caplog):
    arguments, ends, why = STOPS[what]
    folder, arguments = str(tmp_path), {**arguments, "steps_per_run": steps_per_run}
    assert train(folder, **arguments) == ends
    before = saved(folder)
    for last_step in (30, 40):
        caplog.clear()
        assert train(folder, last_step, **arguments) == ends
        (told,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert told.startswith(
            f"Nothing is trained: this training run has already stopped early, at global step {ends} (restored from "
        )
        assert re.search(f": {why}. To continue training, pass train_on=True, or change the hook", told)
    assert saved(folder) == before


def test_reason_has_the_best_value_and_its_step_from_before_a_restart(tmp_path, caplog):
    assert [train(str(tmp_path), last_step) for last_step in (4, 30, 30)] == [4, 6, 6]
    assert f": {NO_IMPROVEMENT}. To continue training" in caplog.text


@pytest.mark.parametrize(
    ("first", "then", "ends"),
    [
        ({"patience": 2}, {"patience": 4}, 10),
        ({"patience": 2}, {"metric": "error"}, 12),
        ({"patience": 2}, {"stops": False}, 30),
        ({"patience": 2}, {"patience": 2, "train_on": True}, 10),
        ({"most": 8}, {"most": 10}, 12),
        ({"most": 8}, {"most": 8, "train_on": True}, 12),
    ],
)
def test_changed_stop_arguments_or_a_request_resume_the_training(first, then, ends, tmp_path, caplog):
    train(str(tmp_path), **first)
    caplog.set_level("INFO", "hookline")
    assert train(str(tmp_path), **then) == ends
    cause = "of train_on=True" if "train_on" in then else "the hook that stopped it was changed or removed"
    assert f"), because {cause}." in caplog.text


def test_lifted_stop_is_not_restored_by_a_recovery(tmp_path, failed_reads):
    class LoseOnce(hl.train.SessionRunHook):
        def __init__(self):
            self.trigger, self.lost = hl.train.at_steps(9), False

        def on_trigger(self, firing):
            if not self.lost:
                self.lost = True
                raise hl.errors.AbortedError(None, None, "the session is lost")

    loop = hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES)
    loop.run(str(tmp_path), 20, hooks=[StopAbove(loop.metrics["loss"], 6)], progress=False, nan_check=None)
    loop = hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES)
    policy = hl.train.RecoveryPolicy(max_attempts=1, initial_backoff_secs=0)
    arguments = {"hooks": [LoseOnce()], "train_on": True, "checkpoints": hl.train.CheckpointOptions(recovery=policy)}
    assert loop.run(str(tmp_path), 12, progress=False, nan_check=None, **arguments)["w"] == 12


def test_session_of_a_loop_has_a_sticky_stop(tmp_path):
    for runs in (3, 0):
        loop, made = hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES), 0
        with loop.session(str(tmp_path), progress=False) as session:
            while not session.should_stop():
                session.run(loop.train_op)
                made += 1
                if made == 3:
                    session.request_stop(final="three are enough")
        assert (made, loop.result["w"]) == (runs, 3)


def test_monitored_training_session_resumes_like_in_tensorflow(tmp_path):
    for ends in (4, 6):
        with hl.Graph().as_default():
            at = hl.train.get_or_create_global_step()
            train_op, hooks = at.assign_add(1), [StopAbove(at, 2)]
            with hl.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
                while not session.should_stop():
                    reached = session.run(train_op)
        assert reached == ends


def test_reason_that_is_no_string_is_refused():
    class Stop(hl.train.SessionRunHook):
        trigger = hl.train.at_steps(1)

        def on_trigger(self, firing):
            firing.context.request_stop(final=True)

    with pytest.raises(TypeError, match="request_stop requires text \\(or None\\) as final, got True"):
        hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES).run(last_step=2, hooks=[Stop()], progress=False)


class Killed(hl.train.SessionRunHook):
    """Ends the process's part at the end of a training, as a kill after the last regular checkpoint does."""

    comes_before = hl.train.CheckpointSaverHook

    def end(self, session):
        raise KeyboardInterrupt


def test_checkpoint_of_the_stopping_step_has_the_reason(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        train(str(tmp_path), hooks_too=[Killed()])
    assert train(str(tmp_path)) == 6
    assert "Nothing is trained" in caplog.text


def test_save_to_another_path_does_not_replace_the_save_of_the_reason(tmp_path):
    class Export(hl.train.SessionRunHook):
        def end(self, session):
            hl.train.Saver().save(session, str(tmp_path / "other"))

    assert train(str(tmp_path / "run"), hooks_too=[Export()]) == 6
    assert train(str(tmp_path / "run")) == 6


def test_hooks_may_come_from_a_generator(tmp_path):
    class Counts(hl.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context, run_values):
            self.runs += 1

    hook = Counts()
    hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES).run(str(tmp_path), 4, hooks=(each for each in [hook]))
    assert hook.runs == 4


def test_evaluation_before_the_first_step_may_set_a_sticky_stop(tmp_path):
    def run():
        loop = hl.train.Loop(step, {"w": jnp.zeros(())}, BATCHES)
        stop = lambda result: result.request_stop(final="good enough")  # noqa: E731
        evaluate_first = hl.train.Evaluate(evaluate, BATCHES[:1], every=2, on_start=True, on_result=stop)
        loop.run(str(tmp_path), 8, hooks=[evaluate_first], progress=False)
        return int(loop.result["w"])

    assert run() == 0
    assert run() == 0
