"""A trained state is loaded without graph and session: all of it or a part, the newest, a step or the best."""

from __future__ import annotations

import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import hookline as hl

from .devices import run
from .steps import WRITTEN, NnxNet, X, batches, nnx_objects


def same(one, other):
    def equal(a, b):
        if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return a is b or bool(np.array_equal(a, b))

    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        map(equal, jax.tree.leaves(one), jax.tree.leaves(other))
    )


def trained(kind, logdir, last_step=5, **arguments):
    job = WRITTEN[kind]()
    return hl.train.Loop(job.step, job.state, batches()).run(str(logdir), last_step=last_step, **arguments)


@pytest.mark.parametrize(
    "kind",
    ["equinox", "plain", *[pytest.param(kind, marks=pytest.mark.campaign) for kind in ("linen", "nnx, functional")]],
)
def test_state_is_loaded_as_trained(kind, tmp_path):
    state = trained(kind, tmp_path)
    like = WRITTEN[kind]().state
    found = hl.train.load(str(tmp_path), like=like)
    assert jax.tree.structure(found) == jax.tree.structure(like)
    assert all(map(same, map(np.asarray, arrays(found)), map(np.asarray, arrays(state))))


def arrays(state):
    return [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_array))
    ]


def test_nnx_objects_are_loaded_as_new_objects(tmp_path):
    model, optimizer = trained("nnx, jitted", tmp_path)
    found, opt_state = hl.train.load(str(tmp_path), like=nnx_objects(jit=True).state)
    assert same(nnx.state(found), nnx.state(model))
    assert same(nnx.state(opt_state), nnx.state(optimizer))

    abstract = nnx.eval_shape(lambda: NnxNet(nnx.Rngs(0)))
    alone = hl.train.load(str(tmp_path), like=abstract, prefix="0")
    alone.eval()
    model.eval()
    assert np.array_equal(alone(X), model(X))


def test_wrong_prefix_is_an_error_with_the_right_ones(tmp_path):
    state = {"w": np.zeros(3, "float32")}, (np.zeros(2, "float32"),)
    batches = hl.data.from_arrays(np.ones(4, "float32"), 2)
    hl.train.Loop(lambda params, opt_state, batch: (params, opt_state, {}), state, batches).run(str(tmp_path))
    for prefix, like in (("params", state[0]), ("params", None), ("0/v", None), ("2", None)):
        with pytest.raises(hl.errors.NotFoundError, match=f"has nothing called '{prefix}'. It has: 0, 1. The parts of"):
            hl.train.load(str(tmp_path), like, prefix=prefix)
    for prefix in ("0", "state/0"):
        assert hl.train.load(str(tmp_path), state[0], prefix=prefix)["w"].shape == (3,)
    assert hl.train.load(str(tmp_path), ((),), prefix="2") == ((),), "a part without arrays is in no checkpoint"


def test_part_is_loaded_by_its_prefix(tmp_path):
    state = trained("linen", tmp_path)
    shapes = jax.eval_shape(lambda: state.params)
    assert same(hl.train.load(str(tmp_path), like=shapes, prefix="params"), state.params)
    kernel = hl.train.load(str(tmp_path), like=shapes["Dense_0"]["kernel"], prefix="params/Dense_0/kernel")
    assert np.array_equal(kernel, state.params["Dense_0"]["kernel"])
    by_name = hl.train.load(str(tmp_path), prefix="params")
    assert np.array_equal(by_name["Dense_1"]["bias"], state.params["Dense_1"]["bias"])


def test_step_may_be_chosen(tmp_path):
    trained("plain", tmp_path, last_step=6, checkpoints=hl.train.CheckpointOptions(save_steps=2))
    like = WRITTEN["plain"]().state
    assert [hl.train.load(str(tmp_path), like, step=step)["seen"] for step in (2, 4, "latest")] == [64, 128, 192]
    assert hl.train.load(str(tmp_path / "model.ckpt-2"), like)["seen"] == 64
    with pytest.raises(hl.errors.NotFoundError, match="no checkpoint of step 3. It has those of: 0, 2, 4, 6"):
        hl.train.load(str(tmp_path), like, step=3)
    with pytest.raises(hl.errors.NotFoundError, match="no best checkpoint"):
        hl.train.load(str(tmp_path), like, step="best")
    with pytest.raises(ValueError, match="'latest', 'best' or a global step as step, got 'first'"):
        hl.train.load(str(tmp_path), like, step="first")
    with pytest.raises(ValueError, match="its directory, or leave out the step"):
        hl.train.load(str(tmp_path / "model.ckpt-2"), like, step=2)
    with pytest.raises(hl.errors.NotFoundError, match="nowhere"):
        hl.train.load(str(tmp_path / "nowhere"), like)


