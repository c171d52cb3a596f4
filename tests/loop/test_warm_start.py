from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline.train import WarmStart

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
OPTIMIZER = optax.adam(1e-2)


def state(**params):
    """A state of parts of these sizes, all of ones, with its optimizer."""
    params = {name: {"w": jnp.ones(size)} for name, size in params.items()}
    return {"params": params, "opt": OPTIMIZER.init(params), "step": jnp.zeros((), int)}


def train_step(state, batch):
    loss, grads = jax.value_and_grad(
        lambda params: sum(jnp.mean((leaf - batch.mean()) ** 2) for leaf in jax.tree.leaves(params))
    )(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "step": state["step"] + 1}, loss


def loop(begin, **more):
    return hl.train.Loop(train_step, begin, hl.data.from_arrays(X, batch_size=8, epochs=None), **more)


def train(begin, logdir, last_step=2, **more):
    return loop(begin).run(logdir and str(logdir), last_step=last_step, progress=False, **more)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("old") / "run"
    return str(logdir), train(state(body=3, head=2), logdir, 3)


def log_of(caplog, level=logging.INFO):
    return [r.getMessage() for r in caplog.records if r.levelno == level and "Warm start" in r.getMessage()]


def test_matching_values_are_restored_and_all_names_logged(old, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hookline")
    logdir, trained = old
    found = train(state(body=3, head=5, neck=2), tmp_path, 1, warm_start=logdir)
    alone = train(state(body=3, head=5, neck=2), None, 1)
    assert np.allclose(found["params"]["body"]["w"], trained["params"]["body"]["w"], atol=0.011), "one step on"
    assert np.array_equal(found["params"]["head"]["w"], alone["params"]["head"]["w"])
    assert (int(found["step"]), int(found["opt"][0].count)) == (1, 1), "the optimizer and the steps start over"
    assert log_of(caplog) == [
        f"Warm start from '{logdir}/model.ckpt-3'. Restored: params/body/w. Initialized: params/head/w, params/neck/w; "
        f"opt (7 arrays), step (opt_state=True restores these). Left in the checkpoint: opt (5 arrays), params/head/w, "
        f"step."
    ]
    assert log_of(caplog, logging.WARNING) == [
        f"Warm start from '{logdir}/model.ckpt-3': params/head/w is float32[2] in the checkpoint and float32[5] in the "
        "state. So these are initialized."
    ]


def test_training_resumes_from_its_own_checkpoint_without_a_warm_start(old, tmp_path, caplog):
    first = train(state(body=3, head=2), tmp_path, 2)
    caplog.set_level(logging.INFO, "hookline")
    found = train(state(body=3, head=2), tmp_path, 2, warm_start="no/such/run")
    assert jax.tree.all(jax.tree.map(np.array_equal, first, found))
    assert log_of(caplog) == []


def test_part_may_be_renamed(old, tmp_path):
    logdir, trained = old
    warm = WarmStart(logdir, {"params/body": "params/encoder/", "/": "/"})
    begun = {}

    class Look(hl.train.SessionRunHook):
        def after_create_session(self, session, coord):
            begun.update(session.snapshot()["state"])

    train(state(encoder=3, head=2), tmp_path, 1, warm_start=warm, hooks=[Look()])
    assert np.array_equal(begun["params"]["encoder"]["w"], trained["params"]["body"]["w"])
    assert np.array_equal(begun["params"]["head"]["w"], trained["params"]["head"]["w"])


def test_changed_model_continues_with_the_slots(old, tmp_path):
    logdir, trained = old
    found = train(state(body=3, head=2, neck=1), tmp_path / "a", 4, warm_start=WarmStart(logdir, opt_state=True))
    by_hand = train_step(trained, X[:8])[0]
    assert (int(found["step"]), int(found["opt"][0].count)) == (4, 4)
    assert hl.train.latest_checkpoint(str(tmp_path / "a")).endswith("-4")
    for one, other in ((found["opt"][0].mu, by_hand["opt"][0].mu), (found["params"], by_hand["params"])):
        assert np.allclose(one["body"]["w"], other["body"]["w"], rtol=1e-5)


def test_step_may_be_chosen(tmp_path):
    train(state(body=3), tmp_path / "a", 4, checkpoints=hl.train.CheckpointOptions(save_steps=2))
    early = hl.train.load(str(tmp_path / "a"), state(body=3), step=2)
    averages = loop(state(body=3), ema=0.0)
    averages.run(None, 1, progress=False, warm_start=WarmStart(str(tmp_path / "a"), step=2))
    assert np.allclose(averages.result["params"]["body"]["w"], early["params"]["body"]["w"], atol=0.0101)
    with pytest.raises(hl.errors.NotFoundError, match="has no checkpoint of step 3. It has those of"):
        train(state(body=3), None, 1, warm_start=WarmStart(str(tmp_path / "a"), step=3))


def test_variables_of_a_graph_are_restored_by_name(tmp_path):
    with hl.Graph().as_default(), hl.Session() as session:
        hl.Variable(np.full(3, 7.0, "float32"), name="params/body/w")
        session.run(hl.global_variables_initializer())
        path = hl.train.Saver().save(session, str(tmp_path / "model.ckpt"), 1)
    found = train(state(body=3), None, 1, warm_start=path)
    assert np.allclose(found["params"]["body"]["w"], 7.0, atol=0.0101)


def test_mismatches_of_an_own_checkpoint_are_named_with_the_remedy(old):
    logdir, _ = old
    with pytest.raises(hl.errors.NotFoundError) as error:
        train(state(body=3, head=5, neck=2), logdir, 4)
    text = str(error.value)
    assert "missing in the checkpoint: state/params/neck/w" in text
    assert "different: state/params/head/w has shape (2,) in the checkpoint, (5,) in the graph" in text
    assert text.endswith(
        f"Begin a new training with the arrays that fit, in another directory: run(another, warm_start={logdir!r}); "
        f"see train.WarmStart."
    )
    with pytest.raises(hl.errors.InvalidArgumentError, match="Begin a new training with the arrays that fit"):
        train(state(body=3, head=5), logdir, 4)


def test_averages_added_to_a_training_need_no_new_optimizer(old, tmp_path, caplog):
    logdir, _ = old
    with pytest.raises(hl.errors.NotFoundError, match="missing in the checkpoint: average") as error:
        loop(state(body=3, head=2), ema=0.5).run(logdir, 4, progress=False)
    assert str(error.value).endswith(f"run(another, warm_start=train.WarmStart({logdir!r}, opt_state=True)).")
    with pytest.raises(hl.errors.NotFoundError, match="Begin a new training with the arrays that fit"):
        loop(state(body=3, head=2, neck=1), ema=0.5).run(logdir, 4, progress=False)
    with pytest.raises(hl.errors.NotFoundError, match="Begin a new training with the arrays that fit"):
        loop(state(body=3), ema=0.5).run(logdir, 4, progress=False)
    loop(state(body=3), ema={"params": 0.5}).run(str(tmp_path), 1, progress=False)
    caplog.set_level(logging.INFO, "hookline")
    train(state(body=3), None, 1, warm_start=WarmStart(str(tmp_path), opt_state=True))
    (told,) = log_of(caplog)
    assert told.endswith("Left in the checkpoint: average/params/body/w.")


def test_counter_in_a_part_of_the_state_starts_again(tmp_path):
    def step(weights, optimizer, batch):
        return weights, {"step": optimizer["step"] + 1}, {}

    make = lambda: hl.train.Loop(  # noqa: E731
        step,
        {"weights": jnp.ones(3), "optimizer": {"step": jnp.zeros((), int)}},
        hl.data.from_arrays(X, 8, epochs=None),
    )
    make().run(str(tmp_path), 3, progress=False)
    assert int(make().run(None, 1, progress=False, warm_start=str(tmp_path))["optimizer"]["step"]) == 1


def test_mistakes_are_named_with_the_arrays(old, tmp_path):
    logdir, _ = old
    with pytest.raises(ValueError, match=r"rename has 'params/bodi', and the state has nothing .* params/body/w"):
        train(state(body=3), None, warm_start=WarmStart(logdir, {"params/body": "params/bodi"}))
    with pytest.raises(
        ValueError, match=r"rename has 'bodi', and checkpoint '.*' has nothing of that name. It has: opt"
    ):
        train(state(body=3), None, warm_start=WarmStart(logdir, {"bodi": "params/body"}))
    with pytest.raises(ValueError, match="nothing of checkpoint") as error:
        train(state(body=9, tail=1), None, warm_start=logdir)
    assert "params/body/w is float32[3] in the checkpoint and float32[9] in the state" in str(error.value)
    assert "params/tail/w is not in the checkpoint" in str(error.value)
    assert "step is part of the optimizer state, a metric or a step counter, which opt_state=True restores" in str(
        error.value
    )
    with pytest.raises(hl.errors.NotFoundError):
        train(state(body=3), None, warm_start=str(tmp_path / "none"))
    for arguments in (
        {"path": 3},
        {"path": "a", "rename": ["b"]},
        {"path": "a", "rename": {"b": 3}},
        {"path": "a", "cast": 1},
        {"path": "a", "opt_state": 1},
    ):
        with pytest.raises(TypeError, match="WarmStart"):
            WarmStart(**arguments)
    with pytest.raises(ValueError, match="'latest', 'best' or a global step as step, got 'newest'"):
        WarmStart(logdir, step="newest")
    with pytest.raises(TypeError, match="warm_start"):
        train(state(body=3), None, warm_start=True)
