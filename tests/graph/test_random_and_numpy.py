"""Random keys, hookline.numpy, trees of variables and moving averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl
import hookline.numpy as hnp


def draws(seed: int, runs: int, state: dict | None = None):
    with hl.Graph(seed=seed).as_default():
        noise = hl.op(jax.random.normal)(hl.random_key())
        other = hl.op(jax.random.normal)(hl.random_key())
        with hl.Session() as sess:
            sess.run(hl.global_variables_initializer())
            if state:
                sess.load(state)
            values = [float(sess.run(noise)) for _ in range(runs)]
            return values, float(sess.run(other)), sess.snapshot()


def test_keys_differ_in_each_run_and_repeat_with_the_seed():
    values, other, _ = draws(0, 3)
    assert len({*values, other}) == 4
    assert draws(0, 3)[:2] == (values, other)
    assert draws(1, 3)[0] != values


def test_resumed_run_draws_the_values_of_an_uninterrupted_one():
    values, _, _ = draws(0, 4)
    first, _, state = draws(0, 2)
    second, _, _ = draws(0, 2, state | {"random_key_1/draws": jnp.int32(0)})
    assert first + second == values


def test_readers_share_a_key_and_only_runs_that_need_it_count():
    key = hl.random_key()
    a, b = hl.op(jax.random.normal)(key), hl.op(jax.random.normal)(key)
    unrelated = hl.constant(1.0)
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        values = sess.run([a, b])
        assert values[0] == values[1]
        sess.run(unrelated)
        assert sess.run("random_key/draws:0") == 1


def test_gradients_flow_through_random_operations():
    w = hl.Variable(2.0, name="w")
    noise = hl.op(jax.random.normal)(hl.random_key())
    (grad,) = hl.gradients(w * noise, w)
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        value, gradient = sess.run([noise, grad])
        assert value == gradient


def test_numpy_functions_take_tensors_and_plain_values():
    x = hl.constant([[1.0, 2.0], [3.0, 4.0]])
    with hl.Session() as sess:
        results = sess.run([hnp.mean(x), hnp.linalg.det(x), hnp.stack([x, x]), hnp.where(x > 2, x, hnp.pi)])
    assert results[0] == 2.5
    np.testing.assert_allclose(results[1], -2.0, rtol=1e-6)
    assert results[2].shape == (2, 2, 2)
    assert hnp.mean(np.ones(3)) == 1.0
    assert hnp.float32 is jnp.float32
    assert hnp.mean is hnp.mean
    assert "einsum" in dir(hnp)
    assert "norm" in dir(hnp.linalg)
    with pytest.raises(AttributeError, match=r"jax\.numpy has no 'meen'"):
        hnp.meen  # noqa: B018


def test_tree_of_variables_has_one_variable_per_leaf():
    tree = hl.variables(lambda: {"dense": [jnp.ones(2), jnp.zeros(3)], "a b": jnp.ones(())}, name="net")
    assert [v.op.name for v in jax.tree.leaves(tree)] == ["net/a_b", "net/dense/0", "net/dense/1"]
    total = hl.op(lambda t: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(t)))(tree)
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        assert sess.run(total) == 3.0
        assert sess.run(tree)["dense"][1].shape == (3,)


def test_moving_averages_follow_the_formula():
    weight = hl.Variable({"w": np.array([0.0, 10.0], "float32")}, name="weight")
    step = hl.train.get_or_create_global_step()
    averages = hl.train.ExponentialMovingAverage(decay=0.9, num_updates=step)
    with hl.control_dependencies([weight.assign_add({"w": 1.0})]):
        moved = averages.apply([weight])
    train = hl.group(moved, step.assign_add(1))
    expected, value = np.array([0.0, 10.0]), np.array([0.0, 10.0])
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        for n in range(4):
            sess.run(train)
            value = value + 1
            decay = min(0.9, (1 + n) / (10 + n))
            expected = decay * expected + (1 - decay) * value
        np.testing.assert_allclose(sess.run(averages.average(weight))["w"], expected, rtol=1e-6)
