"""The store owns its buffers: nothing that a user holds can be destroyed or changed by a run, nor change a variable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl


@pytest.fixture
def sess():
    with hl.Session() as session:
        yield session


def test_a_fetched_variable_stays_readable_after_many_runs(sess):
    v = hl.Variable(jnp.arange(4.0), name="v")
    bump = v.assign_add(jnp.ones(4))
    sess.run(v.initializer)
    first, updated = sess.run([v, bump])
    same = sess.run(v)
    for _ in range(10):
        sess.run(bump)
    assert first.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert updated.tolist() == same.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_one_array_can_initialise_a_variable_twice_and_two_variables(sess):
    value = jnp.arange(3.0)
    a, b = hl.Variable(value, name="a"), hl.Variable(value, name="b")
    init = hl.global_variables_initializer()
    bump = hl.group(a.assign_add(jnp.ones(3)), b.assign_add(jnp.ones(3)))
    for _ in range(2):
        sess.run(init)
        sess.run(bump)
        assert sess.run([a, b])[1].tolist() == [1.0, 2.0, 3.0]
    assert value.tolist() == [0.0, 1.0, 2.0]


def test_two_variables_from_one_tensor_do_not_share_a_buffer(sess):
    a = hl.Variable(lambda: jnp.zeros(3), name="a")
    b = hl.Variable(a.initialized_value(), name="b")
    sess.run(hl.global_variables_initializer())
    sess.run(hl.group(a.assign_add(jnp.ones(3)), b.assign_add(jnp.ones(3))))
    assert sess.run(b).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("make", [np.array, jnp.array])
def test_an_assigned_feed_is_copied(sess, make):
    x = hl.placeholder("float32", [3], name="x")
    v = hl.Variable(np.zeros(3, "float32"), name="v")
    assign = v.assign(x)
    bump = v.assign_add(np.ones(3, "float32"))
    value = make([1.0, 2.0, 3.0], "float32")
    sess.run(v.initializer)
    assigned = sess.run(assign, {x: value})
    for _ in range(3):
        sess.run(bump)
    assert value.tolist() == assigned.tolist() == [1.0, 2.0, 3.0]
    if isinstance(value, np.ndarray):
        value[:] = 100.0
    assert sess.run(v).tolist() == [4.0, 5.0, 6.0]


def test_a_fed_numpy_array_may_be_changed_as_soon_as_run_returns(sess):
    x = hl.placeholder("float32", [256, 256], name="x")

    def slow(x):
        return jax.lax.fori_loop(0, 20, lambda i, a: a @ jnp.eye(256), x).sum() * 0 + x.sum()

    total = hl.op(slow)(x)
    # A start at a multiple of 64 bytes lets JAX use NumPy's memory in place.
    memory = np.zeros(256 * 256 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    batch = memory[start : start + 256 * 256 * 4].view(np.float32).reshape(256, 256)
    batch[:] = 1.0
    sess.run(total, {x: batch})
    result = sess.run(total, {x: batch})
    batch[:] = 0.0
    assert result == 256 * 256


def test_loaded_values_and_snapshots_are_copies(sess):
    v = hl.Variable(np.zeros(2, "float32"), name="v")
    bump = v.assign_add(np.ones(2, "float32"))
    for value in (np.ones(2, "float32"), jnp.ones(2)):
        sess.load({"v": value})
        snapshot = sess.snapshot()["v"]
        sess.run(bump)
        sess.run(bump)
        assert value.tolist() == snapshot.tolist() == [1.0, 1.0]
        assert sess.run(v).tolist() == [3.0, 3.0]


def test_a_numpy_initial_value_may_be_changed_after_the_variable_is_made(sess):
    value = np.ones(2, "float32")
    v = hl.Variable(value, name="v")
    value[:] = 5.0
    sess.run(v.initializer)
    assert sess.run(v).tolist() == [1.0, 1.0]


def test_random_keys_and_small_dtypes_are_stored_in_variables(sess):
    v = hl.Variable(
        lambda: {"key": jax.random.key(7), "w": jnp.ones(3, jnp.bfloat16), "n": jnp.arange(2)},
        name="v",
        trainable=False,
    )

    def advance(state):
        return state | {"key": jax.random.split(state["key"])[0]}

    step = hl.update(v, advance)
    sess.run(v.initializer)
    before = sess.run(v)
    after = sess.run(step)
    assert jax.random.key_data(before["key"]).tolist() != jax.random.key_data(after["key"]).tolist()
    assert jnp.issubdtype(before["key"].dtype, jax.dtypes.prng_key)
    assert sess.run(v)["w"].dtype == jnp.bfloat16
