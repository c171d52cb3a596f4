"""Metrics of `clu`: a step returns a collection of them, as its published steps do."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import hookline as hl

metrics = pytest.importorskip("clu.metrics")

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")


@struct.dataclass
class Metrics(metrics.Collection):
    accuracy: metrics.Accuracy
    loss: metrics.Average.from_output("losses")  # type: ignore[valid-type]


def measured(state, batch):
    x, y = batch
    logits = jnp.stack([-x @ state["w"], x @ state["w"]], axis=1)
    return Metrics.single_from_model_output(logits=logits, labels=y, losses=(x @ state["w"] - y) ** 2)


def train_step(state, batch):
    return {"w": state["w"] + 0.5}, measured(state, batch)


def by_hand(w, x, y):
    predicted = x @ np.full(3, w)
    return {"accuracy": np.mean((predicted > 0) == y), "loss": np.mean((predicted - y) ** 2)}


def test_collection_is_computed_in_each_step_and_in_an_evaluation():
    seen = []

    class See(hl.train.SessionRunHook):
        def before_run(self, run_context):
            return hl.train.SessionRunArgs(loop.metrics)

        def after_run(self, run_context, run_values):
            seen.append({name: float(value) for name, value in run_values.results.items()})

    loop = hl.train.Loop(train_step, {"w": jnp.zeros(3)}, hl.data.from_arrays((X, Y), 16))
    evaluate = hl.train.Evaluate(measured, hl.data.from_arrays((X, Y), 24), every=4)
    loop.run(hooks=[See(), evaluate])

    wanted = [by_hand(0.5 * n, X[16 * n : 16 * n + 16], Y[16 * n : 16 * n + 16]) for n in range(4)]
    assert seen == [pytest.approx(each, rel=1e-5) for each in wanted]
    assert evaluate.values == pytest.approx(by_hand(2.0, X, Y), rel=1e-5)


def test_collection_in_the_state_accumulates_and_is_reset(caplog):
    def accumulating(state, batch):
        return {"w": state["w"] + 0.5, "metrics": state["metrics"].merge(measured(state, batch))}

    state = {"w": jnp.zeros(3), "metrics": Metrics.empty()}
    loop = hl.train.Loop(accumulating, state, hl.data.from_arrays((X, Y), 16), reset_metrics_steps=2)
    with caplog.at_level("INFO", "hookline"):
        loop.run(log_steps=1)
    parts = [by_hand(0.5 * n, X[16 * n : 16 * n + 16], Y[16 * n : 16 * n + 16])["loss"] for n in range(4)]
    wanted = [parts[0], parts[1], (parts[1] + parts[2]) / 2, parts[3]]  # It is reset after steps 1 and 3.
    found = loop.history["loss"].values
    assert f", loss = {wanted[3]:#.4g} (" in caplog.text
    assert found == pytest.approx(wanted, rel=1e-5)


def test_evaluation_excludes_the_metrics_of_the_training():
    def accumulating(state, batch):
        return {"w": state["w"] + 0.5, "metrics": state["metrics"].merge(measured(state, batch))}

    loop = hl.train.Loop(accumulating, {"w": jnp.zeros(3), "metrics": Metrics.empty()}, hl.data.from_arrays((X, Y), 16))
    evaluate = hl.train.Evaluate(
        lambda state, batch: state["metrics"].merge(measured(state, batch)), hl.data.from_arrays((X, Y), 24), every=4
    )
    loop.run(hooks=[evaluate], progress=False)
    assert evaluate.values == pytest.approx(by_hand(2.0, X, Y), rel=1e-5)


def test_collecting_metric_is_left_out_with_the_reason(caplog):
    @struct.dataclass
    class Collecting(metrics.Collection):
        loss: metrics.Average.from_output("losses")  # type: ignore[valid-type]
        scores: metrics.CollectingMetric.from_outputs(("losses",))

    def step(state, batch):
        return state, Collecting.single_from_model_output(losses=batch[0])

    loop = hl.train.Loop(step, {"w": jnp.zeros(3)}, hl.data.from_arrays((X, Y), 16))
    assert list(loop.metrics) == ["loss"]
    assert "'scores' is a" in caplog.text
    assert "whose compute() reads values" in caplog.text
