"""Evaluations before the first step, and ones that act on the state: rates, coefficients, stops, the history."""

from __future__ import annotations

import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import hookline as hl

X = np.random.default_rng(0).normal(size=(160, 3)).astype("float32")
OPTIMIZER = optax.inject_hyperparams(optax.sgd)(0.25)
BAD = [3.0, 2.0, 2.5, 2.6, 1.0, 1.5, 1.6, 1.7, 1.8, 0.5]  # The loss of each evaluation: worse twice, then four times.


def train_step(state, batch):
    grads = {"w": jnp.mean(batch, axis=0) * state["beta"]}
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
    params = optax.apply_updates(state["params"], updates)
    return {**state, "params": params, "opt_state": opt_state, "n": state["n"] + 1}, {"loss": state["beta"]}


def eval_step(state, batch):
    return {"loss": jnp.asarray(BAD)[(state["n"] // 2) % len(BAD)] + 0.0 * batch.mean(), "n": state["n"]}


def looped(**arguments):
    params = {"w": jnp.zeros(3)}
    state = {"params": params, "opt_state": OPTIMIZER.init(params), "beta": jnp.ones(()), "n": jnp.zeros((), int)}
    return hl.train.Loop(train_step, state, hl.data.from_arrays(X, 4, shuffle_seed=0, epochs=None), **arguments)


def evaluating(**arguments):
    return hl.train.Evaluate(eval_step, hl.data.from_arrays(X, 80), every=2, **arguments)


def halving(told):
    def reduce_on_plateau(result):
        told.append((result.step, result.since_best["loss"]))
        if result.since_best["loss"] and result.since_best["loss"] % 2 == 0:
            result.state["learning_rate"] *= 0.5
        result.state["beta"] = 1.0 + result.step / 16

    return reduce_on_plateau


@pytest.mark.parametrize("name", ["values", "best", "since_best"])
def test_name_of_no_metric_is_answered_with_the_names(name):
    def look(result):
        jax.tree.map(float, result.values)  # They are plain dicts.
        getattr(result, name)["val_loss"]

    with pytest.raises(KeyError) as error:
        looped().run(last_step=2, hooks=[evaluating(on_result=look)], progress=False)
    assert "Available metrics: loss, n." in error.value.__notes__


@pytest.mark.parametrize("steps_per_run", [1, 8])
def test_rate_lowered_on_a_plateau_is_restored_from_each_checkpoint(tmp_path, steps_per_run):
    def run(folder, last_step, told):
        evaluate = evaluating(on_result=halving(told), keep_best="loss", on_start=True)
        loop = looped(steps_per_run=steps_per_run)
        state = loop.run(
            str(folder),
            last_step,
            hooks=[evaluate],
            checkpoints=hl.train.CheckpointOptions(save_steps=3, saver=hl.train.Saver(max_to_keep=None)),
            progress=False,
        )
        return state, evaluate, loop

    told = []
    wanted, evaluate, loop = run(tmp_path / "whole", 20, told)
    # At 0, 2, 4, ..., 18, and 20, where the series restarts.
    assert [since for _, since in told] == [0, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1]
    assert wanted["opt_state"].hyperparams["learning_rate"] == 0.25 / 8
    checkpoints = sorted(int(path.name.rpartition("-")[2]) for path in (tmp_path / "whole").glob("model.ckpt-*"))
    assert {0, 8, 9} < set(checkpoints)
    for step in (0, 8, 9):  # Step 8 is the best one, and was saved by the evaluation.
        name = f"model.ckpt-{step}"
        shutil.copytree(tmp_path / "whole" / name, tmp_path / str(step) / name)  # As after kill -9.
        again = []
        found, resumed, _ = run(tmp_path / str(step), 20, again)
        assert again == [each for each in told if each[0] > step]
        np.testing.assert_array_equal(found["params"]["w"], wanted["params"]["w"])
        assert resumed.history == evaluate.history
        assert resumed.best == evaluate.best
    # An orderly end between two evaluations, which evaluates, is no reason to act.
    again = []
    run(tmp_path / "twice", 7, again)
    found, _, _ = run(tmp_path / "twice", 20, again)
    assert again == told
    np.testing.assert_array_equal(found["params"]["w"], wanted["params"]["w"])
    assert loop.history["eval/loss"].steps == list(range(0, 21, 2))
    assert loop.history["eval/loss"].values[:10] == pytest.approx(BAD)


def test_sanity_run_fails_before_the_first_step_and_keeps_nothing(tmp_path, caplog):
    def broken():
        yield X[:80]
        raise OSError("the second file is gone")

    started = []
    count = hl.train.FunctionHook(lambda firing: started.append(firing.global_step), every=1)
    late = hl.train.Evaluate(eval_step, broken, every=2, sanity_batches=2)
    with pytest.raises(OSError, match="the second file is gone"):
        looped().run(last_step=4, hooks=[late, count], progress=False)
    assert started == []
    for last_step in (3, 4):
        caplog.clear()
        evaluate = evaluating(sanity_batches=1, on_result=lambda result: started.append(-result.step))
        with caplog.at_level(logging.INFO, "hookline"):
            looped().run(str(tmp_path), last_step, hooks=[evaluate], progress=False)
        assert "eval: the sanity run has passed (sanity_batches=1)." in caplog.messages
    assert started == [-2, -4]
    assert evaluate.history["loss"].steps == [2, 3, 4]


def test_evaluation_on_start_runs_once_and_may_be_best_and_stop(tmp_path):
    told = []
    for last_step in (3, 5):
        evaluate = evaluating(
            on_start=True, keep_best="n", mode="min", on_result=lambda result: told.append(result.step)
        )
        looped().run(str(tmp_path), last_step, hooks=[evaluate], progress=False)
    assert told == [0, 2, 4]
    assert hl.train.get_checkpoint_state(str(tmp_path)).best == str(tmp_path / "model.ckpt-0")
    assert evaluate.best["n"] == (0.0, 0)
    stopping = evaluating(on_start=True, on_result=lambda result: result.request_stop())
    assert looped().run(last_step=3, hooks=[stopping], progress=False)["n"] == 0
    stopping = evaluating(on_result=lambda result: result.values["loss"] < 1.2 and result.request_stop())
    assert looped().run(last_step=20, hooks=[stopping], progress=False)["n"] == 8


def test_nan_is_never_best_even_first_or_after_a_restart(tmp_path):
    def diverging(state, batch):
        return {"loss": jnp.where(state["n"] < 6, jnp.nan, 10.0 - state["n"])}

    told = []
    for last_step in (5, 12):
        evaluate = hl.train.Evaluate(diverging, [X], 2, on_result=lambda r: told.append((r.since_best, r.best)))
        looped().run(str(tmp_path), last_step, hooks=[evaluate], progress=False)
    assert [since["loss"] for since, _ in told] == [1, 2, 0, 0, 0, 0]
    assert [best.get("loss") for _, best in told][1:3] == [None, (4.0, 6)]


@pytest.mark.parametrize("ema", [None, 0.5])
def test_function_with_a_cadence_changes_the_state_without_recompilation(tmp_path, caplog, ema):
    loop = looped(ema=ema)

    def anneal(firing):
        state = loop.state_in(firing.context.session)
        assert firing.values == pytest.approx(float(state["beta"]))
        state["beta"] = state["beta"] * 0.5

    hook = hl.train.FunctionHook(anneal, hl.train.at_steps(3, 6), fetches=loop.metrics["loss"])
    with loop.session(
        str(tmp_path), 8, hooks=[hook], checkpoints=hl.train.CheckpointOptions(save_steps=3), progress=False
    ) as session:
        while not session.should_stop():
            with jax.log_compiles(session.raw_session().global_step > 3):
                session.run(loop.train_op)
    assert loop.result["beta"] == 0.25
    assert [line for line in caplog.messages if "ompil" in line] == []
    assert [float(hl.train.load(str(tmp_path), loop.result, step=step)["beta"]) for step in (3, 6)] == [0.5, 0.25]


def test_whole_state_can_be_loaded():
    loop = looped()

    def load(firing):
        session = firing.context.session
        with pytest.raises(ValueError, match="state"):
            loop.state.load({"w": 1.0}, session)
        state = session.snapshot([loop.state])["state"]
        loop.state.load({**state, "beta": np.float32(7.0)}, session)

    assert loop.run(last_step=4, hooks=[hl.train.FunctionHook(load, every=4)], progress=False)["beta"] == 7.0


def test_invalid_values_are_refused_by_name():
    loop = looped()
    errors = []

    def fail(firing):
        state = loop.state_in(firing.context.session)
        assert state["opt_state/hyperparams/learning_rate"] == state["hyperparams/learning_rate"] == 0.25
        assert state["params/w"].shape == (3,)
        for name, value in [("rate", 1.0), ("params/w", np.zeros(2)), ("n", 0.5), ("n", 2**40)]:
            with pytest.raises((KeyError, ValueError)) as raised:
                state[name] = value
            errors.append(str(raised.value))

    loop.run(last_step=1, hooks=[hl.train.FunctionHook(fail, every=1)], progress=False)
    rate, shape, dtype, large = errors
    assert large.startswith("'n' of the state is int32: ")
    assert "no array 'rate'. There are: beta, n, opt_state/count" in rate
    assert "'params/w' of the state is float32[3], and cannot be set to float64[2]" in shape
    assert "'n' of the state is int32[], and cannot be set to float64[]" in dtype

    scheduled = optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.0, 10))

    def step(state, batch):
        _, now = scheduled.update({"w": batch.mean()}, state["opt_state"])
        return {**state, "opt_state": now}, {}

    state = {"opt_state": scheduled.init({"w": jnp.zeros(())}), "a": {"b": jnp.zeros(2)}, "c": {"b": jnp.zeros(2)}}
    other = hl.train.Loop(step, state, [X] * 2)

    def change(firing):
        with pytest.raises(KeyError, match=r"several arrays 'b': a/b, c/b\. Give more of the name"):
            _ = other.state_in(firing.context.session)["b"]
        other.state_in(firing.context.session)["learning_rate"] = 0.5

    with pytest.raises(TypeError, match="'opt_state/hyperparams/learning_rate' of the state follows a schedule"):
        other.run(hooks=[hl.train.FunctionHook(change, every=1)], progress=False)


def test_rate_of_an_nnx_optimizer_can_be_set():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    def step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(batch) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    def lower(result):
        result.state["learning_rate"] = 0.125

    evaluate = hl.train.Evaluate(lambda model, batch: {"loss": jnp.mean(model(batch))}, [X], 2, on_result=lower)
    hl.train.Loop(step, (model, optimizer), hl.data.from_arrays(X, 4)).run(
        last_step=2, hooks=[evaluate], progress=False
    )
    assert optimizer.opt_state.hyperparams["learning_rate"][...] == 0.125


def test_history_equals_the_log_and_continues_over_restarts(tmp_path):
    for last_step in (4, 9):
        loop = looped()
        loop.run(str(tmp_path), last_step, log_steps=2, hooks=[evaluating(name="test")], progress=False)
    history = loop.history
    assert history["loss"] == ([1, 3, 5, 7, 9], [1.0] * 5)
    assert history["test/n"].steps == history["test/n"].values == [2, 4, 6, 8, 9]
    loop.run(last_step=10, log_steps=2, hooks=[evaluating(name="test")], progress=False)
    assert loop.history["test/n"].steps == [2, 4, 6, 8, 9, 10]
    assert looped().history == {}


def test_evaluation_in_a_users_graph_sets_variables():
    rate = hl.Variable(1.0, name="rate")
    step = hl.train.get_or_create_global_step().assign_add(1)

    def lower(result):
        with pytest.raises(RuntimeError, match=r"requires a train.Loop.*variable.load\(value, result.session\)"):
            _ = result.state
        rate.load(result.values["rate"] / 2, result.session)

    evaluate = hl.train.Evaluate({"rate": rate}, [{}], every=1, on_result=lower)
    with hl.train.MonitoredSession(hooks=[evaluate]) as session:
        session.run(step)
        session.run(step)
        rate.load(session.run(rate) + 1.0, session)
        assert session.run(rate) == 1.25
