"""Evaluation beside the training: means, runs of their own, the best checkpoint, and stopping for want of one."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import hookline as hl
from hookline.testing import RecordingHook, check_hook, read_events

from .steps import X, Y, batches, mse, nnx_objects

# The count in the state, and its accuracy: best at 4, and again at 8.
GOOD = {2: 0.5, 4: 0.9, 6: 0.7, 8: 0.9, 10: 0.2, 12: 0.1}


def train_step(state, batch):
    return {"n": state["n"] + 1}, {"loss": 1.0 / (state["n"] + 1)}


def eval_step(state, batch):
    table = jnp.asarray([GOOD.get(step, 0.0) for step in range(13)])
    return {"accuracy": table[state["n"]] + 0.0 * batch.mean(), "loss": (batch - state["n"]).mean()}


def counting():
    return hl.train.Loop(train_step, {"n": jnp.zeros((), int)}, batches())


def evaluating(every=2, **arguments):
    return hl.train.Evaluate(eval_step, hl.data.from_arrays(np.arange(5.0), batch_size=2), every=every, **arguments)


def shown(folder, tag):
    return [
        (event.step, round(value.simple_value, 4))
        for event in read_events(str(folder))
        for value in event.summary.value
        if value.tag == tag
    ]


def test_means_are_weighted_by_batch_size(tmp_path, caplog):
    evaluate = evaluating()
    with caplog.at_level(logging.INFO, "hookline"):
        counting().run(str(tmp_path), last_step=5, hooks=[evaluate])
    # 0 to 4 in batches of 2, 2 and 1: their mean is 2, that of the means of batches would be 2.33.
    assert shown(tmp_path / "eval", "loss") == [(2, 0.0), (4, -2.0), (5, -3.0)]
    assert evaluate.values["loss"] == pytest.approx(-3.0)
    assert shown(tmp_path, "loss") == [(1, 1.0)], "the same tag, in a run of its own"
    assert "eval at step 4, epoch 1  accuracy 0.9000 (best)  loss -2.000 (best)" in caplog.messages


def test_evaluation_gets_the_nnx_objects_it_requires_and_keeps_their_mode():
    job = nnx_objects(jit=True)

    def of_model(model, batch):
        model.eval()
        x, y = batch
        return {"loss": mse(model(x), y)}

    def of_both(model, optimizer, batch):
        return {"steps": optimizer.step[...]}

    first = hl.train.Evaluate(of_model, hl.data.from_arrays((X, Y), 100), every=10)
    second = hl.train.Evaluate(nnx.jit(of_both), [X], every=10, name="both")
    model, _ = hl.train.Loop(job.step, job.state, batches()).run(last_step=20, hooks=[first, second])
    assert not model.dropout.deterministic, "it was a copy that was set to evaluate"
    model.eval()
    assert first.values["loss"] == pytest.approx(float(mse(model(X), Y)), rel=1e-4)
    assert second.values == {"steps": 20}


@pytest.mark.parametrize(
    ("eval_step", "value"),
    [
        (lambda weights, batch: {"x": weights}, 3.0),
        (lambda weights, count, batch: {"x": count}, 2.0),
        (lambda weights, x, y: {"x": (weights + 0 * x).mean()}, None),
    ],
)
def test_evaluation_with_other_parameter_names_gets_the_first_parts(eval_step, value):
    def train_step(params, opt_state, batch):
        return params + batch, opt_state + 1, {}

    evaluate = hl.train.Evaluate(eval_step, [(1.0, 2.0)] if value is None else [1.0], every=2)
    loop = hl.train.Loop(train_step, (jnp.zeros(()), jnp.zeros(())), [1.0, 2.0])
    if value is None:
        with pytest.raises(TypeError, match="Give its parameters the names of the train step's"):
            loop.run(hooks=[evaluate], progress=False, nan_check=None)
    else:
        loop.run(hooks=[evaluate], progress=False, nan_check=None)
        assert evaluate.values == {"x": value}


def test_best_checkpoint_is_kept_and_saved_if_there_is_none(tmp_path):
    counting().run(
        str(tmp_path),
        last_step=12,
        hooks=[evaluating(keep_best="accuracy")],
        checkpoints=hl.train.CheckpointOptions(save_steps=3),
    )
    state = hl.train.get_checkpoint_state(str(tmp_path))
    assert state.best == str(tmp_path / "model.ckpt-4")
    assert hl.train.load(str(tmp_path), like={"n": 0}, step="best")["n"] == 4
    assert hl.train.load(str(tmp_path), like={"n": 0})["n"] == 12


def test_best_is_kept_beyond_max_to_keep_and_the_former_best_is_removed(tmp_path):
    def run(last_step):
        loop = counting()
        loop.run(
            str(tmp_path),
            last_step,
            hooks=[evaluating(keep_best="accuracy")],
            checkpoints=hl.train.CheckpointOptions(save_steps=1, saver=hl.train.Saver(max_to_keep=2)),
        )
        return sorted(int(name.rpartition("-")[2]) for name in os.listdir(tmp_path) if name.startswith("model.ckpt-"))

    assert run(3) == [2, 3]
    assert run(7) == [4, 6, 7], "known over a restart, and 2 is not the best any more"
    assert run(12) == [4, 11, 12]


def test_checkpoint_due_at_the_best_step_is_saved_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "hookline"):
        counting().run(
            str(tmp_path),
            last_step=4,
            hooks=[evaluating(keep_best="accuracy")],
            checkpoints=hl.train.CheckpointOptions(save_steps=2),
        )
    saved = [line for line in caplog.messages if line.startswith("Saved checkpoint")]
    assert [line.rstrip(".").rpartition("-")[2] for line in saved] == ["0", "2", "4"]
    assert hl.train.get_checkpoint_state(str(tmp_path)).best.endswith("-4")


def test_smallest_value_may_be_the_best(tmp_path):
    counting().run(str(tmp_path), last_step=12, hooks=[evaluating(every=6, keep_best="accuracy", mode="min")])
    assert hl.train.get_checkpoint_state(str(tmp_path)).best.endswith("-12")


def test_best_value_is_remembered_over_a_restart(tmp_path):
    counting().run(str(tmp_path), last_step=4, hooks=[evaluating(keep_best="accuracy")])
    again = evaluating(keep_best="accuracy")
    counting().run(str(tmp_path), last_step=10, hooks=[again])
    assert again.best["accuracy"] == (pytest.approx(0.9), 4)
    assert hl.train.get_checkpoint_state(str(tmp_path)).best.endswith("-4")
    assert [step for step, _ in shown(tmp_path / "eval", "loss")] == [2, 4, 6, 8, 10]


def test_best_is_kept_though_the_process_was_killed_before_it_was_recorded(tmp_path):
    counting().run(str(tmp_path), last_step=4, hooks=[evaluating(keep_best="accuracy")])
    state_file = tmp_path / "checkpoint"
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), "best": None}))
    counting().run(str(tmp_path), last_step=6, hooks=[evaluating(keep_best="accuracy")])
    assert hl.train.get_checkpoint_state(str(tmp_path)).best.endswith("-4")


def test_repeated_steps_are_written_once(tmp_path):
    lose = RecordingHook(failures={"after_run": [None] * 6 + [hl.errors.UnavailableError(None, None, "away")]})
    evaluate = evaluating()
    recovery = hl.train.RecoveryPolicy(initial_backoff_secs=0)
    counting().run(
        str(tmp_path),
        8,
        hooks=[evaluate, lose],
        checkpoints=hl.train.CheckpointOptions(save_steps=5, recovery=recovery),
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "eval")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [2, 4, 6, 8]
    assert evaluate.best["loss"].step == 8


# For graphs --------------------------------------------------------------------------------------------------------


def test_graph_is_evaluated_with_tensors_and_feeds(tmp_path):
    x = hl.placeholder("float32", [None], name="x")
    w = hl.Variable(0.0, name="w")
    step = hl.train.get_or_create_global_step()
    train_op = hl.group(w.assign_add(1.0), step.assign_add(1))
    loss = hl.op(lambda w, x: jnp.mean(x - w))(w, x)
    feeds = [{x: np.array([0.0, 1.0])}, {x: np.array([5.0])}]
    evaluate = hl.train.Evaluate(
        {"loss": loss, "top": {"w": w}}, feeds, every=3, keep_best="loss", output_dir=str(tmp_path / "test")
    )
    hooks = [hl.train.StopAtStepHook(last_step=4), evaluate]
    with hl.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)
    assert evaluate.values == {"loss": pytest.approx(-2.0), "top/w": 4.0}
    assert shown(tmp_path / "test", "top/w") == [(3, 3.0), (4, 4.0)]
    assert hl.train.load(str(tmp_path), like={"w": 0.0}, step="best")["w"] == 4.0


# Stopping ----------------------------------------------------------------------------------------------------------


def test_training_stops_after_patience_evaluations_without_improvement(tmp_path):
    hooks = [hl.train.StopIfNoImprovement("accuracy", patience=3), evaluating()]
    assert counting().run(str(tmp_path), last_step=12, hooks=hooks)["n"] == 10


def test_stop_after_only_nan_is_logged_as_such(caplog, capsys):
    caplog.set_level("INFO", "hookline")
    evaluate = hl.train.Evaluate(lambda state: {"accuracy": jnp.nan * state["n"]}, None, every=1)
    counting().run(last_step=12, hooks=[evaluate, hl.train.StopIfNoImprovement("accuracy", patience=3)])
    assert re.search("has not improved for 3 evaluations; it was NaN$", capsys.readouterr().err, re.MULTILINE)
    assert "Stopping: accuracy of 'eval' was NaN in 3 evaluations." in caplog.text


def test_wait_count_is_remembered_over_a_restart(tmp_path):
    def hooks():
        return [evaluating(), hl.train.StopIfNoImprovement("accuracy", patience=3)]

    counting().run(str(tmp_path), last_step=7, hooks=hooks())
    assert counting().run(str(tmp_path), last_step=12, hooks=hooks())["n"] == 10


def test_improvement_must_exceed_min_delta():
    hooks = [evaluating(), hl.train.StopIfNoImprovement("accuracy", patience=1, min_delta=0.5)]
    assert counting().run(last_step=12, hooks=hooks)["n"] == 4


def test_wrong_arguments_of_the_stop_hook_are_named(tmp_path):
    with pytest.raises(ValueError, match="the name 'score' does not show whether small or large"):
        hl.train.StopIfNoImprovement("score", patience=1)
    with pytest.raises(ValueError, match="called 'eval', and this session has none"):
        counting().run(last_step=2, hooks=[hl.train.StopIfNoImprovement("loss", patience=1)])
    stop = hl.train.StopIfNoImprovement("top/accuracy", patience=1)
    with pytest.raises(ValueError, match="'eval' has no metric 'top/accuracy'. Available metrics: accuracy, loss"):
        counting().run(str(tmp_path), last_step=9, hooks=[evaluating(every=9), stop])
    assert not [*tmp_path.glob("model.ckpt-*")], "the name is checked before the first step"


# Refusals ----------------------------------------------------------------------------------------------------------


def test_batches_from_a_one_time_iterator_are_refused():
    with pytest.raises(ValueError, match="a generator gives each only once"):
        hl.train.Evaluate(eval_step, (batch for batch in [np.ones(2)]), every=2)
    with pytest.raises(ValueError, match="requires at least one batch"):
        counting().run(last_step=2, hooks=[hl.train.Evaluate(eval_step, [], every=2)])


def test_batches_without_an_end_are_refused():
    endless = hl.data.from_arrays(np.ones(4), batch_size=2, epochs=None)
    with pytest.raises(ValueError, match=r"these have no end. Give data that end: .*epochs=1"):
        hl.train.Evaluate(eval_step, endless, every=2)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"keep_best": "accuracy", "mode": "most"}, "'min' or 'max' as mode, got 'most'"),
        ({"keep_best": "score"}, r"the name 'score' does not show .*: unless it is misspelt, give mode='min' or mode="),
        ({"mode": "min"}, "mode with keep_best"),
        ({"every": 0}, ">= 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        evaluating(**arguments)


def test_unknown_metric_or_unsuitable_session_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'top/accuracy': it is no metric of 'eval'"):
        counting().run(last_step=2, hooks=[evaluating(keep_best="top/accuracy")])
    with pytest.raises(ValueError, match="requires a session with one saver, and this one has 0"):
        counting().run(last_step=1, hooks=[evaluating(keep_best="accuracy")])
    for is_known in (True, False):
        hl.reset_default_graph()
        fed = hl.placeholder("float32", [3] if is_known else None, name="fed")
        step = hl.train.get_or_create_global_step().assign_add(1)
        keeps = hl.train.Evaluate({"loss": fed}, [{fed: np.ones(3, "float32")}], every=1, keep_best="loss")
        with (
            pytest.raises(ValueError, match="cannot keep the best checkpoint by 'loss': it is an array"),
            hl.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[keeps]) as session,
        ):
            session.run(step)
    hl.reset_default_graph()
    reads = hl.train.Evaluate(lambda state, batch: {"loss": float(state["n"])}, [X], every=1)
    with pytest.raises(TypeError, match=r"reads a value at .*test_evaluate.py"):
        counting().run(last_step=1, hooks=[reads])
    ragged = hl.train.Evaluate(lambda state, batch: {"loss": 0.0}, [(np.ones(2), np.ones(3))], every=1)
    with pytest.raises(ValueError, match=r"arrays of the lengths \[2, 3\]"):
        counting().run(last_step=1, hooks=[ragged])
    hl.train.get_or_create_global_step()
    with pytest.raises(ValueError, match="needs the state of a train.Loop"):
        hl.train.MonitoredSession(hooks=[evaluating()])


def test_evaluate_keeps_the_contract_of_hooks(tmp_path):
    def tensors():
        loss = hl.get_default_graph().get_tensor_by_name("loss:0")
        return hl.train.Evaluate(loss, [{}, {}], every=2, output_dir=str(tmp_path))

    check_hook(tensors)


@pytest.mark.parametrize(
    ("last_batch", "backend"),
    [("keep", "cpu"), ("pad", "cpu"), ("keep", "gpu"), pytest.param("drop", "cpu", marks=pytest.mark.campaign)],
)
def test_several_batches_per_run_give_the_same_means(last_batch, backend, monkeypatch):
    """On a GPU the program of a full run is another one. It is compiled for the processor here."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def eval_step(state, batch):
        batch, mask = batch if last_batch == "pad" else (batch, 1.0)
        return {"loss": jnp.sum(abs(batch - state["w"]) * mask) / jnp.sum(mask * jnp.ones_like(batch))}

    examples = np.random.default_rng(0).normal(size=101).astype("float32")
    found = []
    for steps_per_run in (1, 3, 16, 1000):
        batches = hl.data.from_arrays(examples, batch_size=7)
        evaluate = hl.train.Evaluate(eval_step, batches, 2, steps_per_run=steps_per_run, last_batch=last_batch)
        loop = hl.train.Loop(lambda state, _: ({"w": state["w"] + 1.0}, {}), {"w": 0.0}, [1.0] * 6)
        loop.run(hooks=[evaluate], progress=False)
        found.append((evaluate.values, evaluate.step))
    assert found == [found[0]] * 4
    used = examples[:98] if last_batch == "drop" else examples
    assert found[0][0]["loss"] == pytest.approx(abs(used - 6.0).mean(), rel=1e-6)


