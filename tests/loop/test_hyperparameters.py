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
from hookline.errors import AbortedError
from hookline.testing import RecordingHook

X = np.ones((4, 2), "float32")
SCRIPT = hl.train.CheckpointOptions(restore_hyperparams=False)


def step(state, batch):
    loss, grads = jax.value_and_grad(lambda params: jnp.mean((params["w"] - batch) ** 2))(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


def loop_state(rate):
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=rate, momentum=0.5)
    return TrainState.create(apply_fn=None, params={"w": jnp.zeros(2)}, tx=tx)


def loop(rate, make=None, **more):
    """A loop with this learning rate; `make` makes something of the function that makes its state."""
    begin = lambda: loop_state(rate)  # noqa: E731
    return hl.train.Loop(step, begin() if make is None else make(begin), hl.data.from_arrays(X, 2, epochs=None), **more)


def rate_of(state):
    return float(state.opt_state.hyperparams["learning_rate"])


def told(caplog):
    return [r.getMessage() for r in caplog.records if "learning_rate" in r.getMessage() and "script" in r.getMessage()]


@pytest.mark.parametrize("make", [None, lambda begin: begin], ids=["a state", "a function"])
def test_restored_rate_is_logged_and_the_scripts_is_used_on_request(make, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    run = lambda rate, last, **more: loop(rate, make).run(str(tmp_path), last, progress=False, **more)  # noqa: E731
    run(0.01, 1)
    assert told(caplog) == [], "a training that begins"
    assert rate_of(run(0.5, 2)) == pytest.approx(0.01)
    assert told(caplog) == [
        "Loop: learning_rate (opt_state/hyperparams/learning_rate) is 0.01, as in the checkpoint; in the script it is "
        "0.5. CheckpointOptions(restore_hyperparams=False) takes the script's."
    ]
    caplog.clear()
    assert rate_of(run(0.5, 3, checkpoints=SCRIPT)) == pytest.approx(0.5)
    assert told(caplog) == [
        "Loop: learning_rate (opt_state/hyperparams/learning_rate) is 0.5, as in the script; in the checkpoint it is "
        "0.01."
    ]
    caplog.clear()
    assert rate_of(run(0.5, 4)) == pytest.approx(0.5)
    assert told(caplog) == [], "both say the same"


def test_restored_rate_is_printed_unless_nothing_is_trained(tmp_path, capsys):
    loop(0.01).run(str(tmp_path), 1)
    assert "in the script" not in capsys.readouterr().err
    for _ in range(2):
        loop(0.5).run(str(tmp_path), 2)
    start, rate, *others = capsys.readouterr().err.splitlines()
    assert start.startswith("restored step 1 from ")
    assert rate == (
        "learning_rate (opt_state/hyperparams/learning_rate) is 0.01, as in the checkpoint; in the script it is 0.5. "
        "CheckpointOptions(restore_hyperparams=False) takes the script's."
    )
    assert not any("in the script" in line for line in others)


def test_rate_in_memory_may_be_the_scripts_on_request(tmp_path, caplog):
    loop(0.5).run(str(tmp_path), 1, progress=False)
    made = loop(0.01)
    made.run(str(tmp_path), 1, progress=False)
    caplog.set_level(logging.INFO, "hookline")
    assert rate_of(made.run(None, 2, progress=False)) == pytest.approx(0.5)
    assert rate_of(made.run(None, 3, progress=False, checkpoints=SCRIPT)) == pytest.approx(0.01)
    assert [text.partition(") ")[2] for text in told(caplog)] == [
        "is 0.5, as in the previous run; in the script it is 0.01. CheckpointOptions(restore_hyperparams=False) takes "
        "the script's.",
        "is 0.01, as in the script; in the previous run it is 0.5.",
    ]


def test_recovery_keeps_the_scripts_rate(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    loop(0.01).run(str(tmp_path), 1, progress=False)
    lose = RecordingHook(failures={"before_run": [None, AbortedError(None, None, "lost")]})
    found = loop(0.5).run(
        str(tmp_path),
        5,
        progress=False,
        checkpoints=SCRIPT,
        hooks=[lose],
    )
    assert rate_of(found) == pytest.approx(0.5)
    by_hand = loop(0.01).run(None, 1, progress=False)
    by_hand.opt_state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    for place in (1, 0, 1, 0):
        by_hand = step(by_hand, X[2 * place : 2 * place + 2])[0]
    assert np.allclose(found.params["w"], by_hand.params["w"])


def test_rate_changed_by_a_hook_or_schedule_is_not_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    for last in (1, 2):
        found = loop(optax.linear_schedule(0.0, 1.0, 10)).run(str(tmp_path), last, progress=False, checkpoints=SCRIPT)
    assert rate_of(found) == pytest.approx(0.1), "the schedule goes on"
    assert told(caplog) == []


def test_nnx_optimizers_have_hyperparameters(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")

    def train_step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(batch) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    for rate, last in ((0.01, 1), (0.1, 2)):
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=rate), wrt=nnx.Param)
        loop = hl.train.Loop(train_step, (model, optimizer), hl.data.from_arrays(X, 2, epochs=None))
        loop.run(str(tmp_path), last, progress=False)
    assert [text.split(",")[0] for text in told(caplog)] == [
        "Loop: learning_rate (1/opt_state/hyperparams/learning_rate) is 0.01"
    ]
    assert "learning_rate" in loop.metrics


def test_rate_is_a_metric_that_the_step_need_not_return(caplog):
    caplog.set_level(logging.INFO, "hookline")
    rates = []

    class Look(hl.train.SessionRunHook):
        def __init__(self, loop):
            self.trigger, self.fetches = hl.train.every(1), loop.metrics["learning_rate"]

        def on_trigger(self, firing):
            rates.append(float(firing.values))

    schedule = optax.linear_schedule(1.0, 0.0, 10)
    injected = loop(schedule)
    injected.run(None, 3, progress=False, hooks=[Look(injected)])
    assert rates == pytest.approx([1.0, 0.9, 0.8]), "those of the steps"
    assert [r.getMessage().split(" = ")[0] for r in caplog.records if "step 1:" in r.getMessage()] == [
        "step 1: learning_rate"
    ]
    rates.clear()
    plain = TrainState.create(apply_fn=None, params={"w": jnp.zeros(2)}, tx=optax.adam(schedule))
    given = hl.train.Loop(step, plain, hl.data.from_arrays(X, 2, epochs=None), learning_rate=schedule, steps_per_run=2)
    given.run(None, 3, progress=False, hooks=[Look(given)])
    assert rates == pytest.approx([1.0, 0.9, 0.8])


def test_schedule_without_a_counter_uses_the_global_step(tmp_path):
    def by_hand(state, batch):
        return state - 0.1, {}

    make = lambda: hl.train.Loop(  # noqa: E731
        by_hand, jnp.ones(()), [np.ones(1)] * 4, learning_rate=optax.linear_schedule(1.0, 0.0, 10)
    )
    make().run(str(tmp_path), 2, progress=False)
    with make().session(str(tmp_path), progress=False) as session:
        given = session.raw_session().graph.get_collection("hookline/loop")[0]
        assert float(session.run([given.train_op, given.metrics["learning_rate"]])[1]) == pytest.approx(0.8)


def test_schedule_uses_the_counter_of_a_part_of_the_state():
    def by_hand(weights, optimizer, batch):
        return weights, {"step": optimizer["step"] + 2}, {}

    state = {"weights": jnp.ones(()), "optimizer": {"step": jnp.zeros((), int)}}
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    made = hl.train.Loop(by_hand, state, [np.ones(1)] * 4, learning_rate=schedule)
    with made.session(progress=False) as session:
        for wanted in (1.0, 0.8):
            assert float(session.run([made.train_op, made.metrics["learning_rate"]])[1]) == pytest.approx(wanted)


def test_added_rate_metric_is_not_checked_for_nan(caplog):
    silent = hl.train.Loop(lambda s, b: (step(s, b)[0], {}), loop_state(0.1), hl.data.from_arrays(X, 2, epochs=None))
    silent.run(None, 1, progress=False)
    assert "learning_rate" in silent.metrics
    assert "no metric is called a loss" not in caplog.text


def test_state_without_hyperparameters_gives_a_warning(caplog):
    hl.train.Loop(lambda s, b: (s, {}), jnp.ones(()), [X]).run(None, progress=False, checkpoints=SCRIPT)
    assert "restore_hyperparams=False) has no effect: the state has no hyperparameters of optax.inject" in caplog.text


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="True or False as restore_hyperparams, got 'mine'"):
        hl.train.CheckpointOptions(restore_hyperparams="mine")
    with pytest.raises(TypeError, match="requires a schedule as learning_rate, .* got 0.1"):
        loop(0.1, learning_rate=0.1)
    with pytest.raises(TypeError, match="returns one number for a count, and <lambda> does not"):
        loop(0.1, learning_rate=lambda count: jnp.ones(2))
    for schedule in (lambda: 1, lambda count: "low"):
        with pytest.raises(TypeError, match="returns one number for a count, and <lambda> does not: "):
            loop(0.1, learning_rate=schedule)
    with pytest.raises(ValueError, match="the step returns a metric of that name already"):
        hl.train.Loop(lambda s, b: (s, {"learning_rate": s}), jnp.ones(()), [X], learning_rate=lambda count: 0.1)