def test_all_mismatches_are_named_together(tmp_path):
    trained("plain", tmp_path)
    like = {"params": {"w": jnp.zeros((4, 8)), "b": jnp.zeros(3)}, "seen": jnp.zeros((), "float32")}
    with pytest.raises(hl.errors.NotFoundError) as caught:
        hl.train.load(str(tmp_path), like)
    assert "does not fit `like`" in str(caught.value)
    assert "missing in the checkpoint: state/params/b" in str(caught.value)
    assert "only in the checkpoint: state/params/v" in str(caught.value)
    assert "state/params/w has shape (4, 16) in the checkpoint, (4, 8) in like" in str(caught.value)
    assert "state/seen has dtype int32 in the checkpoint, float32 in like" in str(caught.value)


def test_variables_of_a_graph_are_loaded_by_name(tmp_path):
    hl.Variable([1.0, 2.0], name="encoder/w")
    hl.Variable({"b": 3.0}, name="head")
    step = hl.train.get_or_create_global_step()
    with hl.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
        session.run(step)
    like = {"encoder": {"w": jnp.zeros(2)}, "head": {"b": jnp.zeros(())}}
    found = hl.train.load(str(tmp_path), like)
    assert found["encoder"]["w"].tolist() == [1.0, 2.0]
    assert found["head"]["b"] == 3.0
    assert hl.train.load(str(tmp_path), jnp.zeros(()), prefix="head/b") == 3.0
    assert hl.train.load(str(tmp_path))["global_step"] == 0


def test_values_are_loaded_with_the_given_shardings(tmp_path):
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        import hookline as hl
        from jax.sharding import NamedSharding, PartitionSpec as P

        mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

        def step(state, batch):
            return {"w": state["w"] + 1, "b": state["b"]}, {}

        state = {"w": jnp.arange(8.0), "b": jnp.ones(3)}
        hl.train.Loop(step, state, [np.ones(1)] * 2).run(sys.argv[1])
        like = {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=rows), "b": jnp.ones(3)}
        places = {"w": rows, "b": whole}
        for found in (hl.train.load(sys.argv[1], like), hl.train.load(sys.argv[1], state, sharding=places)):
            assert found["w"].sharding == rows, found["w"].sharding
            assert found["w"].tolist() == list(range(2, 10))
        assert found["b"].sharding == whole
        last = jax.devices()[-1]
        assert hl.train.load(sys.argv[1], state, sharding=last)["b"].devices() == {last}
        try:
            hl.train.load(sys.argv[1], state, sharding=[last, last, last])
        except ValueError as error:
            assert "one for each of the 2 arrays" in str(error)
        else:
            raise AssertionError
    """
    run(4, ["-c", textwrap.dedent(code), str(tmp_path)])


def test_averages_of_a_part_are_excluded_from_the_state(tmp_path):
    state = {"params": {"w": jnp.zeros(2)}}
    loop = hl.train.Loop(lambda s, batch: ({"params": {"w": s["params"]["w"] + batch}}, {}), state, [np.ones(2)] * 4)
    with loop.graph.as_default():
        averages = hl.train.ExponentialMovingAverage(0.5)
        averaged = averages.apply(loop.state["params"])
    with loop.session(str(tmp_path)) as session:
        while not session.should_stop():
            session.run((loop.train_op, averaged))
    assert hl.train.load(str(tmp_path), like=state)["params"]["w"].tolist() == [4.0, 4.0]
    average = hl.train.load(str(tmp_path), like=state["params"], prefix="params/ExponentialMovingAverage")
    assert 0.0 < average["w"][0] < 4.0


def test_broken_newest_is_an_error_and_an_older_one_needs_a_request(tmp_path):
    trained("linen", tmp_path, last_step=4, checkpoints=hl.train.CheckpointOptions(save_steps=2))
    (tmp_path / "model.ckpt-4" / "hookline.json").unlink()
    with pytest.raises(hl.errors.DataLossError, match="model.ckpt-4' is broken and cannot be read: it has no hookline"):
        hl.train.load(str(tmp_path))
    assert hl.train.load(str(tmp_path), step=2)
    with pytest.raises(TypeError, match="load requires a path as path, got 5"):
        hl.train.load(5)
