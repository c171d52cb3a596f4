"""Metrics of NNX in the state: read when due, reset, in evaluations and checkpoints."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import hookline as hl

X = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")


def loss_fn(model, batch):
    x, y = batch
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch[1])
    optimizer.update(model, grads)


@nnx.jit
def eval_step(model, metrics, batch):
    loss, logits = loss_fn(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch[1])


def objects():
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    metrics = nnx.MultiMetric(
        accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"), spread=nnx.metrics.Welford("loss")
    )
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), metrics


def batches():
    return hl.data.from_arrays((X, Y), 10, epochs=None)


def flat(computed):
    spread = computed.pop("spread")
    return {name: float(value) for name, value in computed.items()} | {"spread/mean": float(spread.mean)}


def by_hand(steps, reset_after=()):
    """Runs the published loop; returns the metrics after each step, and the model."""
    model, optimizer, metrics = objects()
    found = []
    for step, batch in zip(range(1, steps + 1), batches(), strict=False):
        train_step(model, optimizer, metrics, batch)
        found.append(flat(metrics.compute()))
        if step in reset_after:
            metrics.reset()
    return found, model


class See(hl.train.SessionRunHook):
    """Keeps the metrics of each step."""

    stacked = True

    def __init__(self, metrics):
        self.metrics, self.seen = metrics, {}

    def before_run(self, run_context):
        return hl.train.SessionRunArgs(self.metrics)

    def after_run(self, run_context, run_values):
        step = run_context.session.global_step
        rows = jax.tree.map(np.atleast_1d, jax.device_get(run_values.results))
        for row in range(len(rows["loss"])):
            told = {name: float(values[row]) for name, values in rows.items()}
            self.seen[step - len(rows["loss"]) + row + 1] = {
                name: value for name, value in told.items() if "standard" not in name
            }


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """One training, killed in the middle of a window: its directory, and the record of its hooks."""
    directory, seen = str(tmp_path_factory.mktemp("logs")), {}
    for last_step in (5, 9):
        loop = hl.train.Loop(train_step, objects(), batches(), reset_metrics_steps=3)
        see = See(loop.metrics)
        final = loop.run(directory, last_step, hooks=[see], progress=False)
        seen |= see.seen
    return directory, seen, final


def test_metrics_are_means_since_their_reset_also_over_a_restart(logs):
    _, seen, (model, _, metrics) = logs
    wanted, hand = by_hand(9, reset_after=(1, 4, 7))
    assert [seen[step] for step in range(1, 10)] == [pytest.approx(each, rel=1e-5) for each in wanted]
    np.testing.assert_allclose(model.kernel[...], hand.kernel[...], rtol=1e-5)
    assert flat(metrics.compute()) == pytest.approx(wanted[-1], rel=1e-5), "the objects hold them in the end"


def test_several_steps_per_run_give_the_same_means():
    loop = hl.train.Loop(train_step, objects(), batches(), reset_metrics_steps=3, steps_per_run=4)
    see = See(loop.metrics)
    loop.run(
        last_step=9,
        hooks=[see],
        progress=False,
        nan_check=None,
        log_steps=None,
        logging=hl.train.LoggingOptions(rate_steps=None),
    )
    wanted, _ = by_hand(9, reset_after=(1, 4, 7))
    assert [see.seen[step] for step in range(1, 10)] == [pytest.approx(each, rel=1e-5) for each in wanted]


def test_metrics_are_never_reset_on_request_and_are_logged(caplog, tmp_path):
    state = dict(zip(("model", "optimizer", "metrics"), objects(), strict=True))
    loop = hl.train.Loop(train_step, state, batches(), reset_metrics_steps=None)
    with caplog.at_level(logging.INFO, "hookline"):
        final = loop.run(str(tmp_path), last_step=5, log_steps=2, progress=False)
    wanted, _ = by_hand(5)
    lines = [line for line in caplog.messages if line.startswith("step ")]
    found = [float(line.partition(", loss = ")[2].split(",")[0]) for line in lines]
    assert found == pytest.approx([wanted[step - 1]["loss"] for step in (1, 3, 5)], rel=1e-4)
    assert list(final) == ["model", "optimizer", "metrics"]
    assert int(final["optimizer"].step[...]) == 5
    assert flat(hl.train.load(str(tmp_path), like=state)["metrics"].compute()) == pytest.approx(wanted[-1], rel=1e-5)


def test_step_counter_in_a_part_sets_the_global_step():
    state = dict(zip(("model", "optimizer", "metrics"), objects(), strict=True))
    state["optimizer"].step[...] += 7
    loop = hl.train.Loop(train_step, state, batches())
    loop.run(last_step=9, progress=False)
    assert int(state["optimizer"].step[...]) == 9


@pytest.mark.parametrize("steps_per_run", [1, 2])
def test_evaluation_starts_with_empty_metrics_and_accumulates_batches(steps_per_run):
    model, optimizer, metrics = objects()
    evaluate = hl.train.Evaluate(eval_step, hl.data.from_arrays((X, Y), 16), every=2, steps_per_run=steps_per_run)
    loop = hl.train.Loop(train_step, (model, optimizer, metrics), batches())
    loop.run(last_step=3, hooks=[evaluate], progress=False)
    trained = flat(metrics.compute())
    metrics.reset()
    for batch in hl.data.from_arrays((X, Y), 16):
        eval_step(model, metrics, batch)
    found = {name: value for name, value in evaluate.values.items() if "standard" not in name}
    assert found == pytest.approx(flat(metrics.compute()), rel=1e-5)
    assert trained != pytest.approx(found), "the training has its own"


def test_averages_exclude_metrics(tmp_path):
    loop = hl.train.Loop(train_step, objects(), batches(), ema=0.5)
    loop.run(str(tmp_path), last_step=3, progress=False)
    model, _, metrics = loop.averaged_result
    assert flat(metrics.compute()) == flat(loop.result[2].compute())
    assert not np.array_equal(model.kernel[...], loop.result[0].kernel[...])
    loaded = hl.train.load(str(tmp_path), objects(), averaged=True)
    assert flat(loaded[2].compute()) == flat(metrics.compute())
    with pytest.raises(ValueError, match="ema names the part '2', and the state has no floating"):
        hl.train.Loop(train_step, objects(), batches(), ema={"2": 0.5})


def test_warm_start_restores_metrics_only_with_the_slots(logs, tmp_path):
    class Begun(hl.train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.count = int(session.snapshot()["state"][2]["loss"]["count"])

    hl.train.Loop(train_step, objects(), batches()).run(str(tmp_path), last_step=3, progress=False)
    counts = []
    for opt_state in (False, True):
        warm, begun = hl.train.WarmStart(str(tmp_path), opt_state=opt_state), Begun()
        with hl.train.Loop(train_step, objects(), batches()).session(warm_start=warm, hooks=[begun], progress=False):
            counts.append(begun.count)
    assert counts == [0, 2], "of the steps since they started over"


def test_user_object_with_update_and_compute_is_a_metric_only_with_reset():
    class Filter(nnx.Module):
        def __init__(self):
            self.seen = nnx.BatchStat(jnp.zeros(()))

        def update(self, x):
            self.seen[...] += x.sum()

        def compute(self):
            return self.seen[...]

        def reset(self):
            raise AssertionError("it is a part of the model")

    def step(model, batch):
        model.update(batch)

    made = Filter()
    hl.train.Loop(step, made, hl.data.from_arrays(np.ones(8), 2), reset_metrics_steps=2).run(progress=False)
    assert made.compute() == 8

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Module:
        seen: jax.Array

        def update(self, x):
            return Module(self.seen + x.sum())

        def compute(self):
            return self.seen

    state = hl.train.Loop(lambda state, batch: (state.update(batch), {}), Module(jnp.zeros(())), [np.ones(2)] * 4)
    assert state.run(progress=False).compute() == 8


def test_metric_is_named_after_its_parameter_unless_the_step_returns_that_name():
    def step(model, seen, loss, batch):
        value, _ = loss_fn(model, batch)
        seen.update(values=value)
        loss.update(values=value)
        return {"loss": value}

    state = {"model": objects()[0], "seen": nnx.metrics.Average(), "loss": nnx.metrics.Average()}
    for given in (state, tuple(state.values())):
        loop = hl.train.Loop(step, given, batches())
        assert sorted(loop.metrics) == ["loss", "loss/loss", "seen"]


def test_invalid_reset_steps_are_refused():
    with pytest.raises(ValueError, match="reset_metrics_steps >= 1, got 0"):
        hl.train.Loop(train_step, objects(), batches(), reset_metrics_steps=0)
    with pytest.raises(TypeError, match="requires a whole number as reset_metrics_steps"):
        hl.train.Loop(train_step, objects(), batches(), reset_metrics_steps="epochs")
