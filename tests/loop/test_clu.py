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


def test_a_collection_is_computed_in_each_step_and_in_an_evaluation():
    seen = []

    class See(hl.train.SessionRunHook):
        def before_run(self, run_context):
            return hl.train.SessionRunArgs(loop.metrics)

        def after_run(self, run_context, run_values):
            seen.append({name: float(value) for name, value in run_values.results.items()})

    loop = hl.train.Loop(train_step, {"w": jnp.zeros(3)}, hl.data.arrays((X, Y), 16))
    evaluate = hl.train.Evaluate(measured, hl.data.arrays((X, Y), 24), every=4)
    loop.run(hooks=[See(), evaluate])

    wanted = [by_hand(0.5 * n, X[16 * n : 16 * n + 16], Y[16 * n : 16 * n + 16]) for n in range(4)]
    assert seen == [pytest.approx(each, rel=1e-5) for each in wanted]
    assert evaluate.values == pytest.approx(by_hand(2.0, X, Y), rel=1e-5)


def test_one_that_accumulates_in_the_state_is_refused_with_advice():
    state = {"w": jnp.zeros(3), "metrics": Metrics.empty()}
    with pytest.raises(TypeError, match=r"holds a Metrics, which accumulates.*Take it out of the state"):
        hl.train.Loop(train_step, state, hl.data.arrays((X, Y), 16))


def test_one_that_collects_values_is_refused_with_the_reason():
    @struct.dataclass
    class Collecting(metrics.Collection):
        scores: metrics.CollectingMetric.from_outputs(("losses",))

    def step(state, batch):
        return state, Collecting.single_from_model_output(losses=batch[0])

    with pytest.raises(TypeError, match=r"step: compute\(\) of Collecting, the metric 'loss', reads values"):
        hl.train.Loop(step, {"w": jnp.zeros(3)}, hl.data.arrays((X, Y), 16))