def test_several_batches_per_run_need_a_function():
    with pytest.raises(ValueError, match="takes batch_sharding, last_batch and steps_per_run with a function"):
        hl.train.Evaluate(hl.constant(1.0), [{}], 1, steps_per_run=4)
    with pytest.raises(ValueError, match="Evaluate requires steps_per_run >= 1, got 0"):
        hl.train.Evaluate(lambda state, batch: {}, [1.0], 1, steps_per_run=0)


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def best_of(folder):
    return os.path.basename(hl.train.get_checkpoint_state(str(folder)).best or "")


def test_lost_best_checkpoint_is_logged_on_resume_and_the_next_best_is_kept(tmp_path, caplog):
    counting().run(str(tmp_path), last_step=4, hooks=[evaluating(keep_best="accuracy")])
    counting().run(str(tmp_path), last_step=5, hooks=[evaluating(keep_best="accuracy")])
    shutil.rmtree(tmp_path / "model.ckpt-4")
    assert hl.train.get_checkpoint_state(str(tmp_path)).lost_best == str(tmp_path / "model.ckpt-4")
    evaluate = evaluating(keep_best="accuracy")
    counting().run(str(tmp_path), last_step=6, hooks=[evaluate])
    (line,) = warnings_in(caplog)
    assert f"The best checkpoint, '{tmp_path}/model.ckpt-4', is gone or broken." in line
    assert best_of(tmp_path) == "model.ckpt-6", "worse than the lost one, and the best of those that exist"
    assert evaluate.best["accuracy"] == (pytest.approx(0.9), 4)
    caplog.clear()
    counting().run(str(tmp_path), last_step=12, hooks=[evaluating(keep_best="accuracy")])
    assert warnings_in(caplog) == []
    assert best_of(tmp_path) == "model.ckpt-8"
    assert hl.train.get_checkpoint_state(str(tmp_path)).lost_best is None


