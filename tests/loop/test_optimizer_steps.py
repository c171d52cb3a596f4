"""Optimizer steps when a step accumulates gradients, or has several optimizers."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import hookline as hl
from hookline.testing import read_events

X = np.random.default_rng(0).normal(10.0, 1.0, (64, 2)).astype("float32")
DECAY = 0.75
SCHEDULE = optax.linear_schedule(0.5, 0.0, 10)


def loss_fn(params, batch):
    return jnp.mean((params["w"] - batch) ** 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, batch)
    return state.apply_gradients(grads=grads), {"loss": loss}


def begin(tx):
    return TrainState.create(apply_fn=None, params={"w": jnp.zeros(2)}, tx=tx)


def multi_steps(inner, steps=4, **more):
    return optax.MultiSteps(inner, steps, **more).gradient_transformation()


def loop(state, step=train_step, data=X, **more):
    return hl.train.Loop(step, state, hl.data.from_arrays(data, 2, epochs=None), **more)


def average(step, state, params_of, updated, steps, data=X):
    """Returns the average by hand, updated after the steps for which `updated` is true."""
    found = params_of(state)
    for number in range(steps):
        before, (state, _) = state, step(state, data[2 * number : 2 * number + 2])
        if updated(before, state):
            found = optax.incremental_update(params_of(state), found, 1 - DECAY)
    return found


def near(found, wanted):
    return jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-5), found, wanted))


class Seen(hl.train.SessionRunHook):
    """Returns a metric after each step."""

    def __init__(self, fetches):
        self.trigger, self.fetches, self.values = hl.train.every(1), fetches, []

    def on_trigger(self, firing):
        self.values.append(jax.tree.map(float, firing.values))


OPTIMIZERS = {
    "sgd": multi_steps(optax.sgd(0.1)),
    "a function": multi_steps(optax.adam(0.1), lambda count: jnp.where(count < 2, 1, 3)),
    "in a chain": optax.chain(optax.clip(1.0), multi_steps(optax.adamw(SCHEDULE), 3)),
    "skipped": multi_steps(optax.sgd(0.1), should_skip_update_fn=optax.skip_not_finite),
    "if finite": optax.apply_if_finite(multi_steps(optax.sgd(0.1), 2), 100),
    "in another": multi_steps(multi_steps(optax.sgd(0.1), 3), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_averages_are_updated_with_the_parameters(name, tmp_path):
    tx, data = OPTIMIZERS[name], X.copy()
    data[6] = np.nan if name in ("skipped", "if finite") else 1
    moved = lambda before, after: not np.array_equal(before.params["w"], after.params["w"])  # noqa: E731
    wanted = average(jax.jit(train_step), begin(tx), lambda state: state.params, moved, 14, data)
    assert not near(wanted, begin(tx).params)
    for last, steps_per_run in ((5, 1), (14, 4)):  # It goes on after a restart in the middle of an optimizer step.
        made = loop(begin(tx), data=data, ema=DECAY, steps_per_run=steps_per_run)
        made.run(str(tmp_path), last, progress=False, nan_check=None)
    assert near(made.averaged_result.params, wanted)


def test_nnx_optimizers_have_optimizer_steps():
    def step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(batch) - 1) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    tx = optax.MultiSteps(optax.adam(SCHEDULE), 4)
    kernel = model.kernel[...]
    made = loop((model, nnx.Optimizer(model, tx, wrt=nnx.Param)), step, ema=DECAY, learning_rate=SCHEDULE)
    seen = Seen([made.metrics["learning_rate"], made.metrics["optimizer_step"]])
    made.run(None, 5, progress=False, hooks=[seen])
    assert np.ravel(seen.values) == pytest.approx(np.ravel([[0.5, 0]] * 3 + [[0.5, 1], [0.45, 1]]))
    assert near(made.averaged_result[0].kernel[...], DECAY * kernel + (1 - DECAY) * model.kernel[...])


def test_counter_of_optimizer_steps_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    made = loop(begin(multi_steps(optax.adam(SCHEDULE))), ema=DECAY, learning_rate=SCHEDULE)
    assert "gets opt_state/inner_opt_state/1/count." in caplog.text
    told = "ptimizer steps are counted by opt_state/gradient_step (optax.MultiSteps); ema and optimizer_step go by that"
    assert f"Loop: o{told}" in caplog.text
    assert f"\nO{told}" in str(made.describe())
    made.run(str(tmp_path), 9, progress=False, logging=hl.train.LoggingOptions(summary_steps=4))
    points = [
        (e.step, v.simple_value)
        for e in read_events(str(tmp_path))
        for v in e.summary.value
        if v.tag == "optimizer_step"
    ]
    assert points == [(1, 0), (5, 1), (9, 2)]
    assert "optimizer_step" not in loop(begin(optax.adam(0.1)), ema=DECAY).metrics, "where each step is one"


def gan(generator, critic):
    """Two train states; the step of each goes towards the batch."""

    def step(g, d, batch):
        return train_step(g, batch)[0], train_step(d, batch)[0], {}

    return step, (begin(generator), begin(critic))


def test_average_of_each_part_is_updated_with_its_optimizer():
    step, state = gan(multi_steps(optax.sgd(0.1), 3), multi_steps(optax.sgd(0.1), 2))
    made = loop(state, step, ema=DECAY)
    seen = Seen({name: made.metrics[f"optimizer_step/{name}"] for name in "gd"})
    made.run(None, 7, progress=False, hooks=[seen])
    assert seen.values[-1] == {"g": 2, "d": 3}
    for found, one, k in zip(made.averaged_result, state, (3, 2), strict=True):
        ended = lambda before, after, k=k: after.step % k == 0  # noqa: E731
        assert near(found.params, average(train_step, one, lambda state: state.params, ended, 7))
    step, state = gan(optax.sgd(0.1), multi_steps(optax.sgd(0.1), 2))
    made = loop(state, step, ema=DECAY, steps_per_update=2)
    made.run(None, 4, progress=False)
    wanted = average(train_step, state[0], lambda state: state.params, lambda *_: True, 4)
    assert near(made.averaged_result[0].params, wanted), "it accumulates nothing"


def test_ambiguous_counters_are_refused():
    tx = multi_steps(optax.sgd(0.1), 2), multi_steps(optax.sgd(0.1), 3)

    def step(params, critic, opt_state, critic_opt, batch):
        return params, critic, opt_state, critic_opt, {}

    params = {"w": jnp.zeros(2)}
    state = params, params, *(one.init(params) for one in tx)
    with pytest.raises(
        ValueError, match=r"may be 2 or 3 \(counts .*: 2/gradient_step, 3/gradient_step\).*steps_per_up"
    ):
        loop(state, step, ema=DECAY)
    assert set(loop(state, step).metrics) == {"optimizer_step/opt_state", "optimizer_step/critic_opt"}
    assert loop(state, step, ema=DECAY, steps_per_update=2).averaged is not None


def test_user_step_may_declare_its_counter(caplog):
    def step(state, batch):  # It counts its updates, and accumulates gradients in two steps.
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
        total = jax.tree.map(jnp.add, state["total"], grads)
        ends = state["calls"] % 2 == 1
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(ends, a, b), new, old)  # noqa: E731
        params = jax.tree.map(lambda w, g: w - 0.1 * g, state["params"], total)
        after = {"params": pick(params, state["params"]), "total": pick(jax.tree.map(jnp.zeros_like, total), total)}
        return after | {"calls": state["calls"] + 1, "step": state["step"] + ends}, {"loss": loss}

    params = {"w": jnp.zeros(2)}
    state = {"params": params, "total": params, "calls": jnp.zeros((), int), "step": jnp.zeros((), int)}
    made = loop(state, step, ema={"params": DECAY}, steps_per_update=2)
    seen = Seen(made.metrics["optimizer_step"])
    made.run(None, made.step_of_update(4) + 1, progress=False, hooks=[seen])
    assert seen.values == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert int(made.result["step"]) == 4
    wanted = average(jax.jit(step), state, lambda state: state["params"], lambda a, b: b["step"] > a["step"], 9)
    assert near(made.averaged_result["params"], wanted)
    made.run(None, 101, progress=False)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and "counts" in r.getMessage()]


@pytest.mark.parametrize("k", [4, lambda count: jnp.where(count < 2, 1, 3)], ids=["a number", "a function"])
def test_training_may_end_and_evaluate_at_optimizer_steps(k, caplog):
    made = loop(begin(multi_steps(optax.sgd(0.1), k)), steps_per_update=k)
    seen = Seen(made.metrics["optimizer_step"])
    seen.trigger = hl.train.at_steps(*map(made.step_of_update, (1, 2, 5, 40)))
    state = made.run(None, made.step_of_update(40), progress=False, hooks=[seen])
    assert seen.values == [1, 2, 5, 40]
    assert (int(state.opt_state.mini_step), int(state.opt_state.gradient_step)) == (0, 40)
    assert "steps_per_update" not in caplog.text


@pytest.mark.parametrize("tx", [multi_steps(optax.sgd(0.1), 2), optax.adam(0.1)], ids=["another", "none"])
def test_wrong_steps_per_update_are_logged_once(tx, caplog):
    loop(begin(tx), steps_per_update=4).run(None, 201, progress=False)
    said = [r.getMessage() for r in caplog.records if "steps_per_update" in r.getMessage()]
    assert len(said) == 1
    assert "25 optimizer steps up to the global step 101, and the optimizer has counted" in said[0]


def test_each_of_two_optimizers_has_a_learning_rate():
    low = optax.linear_schedule(0.25, 0.0, 10)
    step, state = gan(optax.adam(SCHEDULE), multi_steps(optax.adam(low), 2))
    with pytest.raises(ValueError, match=r"the state has 2: 0/opt_state, 1/opt_state. .*=\{'g': ..., 'd': ...\}\."):
        loop(state, step, learning_rate=SCHEDULE)
    made = loop(state, step, learning_rate={"g": SCHEDULE, "1/opt_state": low})
    seen = Seen([made.metrics["learning_rate/g"], made.metrics["learning_rate/1/opt_state"]])
    made.run(None, 3, progress=False, hooks=[seen])
    assert np.ravel(seen.values) == pytest.approx([0.5, 0.25, 0.45, 0.25, 0.4, 0.225])
    with pytest.raises(ValueError, match="the part 'x', and the state has no optimizers .* has: 0/opt_state, 1/opt_s"):
        loop(state, step, learning_rate={"x": low})
    with pytest.raises(ValueError, match="at least one optimizer as learning_rate, got an empty dict"):
        loop(state, step, learning_rate={})
    step, state = gan(*(optax.inject_hyperparams(optax.sgd)(learning_rate=rate) for rate in (0.1, 0.2)))
    assert {"learning_rate/g", "learning_rate/d"} <= loop(state, step).metrics.keys()
    pair = {"opt_state": tuple(optax.adam(SCHEDULE).init(jnp.zeros(2)) for _ in "ab")}
    with pytest.raises(ValueError, match="has 2: opt_state/0, opt_state/1"):
        loop(pair, lambda state, batch: (state, {}), learning_rate=SCHEDULE)


def test_wrong_arguments_are_refused():
    state = begin(multi_steps(optax.sgd(0.1)))
    for wrong, kind, message in (
        (0, ValueError, "steps_per_update"),
        (2.5, TypeError, "steps_per_update"),
        (lambda count: 0.5, TypeError, "to an integer as steps_per_update, and <lambda> returns float32"),
    ):
        with pytest.raises(kind, match=message):
            loop(state, steps_per_update=wrong)
    with pytest.raises(ValueError, match="a function as steps_per_update if the state has the count of optax.MultiS"):
        loop(begin(optax.sgd(0.1)), steps_per_update=lambda count: 2)
    with pytest.raises(ValueError, match="numbers above 0 from steps_per_update, got 0"):
        loop(state, steps_per_update=lambda count: 0).step_of_update(1)
    with pytest.raises(
        ValueError, match=r"opt_state/gradient_step \(optax.MultiSteps\) does not say how many.*such as 4"
    ):
        loop(state).step_of_update(1)
    with pytest.raises(ValueError, match="update"):
        loop(state, steps_per_update=4).step_of_update(-1)
    assert loop(begin(optax.sgd(0.1))).step_of_update(7) == 7
