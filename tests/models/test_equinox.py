"""Equinox: trained and static parts are separated; a module that holds state."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hookline as hl


class Gated(eqx.Module):
    """A weight that is trained, an integer array that is not, and a function."""

    weight: jax.Array
    order: jax.Array
    activation: object

    def __init__(self, key):
        self.weight = jax.random.normal(key, (8,))
        self.order = jnp.arange(8)[::-1]
        self.activation = jnp.tanh

    def __call__(self, x):
        return self.activation(x[..., self.order] @ self.weight)


class Built:
    updates = ()

    def __init__(self, x, y):
        params, self.static = eqx.partition(Gated(jax.random.key(0)), eqx.is_inexact_array)
        self.params = hl.Variable(params, name="params")
        self.loss = hl.op(lambda params, x: jnp.mean((eqx.combine(params, self.static)(x) - jnp.tanh(x[:, 0])) ** 2))(
            self.params, x
        )


def test_untrained_parts_are_not_in_the_variable(train, saved, tmp_path):
    losses = train(Built, tmp_path, 150)

    assert losses[-1] < 0.2 * losses[0]
    assert [name for name in saved(tmp_path) if name.startswith("params/")] == ["params/weight"]


def test_restored_module_is_a_module_again(train, tmp_path):
    train(Built, tmp_path, 3)
    with hl.Graph().as_default(), hl.Session() as sess:
        job = Built(hl.placeholder("float32", [None, 8]), None)
        hl.train.Saver([job.params]).restore(sess, hl.train.latest_checkpoint(str(tmp_path)))
        net = eqx.combine(sess.run(job.params), job.static)
    assert isinstance(net, Gated)
    assert net(jnp.ones((2, 8))).shape == (2,)


def test_an_unpartitioned_module_is_refused():
    with pytest.raises(TypeError, match="'net' requires a pytree of arrays and numbers"):
        hl.Variable(Gated(jax.random.key(0)), name="net")


class Normalised(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="ema", momentum=0.5)

    def __call__(self, x, state):
        return self.norm(x, state)


class Stateful:
    def __init__(self, x, y):
        net, state = eqx.nn.make_with_state(Normalised)()
        params, static = eqx.partition(net, eqx.is_inexact_array)
        self.params = hl.Variable(params, name="params")
        self.state = hl.Variable(state, name="state", trainable=False)

        def forward(params, state, x):
            net = eqx.combine(params, static)
            out, state = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x + 3.0, state)
            return jnp.mean((out - 1) ** 2), state

        self.loss, after = hl.op(forward)(self.params, self.state, x)
        self.updates = (self.state.assign(after),)


def test_batch_norm_state_changes_and_is_not_optimised(train, saved, tmp_path):
    losses = train(Stateful, tmp_path, 100)
    leaves = saved(tmp_path)
    state = {name: value for name, value in leaves.items() if name.startswith("state/")}

    assert losses[-1] < 0.8 * losses[1]
    assert any(np.allclose(value, 3.0, atol=0.7) for value in state.values() if value.shape == (8,)), state
    moments = [name for name in leaves if name.startswith("optimizer/") and "/mu" in name]
    assert len(moments) == len([name for name in leaves if name.startswith("params/")]) == 2