def test_newest_checkpoint_copied_alone_reports_the_lost_best(tmp_path, caplog):
    counting().run(str(tmp_path / "a"), last_step=5, hooks=[evaluating(keep_best="accuracy")])
    copy = tmp_path / "b"
    shutil.copytree(tmp_path / "a" / "model.ckpt-5", copy / "model.ckpt-5")
    gone = rf"no best checkpoint any more: it was '{copy}/model.ckpt-4', of step 4, which is gone"
    with pytest.raises(hl.errors.NotFoundError, match=gone):
        hl.train.load(str(copy), step="best")
    counting().run(str(copy), last_step=5 + 1, hooks=[evaluating(every=10, keep_best="accuracy")])
    assert [f"'{copy}/model.ckpt-4', is gone" in line for line in warnings_in(caplog)] == [True]
    assert best_of(copy) == "model.ckpt-6", "evaluated at the end"
    assert hl.train.load(str(copy), step="best")["n"] == 6


@pytest.mark.parametrize("resumed", [False, True])
def test_loading_a_lost_best_checkpoint_names_it(tmp_path, resumed):
    counting().run(str(tmp_path), last_step=5, hooks=[evaluating(keep_best="accuracy")])
    shutil.rmtree(tmp_path / "model.ckpt-4")
    if resumed:
        counting().run(str(tmp_path), last_step=6)
    with pytest.raises(hl.errors.NotFoundError, match=r"was '.*model.ckpt-4', of step 4, which is gone.*keep_best"):
        hl.train.load(str(tmp_path), step="best")


def test_best_checkpoint_beside_an_explicitly_restored_one_is_kept(tmp_path, caplog):
    counting().run(str(tmp_path), last_step=5, hooks=[evaluating(keep_best="accuracy")])
    (tmp_path / "checkpoint").unlink()
    counting().run(str(tmp_path), last_step=7, hooks=[evaluating(keep_best="accuracy")])
    assert warnings_in(caplog) == []
    assert best_of(tmp_path) == "model.ckpt-4"
