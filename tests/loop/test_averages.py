from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import hookline as hl
from hookline.errors import AbortedError
from hookline.testing import RecordingHook

from .devices import run

X = np.random.default_rng(0).normal(1.0, 0.3, (64, 2)).astype("float32")
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
DECAY = 0.75


def begin():
    params = {"w": jnp.zeros(2), "b": jnp.zeros((), jnp.bfloat16)}
    return {"params": params, "opt": OPTIMIZER.init(params), "step": jnp.zeros((), int)}


@jax.jit
def step(state, batch):
    def loss_fn(params):
        return jnp.mean((params["w"] + params["b"].astype("float32") - batch) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "step": state["step"] + 1}, {"loss": loss}


def error(state, batch):
    return {"loss": jnp.mean((state["params"]["w"] - batch) ** 2), "steps": state["step"]}


def loop(**more):
    return hl.train.Loop(step, begin(), hl.data.from_arrays(X, 8, epochs=None), **{"ema": DECAY, **more})


def by_hand(steps):
    """Returns the parameters, and their averages, after a number of steps."""
    state = begin()
    average = jax.tree.map(lambda leaf: leaf.astype("float32"), state["params"])
    for number in range(steps):
        state, _ = step(state, X[8 * (number % 8) :][:8])
        average = jax.tree.map(lambda old, new: old - (1 - DECAY) * (old - new), average, state["params"])
    return state, average


def alike(found, wanted):
    return all(np.allclose(a, b, rtol=1e-5) for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True))


@pytest.mark.parametrize("more", [{}, {"steps_per_run": 4}, {"ema": {"params": DECAY}}], ids=["one", "several", "part"])
def test_averages_equal_a_manual_computation_also_after_a_restart(more, tmp_path):
    made = loop(**more)
    made.run(str(tmp_path), 3, progress=False)
    evaluate = hl.train.Evaluate(error, hl.data.from_arrays(X, 16), every=100, averaged=True)
    made = loop(**more)
    state = made.run(str(tmp_path), 10, progress=False, hooks=[evaluate])
    wanted, average = by_hand(10)
    assert alike(state["params"], wanted["params"])
    found = made.averaged_result
    assert alike(found["params"]["w"], average["w"])
    assert found["params"]["b"].dtype == jnp.bfloat16
    assert alike(found["params"]["b"].astype("float32"), average["b"].astype(jnp.bfloat16).astype("float32"))
    assert alike((found["opt"], found["step"]), (state["opt"], 10)), "the rest is that of the state"
    loaded = hl.train.load(str(tmp_path), like=begin(), averaged=True)
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded, found))
    assert evaluate.values["loss"] == pytest.approx(float(np.mean((np.asarray(average["w"]) - X) ** 2)), rel=1e-5)
    assert evaluate.values["steps"] == 10


def test_bits_are_the_same_after_a_recovery(tmp_path):
    alone = loop()
    alone.run(None, 8, progress=False)
    lose = RecordingHook(failures={"before_run": [None, None, None, AbortedError(None, None, "lost")]})
    lost = loop()
    lost.run(str(tmp_path), 8, progress=False, hooks=[lose], checkpoints=hl.train.CheckpointOptions(save_steps=2))
    assert jax.tree.all(jax.tree.map(np.array_equal, alone.averaged_result, lost.averaged_result))
    assert jax.tree.all(jax.tree.map(np.array_equal, alone.result, lost.result))


def test_best_checkpoint_may_be_chosen_by_the_averages(tmp_path):
    rides = [
        hl.train.Evaluate(error, hl.data.from_arrays(X, 16), every=2, averaged=True, name="averaged", keep_best="loss"),
        hl.train.Evaluate(error, hl.data.from_arrays(X, 16), every=2),
    ]
    loop().run(str(tmp_path), 12, progress=False, hooks=rides)
    averaged, plain = rides
    assert averaged.values["loss"] != plain.values["loss"]
    best = averaged.best["loss"]
    found = hl.train.load(str(tmp_path), begin()["params"], prefix="params", step="best", averaged=True)
    assert np.mean((np.asarray(found["w"]) - X) ** 2) == pytest.approx(best.value, rel=1e-5)


def test_skipped_updates_move_no_average():
    poisoned = X.copy()
    poisoned[8:16] = np.nan
    made = hl.train.Loop(step, begin(), hl.data.from_arrays(poisoned, 8), ema=DECAY)
    made.run(None, 3, progress=False, on_nan="skip")
    assert np.isfinite(made.averaged_result["params"]["w"]).all()


