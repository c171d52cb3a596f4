"""Means of an evaluation: how many examples, or tokens, a batch counts as."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl


def evaluated(batches, batch_size=None, metric=lambda batch: batch.mean(), **options):
    """The mean of a metric over batches."""
    step = lambda state, batch: ({"n": state["n"] + 1}, {})  # noqa: E731
    evaluate = hl.train.Evaluate(
        lambda state, batch: {"mean": metric(batch)}, batches, every=1, batch_size=batch_size, **options
    )
    hl.train.Loop(step, {"n": jnp.zeros((), int)}, [np.ones(1)]).run(hooks=[evaluate], progress=False)
    return evaluate.values["mean"]


LINES = [np.arange(12.0).reshape(3, 4), np.arange(100.0, 103.0).reshape(3, 1)]
"""Sequences of 3 tokens, 4 in the first batch and 1 in the last, time-major."""


@pytest.mark.parametrize("steps_per_run", [1, 4])
def test_time_major_batches_are_weighted_by_their_sequences(steps_per_run):
    mean = np.concatenate([line.ravel() for line in LINES]).mean()
    assert evaluated(LINES, lambda batch: batch.shape[1], steps_per_run=steps_per_run) == pytest.approx(mean)
    assert evaluated(LINES) != pytest.approx(mean)


def of_tokens(batch):
    return jnp.sum(batch["loss"] * batch["is_token"]) / jnp.sum(batch["is_token"])


@pytest.mark.parametrize("last_batch", ["keep", "pad"])
def test_packed_sequences_are_weighted_by_their_tokens(last_batch):
    losses = np.arange(20.0).reshape(5, 4)
    is_token = np.arange(4) < np.array([[4], [1], [0], [0], [2]])
    batches = hl.data.from_arrays({"loss": losses, "is_token": is_token}, 2)  # The tokens are 5, 0 and 2.
    content = lambda batch: batch.batch if last_batch == "pad" else batch  # noqa: E731
    found = evaluated(
        batches, lambda batch: batch["is_token"].sum(), lambda batch: of_tokens(content(batch)), last_batch=last_batch
    )
    assert found == pytest.approx(losses[is_token].mean())


def test_batch_size_function_counts_a_ragged_batch():
    ragged = [{"weights": np.ones(7), "x": np.full(size, size * 1.0)} for size in (4, 1)]
    metric = lambda batch: batch["x"].mean()  # noqa: E731
    assert evaluated(ragged, lambda batch: len(batch["x"]), metric) == pytest.approx((4 * 4 + 1) / 5)
    with pytest.raises(ValueError, match=r"arrays of the lengths \[4, 7\].*Give Evaluate batch_size="):
        evaluated(ragged, None, metric)


def test_batch_size_function_counts_feeds():
    with hl.Graph().as_default():
        x = hl.placeholder("float32", [None, None])
        step = hl.train.get_or_create_global_step()
        evaluate = hl.train.Evaluate(
            {"mean": hl.op(jnp.mean)(x)},
            [{x: line.astype("float32")} for line in LINES],
            every=1,
            batch_size=lambda feeds: feeds[x].shape[1],
        )
        add = step.assign_add(1)
        with hl.train.MonitoredSession(hooks=[evaluate, hl.train.StopAtStepHook(last_step=1)]) as session:
            session.run(add)
    assert evaluate.values["mean"] == pytest.approx(np.concatenate([line.ravel() for line in LINES]).mean())


@pytest.mark.parametrize(
    ("batch_size", "kind", "said"),
    [
        (32, TypeError, r"requires a function \(or None\) as batch_size, got 32"),
        (lambda batch: -1, ValueError, r"returned -1 for batch 1 .* a finite number, 0 or more"),
        (lambda batch: float("nan"), ValueError, "returned nan for batch 1"),
        (lambda batch: batch.shape, ValueError, r"returned \(3, 4\) for batch 1"),
        (lambda batch: None, ValueError, "returned None for batch 1"),
        (lambda batch: "4", ValueError, "returned '4' for batch 1"),
        (lambda batch: 4 if batch.size > 3 else np.ones(2), ValueError, r"returned array\(\[1., 1.\]\) for batch 2"),
        (lambda batch: 0, ValueError, "returned 0 for each batch"),
    ],
)
def test_invalid_batch_size_is_refused(batch_size, kind, said):
    with pytest.raises(kind, match=rf"Evaluate.*{said}"):
        evaluated(LINES, batch_size)


def test_error_in_batch_size_names_the_evaluation():
    with pytest.raises(IndexError) as raised:
        evaluated([np.arange(3.0)], lambda batch: batch.shape[1])
    assert "hookline: while Evaluate 'eval' called batch_size with batch 1" in raised.value.__notes__
