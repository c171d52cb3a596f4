"""Batches of several lengths: the step is compiled once for each, as by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl

LENGTHS = (4, 8, 8, 4, 6, 6, 6, 4, 8, 8)
COUNTS = (3,) * 9 + (2,)  # A smaller last batch in its own bucket.
X = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
BATCHES = [{"x": X[:count, :length], "y": X[:count, 0]} for count, length in zip(COUNTS, LENGTHS, strict=True)]
FORMS = 4


def loss_fn(w, batch):
    # The length is a number to Python, as in many steps: a symbol would not do.
    weights = jnp.asarray([1 / (place + 1) for place in range(batch["x"].shape[1])])
    return jnp.mean((batch["x"] @ weights * w - batch["y"]) ** 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state["w"], batch)
    return {"w": state["w"] - 0.1 * grads}, {"loss": loss, "errors": batch["y"]}


def by_hand():
    state, step = {"w": jnp.ones(())}, jax.jit(train_step)
    for batch in BATCHES:
        state, _ = step(state, batch)
    return state["w"]


def tensor(**options):
    with hl.Graph().as_default():
        return hl.data.iterator(BATCHES, **options)


def spec(count, length):
    return {"x": jax.ShapeDtypeStruct((count, length), "float32"), "y": jax.ShapeDtypeStruct((count,), "float32")}


SOURCES = {
    "a list": lambda: BATCHES,
    "a function": lambda: lambda: iter(BATCHES),
    "the tensor of an iterator": lambda: tensor(prefetch=2),
    "a spec with symbols": lambda: tensor(spec=spec(*jax.export.symbolic_shape("count, length"))),
}


@pytest.mark.parametrize("steps_per_run", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_each_length_is_compiled_and_logged_once_and_a_restart_has_the_same_bits(
    source, steps_per_run, tmp_path, caplog
):
    def run(logdir, **arguments):
        loop = hl.train.Loop(train_step, {"w": jnp.ones(())}, SOURCES[source](), steps_per_run=steps_per_run)
        # Summaries and the log would need other programs.
        quiet = {"progress": False, "nan_check": None, "log_steps": None}
        quiet["logging"] = hl.train.LoggingOptions(summary_steps=None)
        return loop.run(str(logdir), **quiet, **arguments)["w"]

    caplog.set_level("INFO", "hookline")
    whole = run(tmp_path / "whole")
    told = [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]
    of_lengths = [text for text in told if "it was" in text]
    assert len(set(of_lengths)) == len(of_lengths) == FORMS - 1
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

    run(tmp_path / "parts", last_step=5)
    assert run(tmp_path / "parts") == whole
    np.testing.assert_allclose(whole, by_hand(), rtol=1e-5)


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_batch_is_padded_or_dropped_by_its_examples_only(last_batch):
    def step(state, batch):
        batch, mask = batch if last_batch == "pad" else (batch, jnp.ones(3))
        return {"seen": state["seen"] + batch["x"].size, "examples": state["examples"] + mask.sum()}, {}

    state = {"seen": jnp.zeros(()), "examples": jnp.zeros(())}
    found = hl.train.Loop(step, state, BATCHES, last_batch=last_batch).run(progress=False)
    count = 10 if last_batch == "pad" else 9
    assert found["seen"] == 3 * sum(LENGTHS[:count])
    assert found["examples"] == {"pad": 29, "drop": 27}[last_batch]


def test_ragged_evaluation_works():
    evaluate = hl.train.Evaluate(lambda state, batch: {"loss": loss_fn(state["w"], batch)}, BATCHES, every=10)
    hl.train.Loop(train_step, {"w": jnp.ones(())}, BATCHES).run(hooks=[evaluate], progress=False)
    losses = [float(loss_fn(by_hand(), batch)) for batch in BATCHES]
    assert evaluate.values["loss"] == pytest.approx(np.average(losses, weights=COUNTS), rel=1e-5)


def test_many_lengths_give_one_warning(caplog):
    batches = [np.ones((2, length), "float32") for length in (*range(1, 20), *range(1, 20))]
    hl.train.Loop(lambda state, batch: (state + batch.mean(), {}), 0.0, batches).run(progress=False, nan_check=None)
    (told,) = [record.getMessage() for record in caplog.records if "lengths" in record.getMessage()]
    assert told == (
        "Iterator 'batches': its batches have more than 16 different lengths, and the step is compiled once for each: "
        "now for float32[2,17]. Pad them to a few lengths (buckets)."
    )


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (lambda: [*BATCHES, {"x": X}], "has the structure"),
        (lambda: [*BATCHES, {"x": X[:, 0], "y": X[:, 0]}], r"\['x'\] has shape \(3,\).*only the lengths of arrays may"),
        (lambda: [*BATCHES, {"x": X, "y": X[:2, 0]}], r"different lengths, \[2, 3\]"),
        (lambda: tensor(spec=spec(3, 4)), r"\['x'\] has shape \(3, 8\).*lengths may differ if they are symbols of jax"),
    ],
)
def test_changed_structure_or_length_is_refused(batches, said):
    loop = hl.train.Loop(train_step, {"w": jnp.ones(())}, batches())
    with pytest.raises(hl.errors.InvalidArgumentError, match=said):
        loop.run(progress=False)