def test_averaged_nnx_objects_are_new(tmp_path):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(2, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.norm(self.linear(x)))

    def train_step(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(batch) - batch) ** 2))(model)
        optimizer.update(model, grads)
        return {"loss": loss}

    def eval_step(model, batch):
        model.eval()
        return {"loss": jnp.mean((model(batch) - batch) ** 2)}

    def objects():
        model = Net(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    given = objects()
    made = hl.train.Loop(train_step, given, hl.data.from_arrays(X, 8, epochs=None), ema=0.5)
    evaluate = hl.train.Evaluate(eval_step, hl.data.from_arrays(X, 16), every=100, averaged=True)
    made.run(str(tmp_path), 4, progress=False, hooks=[evaluate])
    model, optimizer = made.averaged_result
    assert model is not given[0]
    assert int(optimizer.step[...]) == 4
    assert not np.array_equal(model.linear.kernel[...], given[0].linear.kernel[...])
    loaded = hl.train.load(str(tmp_path), objects()[0], prefix="0", averaged=True)
    assert np.array_equal(loaded.linear.kernel[...], model.linear.kernel[...])
    assert np.array_equal(loaded.norm.mean[...], model.norm.mean[...])
    assert float(eval_step(model, X)["loss"]) == pytest.approx(evaluate.values["loss"], rel=1e-5)


def test_parameters_of_a_lookahead_are_averaged():
    begin = {"params": optax.LookaheadParams.init_synced({"w": jnp.zeros(2)})}
    move = lambda state, batch: (jax.tree.map(lambda leaf: leaf + 1, state), {})  # noqa: E731
    made = hl.train.Loop(move, begin, hl.data.from_arrays(X, 8), ema=0.5)
    made.run(None, 1, progress=False)
    assert float(made.averaged_result["params"].slow["w"][0]) == 0.5


def test_averages_start_at_the_values_of_a_warm_start(tmp_path):
    hl.train.Loop(step, begin(), hl.data.from_arrays(X, 8)).run(str(tmp_path), 4, progress=False)
    old = hl.train.load(str(tmp_path), begin())
    made = loop(ema=0.5)
    made.run(None, 1, progress=False, warm_start=str(tmp_path))
    new = made.result["params"]["w"]
    assert np.allclose(made.averaged_result["params"]["w"], (old["params"]["w"] + new) / 2, rtol=1e-5)


@pytest.mark.campaign
def test_averages_work_on_a_mesh(tmp_path):
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np, optax
        import hookline as hl

        mesh = jax.make_mesh((4,), ("data",))
        rows, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())
        tx = optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)

        def begin():
            params = {"w": jnp.ones((8, 3)), "b": jnp.ones(3)}
            return {"params": params, "opt": tx.init(params), "step": jnp.zeros((), int)}

        def step(state, batch):
            loss_fn = lambda p: jnp.mean((batch @ p["w"] + p["b"]) ** 2)
            loss, grads = jax.value_and_grad(loss_fn)(state["params"])
            updates, opt = tx.update(grads, state["opt"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "opt": opt, "step": state["step"] + 1}, {"loss": loss}

        x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
        places = jax.tree.map(lambda leaf: rows if leaf.ndim == 2 else whole, jax.eval_shape(begin))
        def loop(**more):
            return hl.train.Loop(step, begin, hl.data.from_arrays(x, 8, epochs=None), sharding=places, ema=0.9, **more)
        evaluate = lambda state, batch: {"loss": jnp.mean((batch @ state["params"]["w"]) ** 2)}
        for last, steps in ((3, 1), (6, 2)):
            made = loop(smoothing_steps=3, steps_per_run=steps)
            rides = [hl.train.Evaluate(evaluate, hl.data.from_arrays(x, 16), every=2, averaged=True)]
            script = hl.train.CheckpointOptions(restore_hyperparams=False)
            made.run(sys.argv[1], last, progress=False, hooks=rides, checkpoints=script)
        alone = loop()
        alone.run(None, 6, progress=False)
        found = made.averaged_result
        assert jax.tree.all(jax.tree.map(np.array_equal, alone.averaged_result, found))
        assert found["params"]["w"].sharding == rows
        loaded = hl.train.load(sys.argv[1], jax.eval_shape(begin), averaged=True, sharding=places)
        assert np.array_equal(loaded["params"]["w"], found["params"]["w"])
        assert loaded["params"]["w"].sharding == rows
        warm = hl.train.WarmStart(sys.argv[1], opt_state=True)
        state = loop().run(None, 7, progress=False, warm_start=warm)
        assert (int(state["step"]), state["params"]["w"].sharding) == (7, rows)
    """
    run(4, ["-c", textwrap.dedent(code), str(tmp_path)])


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="decay from 0 to below 1 as ema, such as 0.999, got 1"):
        loop(ema=1)
    with pytest.raises(ValueError, match="at least one part of the state as ema, got an empty dict"):
        loop(ema={})
    with pytest.raises(TypeError, match="ema"):
        loop(ema="params")
    with pytest.raises(
        ValueError, match="ema names the part 'parms', and the state has no floating .* params/b, params/w"
    ):
        loop(ema={"parms": 0.9})
    with pytest.raises(ValueError, match="the state has none outside its optimizer"):
        hl.train.Loop(lambda s, b: (s, {}), {"n": jnp.zeros((), int)}, [X], ema=0.9)
    evaluate = hl.train.Evaluate(error, hl.data.from_arrays(X, 16), every=1, averaged=True)
    with pytest.raises(ValueError, match="Evaluate 'eval' requires train.Loop"):
        loop(ema=None).run(None, 1, progress=False, hooks=[evaluate])
    with pytest.raises(ValueError, match="takes averaged=True with a function"):
        hl.train.Evaluate({"a": hl.constant(1.0)}, [{}], every=1, averaged=True)
    loop().run(str(tmp_path / "a"), 1, progress=False)
    like = {"w": jnp.zeros(2, jnp.bfloat16), "b": jnp.zeros((), jnp.bfloat16)}
    with pytest.raises(hl.errors.InvalidArgumentError, match="w has dtype float32 in the checkpoint, bfloat16 in like"):
        hl.train.load(str(tmp_path / "a"), like, prefix="params", averaged=True)
    with pytest.raises(ValueError, match="requires a `like` where averaged=True"):
        hl.train.load(str(tmp_path / "a"), averaged=True)
    loop(ema=None).run(str(tmp_path), 1, progress=False)
    with pytest.raises(hl.errors.NotFoundError, match="holds no moving averages of 'state/params'"):
        hl.train.load(str(tmp_path), begin()["params"], prefix="params", averaged=True)
    with pytest.raises(hl.errors.NotFoundError, match="missing in the checkpoint: average"):
        loop().run(str(tmp_path), 2, progress=False)
