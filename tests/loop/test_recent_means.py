from __future__ import annotations

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
from hookline.errors import AbortedError
from hookline.testing import RecordingHook

VALUES = np.random.default_rng(0).normal(size=40).astype("float32")


def step(state, batch):
    return state + 1, {"loss": batch[0], "top": {"1": 2 * batch[0]}, "count": state}


def loop(smoothing_steps=5, values=VALUES, **more):
    return hl.train.Loop(
        step, jnp.zeros((), int), hl.data.from_arrays(values, 1, epochs=None), smoothing_steps=smoothing_steps, **more
    )


class Look(hl.train.SessionRunHook):
    """Keeps the means at some steps."""

    def __init__(self, loop, *steps):
        self.trigger, self.fetches, self.seen = hl.train.at_steps(*steps), loop.means, {}

    def on_trigger(self, firing):
        self.seen[firing.global_step] = {name: float(value) for name, value in firing.values.items()}


def wanted(step, over=5, values=VALUES):
    return np.mean(values[:step][-over:])


def test_last_mean_of_an_epoch_is_that_of_the_epoch():
    data = hl.data.from_arrays(VALUES, 8)
    made = hl.train.Loop(lambda s, b: (s + 1, {"loss": b.mean()}), jnp.zeros((), int), data, smoothing_steps="epoch")
    seen = {}
    made.run(epochs=2, hooks=[hl.train.FunctionHook(lambda f: seen.update({f.epoch: f.values}), "epoch", made.means)])
    assert {epoch: float(values["mean/loss"]) for epoch, values in seen.items()} == {
        1: pytest.approx(VALUES.mean(), abs=1e-6), 2: pytest.approx(VALUES.mean(), abs=1e-6),
    }  # fmt: skip
    with pytest.raises(ValueError, match="smoothing_steps='epoch': .* not known"):
        hl.train.Loop(lambda s, b: (s, {"loss": b}), jnp.zeros(()), lambda: iter(VALUES), smoothing_steps="epoch")


@pytest.mark.parametrize("steps_per_run", [1, 4])
def test_means_cover_the_last_steps_and_are_exact_after_a_restart(steps_per_run, tmp_path):
    made = loop(steps_per_run=steps_per_run)
    look = Look(made, 1, 3, 7, 12)
    made.run(str(tmp_path), 13, progress=False, hooks=[look])
    made = loop(steps_per_run=steps_per_run)
    again = Look(made, 14, 16, 30)
    made.run(str(tmp_path), 30, progress=False, hooks=[again])
    seen = look.seen | again.seen
    assert list(seen) == [1, 3, 7, 12, 14, 16, 30]
    for number, means in seen.items():
        assert means["mean/loss"] == pytest.approx(wanted(number), rel=1e-5)
        assert means["mean/top/1"] == pytest.approx(2 * wanted(number), rel=1e-5)
        assert means["mean/count"] == pytest.approx(np.mean(range(number)[-5:]))


def test_recovery_restores_the_means(tmp_path):
    lose = RecordingHook(failures={"before_run": [None] * 8 + [AbortedError(None, None, "lost")]})
    made = loop()
    look = Look(made, 9, 12)
    made.run(
        str(tmp_path), 12, progress=False, hooks=[look, lose], checkpoints=hl.train.CheckpointOptions(save_steps=3)
    )
    assert {step: means["mean/loss"] for step, means in look.seen.items()} == {
        number: pytest.approx(wanted(number), rel=1e-5) for number in (9, 12)
    }


def test_changed_window_starts_again_with_a_log_line(tmp_path, caplog):
    loop(None).run(str(tmp_path), 4, progress=False)
    caplog.set_level(logging.INFO, "hookline")
    for over, last in ((5, 8), (3, 10)):
        made = loop(over)
        look = Look(made, last)
        made.run(str(tmp_path), last, progress=False, hooks=[look])
        assert f"the means over the last {over} steps start over" in caplog.text
        first = {8: 4, 10: 8}[last]
        assert look.seen[last]["mean/loss"] == pytest.approx(np.mean(VALUES[first:last]), rel=1e-5)
    loop(None).run(str(tmp_path), 11, progress=False)


def test_means_are_in_the_log_the_progress_line_and_the_summaries(tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO, "hookline")
    loop().run(str(tmp_path), 5, log_steps=4)
    assert f"mean/loss = {wanted(5):#.4g}" in caplog.text
    assert f"mean/loss {wanted(5):#.4g}" in capsys.readouterr().err
    tags = {value.tag for event in hl.testing.read_events(str(tmp_path)) for value in event.summary.value}
    assert {"mean/loss", "mean/top/1"} <= tags


def test_reading_a_mean_changes_nothing():
    made = loop()
    with made.session(None, 10, progress=False) as session:
        session.run(made.train_op)
        one, again = (session.run(made.means["mean/loss"]) for _ in range(2))
        session.run(made.train_op)
        after = session.run([made.train_op, made.means["mean/loss"]])[1]
    assert float(one) == pytest.approx((VALUES[0] + VALUES[1]) / 2)
    assert float(again) == pytest.approx((VALUES[0] + VALUES[2]) / 2), "each takes a batch, and none is kept"
    assert float(after) == pytest.approx(np.mean([VALUES[0], VALUES[3], VALUES[4]]))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="smoothing_steps >= 1, got 0"):
        loop(0)
    with pytest.raises(ValueError, match="smoothing_steps averages scalar metrics, and the step returns none"):
        hl.train.Loop(lambda s, b: (s, {}), jnp.zeros(()), [VALUES], smoothing_steps=5)
