"""Plain JAX: pytrees as one variable or one a leaf, leaves of every kind, and gradients taken by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl
import hookline.numpy as hnp


def every_kind():
    """Leaves of each kind that a state may be made of; none of them is trained."""
    return {
        "bfloat16": jnp.arange(4, dtype=jnp.bfloat16),
        "bool": jnp.array([True, False]),
        "empty": jnp.zeros((0, 3), jnp.float16),
        "float8": jnp.arange(4, dtype=jnp.float8_e4m3fn),
        "int4": jnp.arange(4, dtype=jnp.int4),
        "int8": jnp.arange(-2, 2, dtype=jnp.int8),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(6, impl="rbg"), 3),
        "scalar": jnp.int32(7),
        "uint32": jnp.array([2**32 - 1], jnp.uint32),
    }


def advance(state):
    """Changes every leaf that can change, and keeps all dtypes."""
    return {
        **jax.tree.map(lambda leaf: leaf, state),
        "bfloat16": state["bfloat16"] * 2,
        "bool": ~state["bool"],
        "int8": state["int8"] + jnp.int8(1),
        "key": jax.random.fold_in(state["key"], 1),
        "scalar": state["scalar"] + 1,
        "uint32": state["uint32"] - 1,
    }


class Built:
    """A line with a state of every kind of leaf beside it, a key of which makes the noise."""

    def __init__(self, x, y):
        self.weights = hl.Variable(lambda: jnp.zeros(8, jnp.bfloat16), name="weights")
        self.state = hl.Variable(every_kind, name="state", trainable=False)

        def loss_fn(weights, state, x):
            noise = jax.random.normal(state["key"], (len(x),)) * 0.01
            return jnp.mean((x @ weights.astype(jnp.float32) - x.sum(1) + noise) ** 2)

        self.loss = hl.op(loss_fn)(self.weights, self.state, x)
        self.updates = (hl.update(self.state, advance),)


def test_leaves_of_every_kind_are_trained_saved_and_restored(train, saved, tmp_path):
    whole = train(Built, tmp_path / "whole", 8, transformation=optax.sgd(0.05))
    parts = train(Built, tmp_path / "parts", 3, transformation=optax.sgd(0.05))
    parts += train(Built, tmp_path / "parts", 8, transformation=optax.sgd(0.05))

    np.testing.assert_array_equal(parts, whole)
    assert whole[-1] < 0.5 * whole[0]
    expected = every_kind()
    for _ in range(8):
        expected = advance(expected)
    uninterrupted, resumed = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    path = hl.train.latest_checkpoint(str(tmp_path / "parts"))
    for name, value in expected.items():
        if value.size:
            np.testing.assert_array_equal(uninterrupted[f"state/{name}"], resumed[f"state/{name}"], err_msg=name)
        loaded = hl.train.load_variable(path, f"state/{name}")
        assert (loaded.dtype, loaded.shape) == (value.dtype, value.shape), name
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(loaded) == jax.random.key_impl(value)
            loaded, value = jax.random.key_data(loaded), jax.random.key_data(value)
        np.testing.assert_array_equal(loaded, value, err_msg=name)
    assert resumed["weights"].dtype == jnp.bfloat16


def test_int8_weights_with_float_scales_are_read_and_only_the_scales_trained(train, saved, tmp_path):
    class Quantised:
        updates = ()

        def __init__(self, x, y):
            self.codes = hl.Variable(lambda: jnp.arange(-4, 4, dtype=jnp.int8), name="codes", trainable=False)
            self.scales = hl.Variable(lambda: jnp.ones(8), name="scales")
            self.loss = hl.op(lambda q, s, x: jnp.mean((x @ (q * s) - x.sum(1)) ** 2))(self.codes, self.scales, x)

    losses = train(Quantised, tmp_path, 100, transformation=optax.adam(0.05))
    leaves = saved(tmp_path)
    assert losses[-1] < 0.2 * losses[0]
    np.testing.assert_array_equal(leaves["codes"], np.arange(-4, 4))
    assert leaves["codes"].dtype == np.int8


def test_manual_gradients_train_like_an_optimizer(tmp_path):
    x = hl.constant(np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3))
    weights = hl.variables(lambda: {"w": jnp.ones(3), "b": jnp.zeros(())}, name="line")
    by_hand = hl.variables(lambda: {"w": jnp.ones(3), "b": jnp.zeros(())}, name="copy")

    def loss_fn(p):
        return hnp.mean((x @ p["w"] + p["b"] - 2.0) ** 2)

    minimize = hl.train.Optimizer(optax.sgd(0.1)).minimize(loss_fn(weights), var_list=list(weights.values()))
    order = list(by_hand.values())
    step = hl.group(*(v.assign_sub(0.1 * g) for v, g in zip(order, hl.gradients(loss_fn(by_hand), order), strict=True)))
    with hl.Session() as sess:
        sess.run(hl.global_variables_initializer())
        for _ in range(5):
            sess.run([minimize, step])
        for name in weights:
            np.testing.assert_allclose(*sess.run([weights[name], by_hand[name]]), rtol=1e-6)
