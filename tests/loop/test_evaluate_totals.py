"""Metrics of the whole evaluation set: sums with weights, and objects that are merged as by hand."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import hookline as hl

RNG = np.random.default_rng(0)
TOKENS = RNG.normal(size=(50, 6)).astype("float32")
MASK = np.arange(6) < RNG.integers(1, 7, size=(50, 1))  # Sequences of 1 to 6 tokens.
LABELS = RNG.integers(0, 2, size=50)


def evaluated(eval_step, batches, **arguments):
    def train_step(state, batch):
        return {"w": state["w"] + 1.0}, {"loss": state["w"]}

    evaluate = hl.train.Evaluate(eval_step, batches, every=2, **arguments)
    hl.train.Loop(train_step, {"w": jnp.zeros(())}, [1.0] * 2).run(hooks=[evaluate], progress=False)
    return evaluate.values


@pytest.mark.parametrize(
    "arguments", [{}, {"steps_per_run": 3}, {"last_batch": "pad"}], ids=["one", "several", "padded"]
)
def test_pair_gives_the_weighted_mean(arguments):
    def eval_step(state, batch):
        (tokens, mask), given = batch if "last_batch" in arguments else (batch, jnp.ones(len(batch[0]), bool))
        mask = mask & given[:, None]
        losses = abs(tokens - state["w"])
        by_place = jnp.where(mask, losses, 0.0).sum(axis=0), mask.sum(axis=0)
        return {"loss": (jnp.where(mask, losses, 0.0).sum(), mask.sum()), "by": {"place": by_place}}

    found = evaluated(eval_step, hl.data.from_arrays((TOKENS, MASK), 16), **arguments)
    losses = np.where(MASK, abs(TOKENS - 2.0), 0.0)
    assert found["loss"] == pytest.approx(losses.sum() / MASK.sum(), rel=1e-6)
    np.testing.assert_allclose(found["by/place"], losses.sum(axis=0) / MASK.sum(axis=0), rtol=1e-6)


def test_batches_of_any_layout_need_no_batch_size():
    graphs = [{"nodes": TOKENS[:n, 0], "edges": TOKENS[: 2 * n], "scale": np.float32(n)} for n in (3, 5, 9)]

    def eval_step(state, batch):
        return {"degree": (batch["edges"].sum() * batch["scale"], len(batch["nodes"])), "empty": (jnp.nan, 0)}

    with pytest.raises(ValueError, match=r"eval'?: the metric 'empty' is a sum whose weight is 0 in each batch"):
        evaluated(eval_step, graphs)
    found = evaluated(lambda state, batch: {"degree": eval_step(state, batch)["degree"]}, graphs)
    assert found["degree"] == pytest.approx(sum(g["edges"].sum() * g["scale"] for g in graphs) / 17, rel=1e-5)


def test_class_without_examples_has_no_mean_and_a_negative_weight_is_refused():
    batches = [np.array([1.0, 2.0], "float32"), np.array([3.0, 4.0], "float32")]
    found = evaluated(lambda state, batch: {"by_class": (batch * jnp.array([1, 0]), jnp.array([1, 0]))}, batches)
    np.testing.assert_array_equal(found["by_class"], [2.0, np.nan])
    with pytest.raises(ValueError, match=r"'losses' is a pair, \(sum, weight\), whose weight is -1 for a batch"):
        evaluated(lambda state, batch: {"losses": (batch.sum(), -1.0)}, batches)


def test_tensors_may_be_pairs():
    step = hl.train.get_or_create_global_step().assign_add(1)
    fed = hl.placeholder("float32", [None], name="fed")
    total, count = hl.op(jnp.sum)(fed), hl.op(lambda x: jnp.asarray(x.shape[0]))(fed)
    batches = [{fed: np.arange(n, dtype="float32")} for n in (2, 5)]
    evaluate = hl.train.Evaluate({"mean": (total, count), "last": total}, batches, every=1)
    with hl.train.MonitoredSession(hooks=[evaluate]) as session:
        session.run(step)
    assert evaluate.values["mean"] == pytest.approx(11 / 7)


# Of clu -------------------------------------------------------------------------------------------------------------

clu = pytest.importorskip("clu.metrics")


@struct.dataclass
class Perplexity(clu.Average):
    def compute(self):
        return jnp.exp(super().compute())


@struct.dataclass
class AreaUnderCurve(clu.CollectingMetric.from_outputs(("scores", "labels"))):  # type: ignore[misc]
    def compute(self):
        values = super().compute()
        good, bad = (values["scores"][values["labels"] == label] for label in (1, 0))
        return {"auc": float(np.mean(good[:, None] > bad[None]))}  # It reads values, as one of scikit-learn does.


@struct.dataclass
class Metrics(clu.Collection):
    loss: clu.Average.from_output("losses")  # type: ignore[valid-type]
    perplexity: Perplexity.from_output("losses")  # type: ignore[valid-type]
    last: clu.LastValue.from_output("losses")  # type: ignore[valid-type]


def of_clu(state, batch):
    tokens, mask, _ = batch
    return Metrics.single_from_model_output(losses=abs(tokens - state["w"]), mask=mask)


@pytest.mark.rounding
@pytest.mark.parametrize("steps_per_run", [1, 3])
def test_masked_metrics_are_merged_like_in_clu(steps_per_run):
    data = hl.data.from_arrays((TOKENS, MASK, LABELS), 16)
    merged = Metrics.empty()
    for batch in data:
        merged = merged.merge(jax.jit(of_clu)({"w": jnp.full((), 2.0)}, batch))
    wanted = {name: float(value) for name, value in merged.compute().items()}
    assert evaluated(of_clu, data, steps_per_run=steps_per_run) == wanted, "to the last bit"


@pytest.mark.parametrize("steps_per_run", [1, 4])
def test_collecting_metric_is_computed_from_the_whole_set(tmp_path, steps_per_run):
    def eval_step(state, batch):
        tokens, _, labels = batch
        scores = tokens[:, 0] + state["w"] * labels
        return {"of": AreaUnderCurve.from_model_output(scores=scores, labels=labels), "loss": scores.mean()}

    def loop():
        return hl.train.Loop(lambda state, batch: ({"w": state["w"] + 0.25}, {}), {"w": jnp.zeros(())}, [1.0] * 4)

    data = hl.data.from_arrays((TOKENS, MASK, LABELS), 16)
    evaluate = hl.train.Evaluate(eval_step, data, 2, keep_best="of/auc", steps_per_run=steps_per_run)
    loop().run(str(tmp_path), hooks=[evaluate], progress=False)
    scores = TOKENS[:, 0] + 1.0 * LABELS
    good, bad = scores[LABELS == 1], scores[LABELS == 0]
    assert evaluate.values["of/auc"] == pytest.approx(np.mean(good[:, None] > bad[None]))
    assert evaluate.values["loss"] == pytest.approx(scores.mean(), rel=1e-5)
    assert evaluate.best["of/auc"].step == 4
    other = hl.train.Evaluate(eval_step, data, 2, keep_best="auc", name="other")
    with pytest.raises(ValueError, match=r"'auc': it is no metric of 'other'. Available metrics: loss, of/auc"):
        loop().run(str(tmp_path / "b"), hooks=[other], progress=False)


@pytest.mark.parametrize("way", ["returned", "in the state"])
def test_metric_merged_by_the_step_is_merged_over_the_batches(way):
    def eval_step(state, batch):
        found = clu.Average.from_model_output(batch)
        return {"mean": state["metric"].merge(found) if way == "in the state" else found}

    def train_step(state, batch):
        found = clu.Average.from_model_output(jnp.full(1, 100.0))
        return {**state, "metric": state["metric"].merge(found)}

    evaluate = hl.train.Evaluate(eval_step, [np.arange(3.0), np.full(1, 9.0)], every=1)
    state = {"w": jnp.zeros(()), "metric": clu.Average.empty()}
    hl.train.Loop(train_step, state, [1.0]).run(hooks=[evaluate], progress=False, nan_check=None)
    assert evaluate.values == {"mean": 3.0}


def test_way_of_combining_is_logged_once_with_a_warning_for_a_mean_of_means(caplog):
    def eval_step(state, batch):
        mean = batch.mean()
        return {
            "loss": mean,
            "perplexity": jnp.exp(mean),
            "sum": (batch.sum(), 2),
            "of": Perplexity.from_model_output(batch),
        }

    def lines():
        return [line for line in caplog.messages if line.startswith("Evaluate 'eval'")]

    batches = [np.arange(2.0), np.arange(1.0)]
    with caplog.at_level(logging.INFO, "hookline"):
        loop = hl.train.Loop(lambda state, batch: (state, {}), {"w": jnp.zeros(())}, [1.0] * 4)
        loop.run(hooks=[hl.train.Evaluate(eval_step, batches, every=2)], progress=False)
    assert lines() == [
        "Evaluate 'eval': perplexity is the mean of the values of 2 batches, which is not its value for the whole set. "
        "Return a pair (sum, weight), or a metric with merge() and compute(), such as those of clu, or of NNX in the "
        "state.",
        "Evaluate 'eval': loss, perplexity: the mean of the batches, weighted by their examples; sum: a sum divided by "
        "the sum of its weights; of: computed from the merged state of all batches.",
    ]
    caplog.clear()
    evaluated(lambda state, batch: {"perplexity": jnp.exp(batch.mean())}, batches[:1])
    assert lines() == [], "of one batch it is right"
    evaluated(lambda state, batch: {"loss": batch.sum(), "count": batch.size}, batches)
    assert lines() == [
        "Evaluate 'eval': metrics that look like numbers of examples or tokens are averaged over the batches: count. "
        "If the other metrics are sums over those, return pairs: {'loss': (loss, count)}."
    ]
