"""Flax Linen: parameters of one tensor, dropout from hookline's keys, batch statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import hookline as hl


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        mask = nn.Dropout(0.5, deterministic=not train)(jnp.ones(64)) != 0
        return nn.Dense(1, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)(x), mask


class Built:
    """A network whose mask and statistics can be fetched."""

    def __init__(self, x, y):
        net = Net()
        initial = hl.op(lambda: net.init(jax.random.key(0), jnp.zeros((1, 8)), train=False)).node()
        self.params = hl.Variable(initial["params"], name="params")
        self.statistics = hl.Variable(initial["batch_stats"], name="statistics", trainable=False)

        def forward(params, statistics, key, x):
            variables = {"params": params, "batch_stats": statistics}
            (out, mask), moved = net.apply(
                variables, x + 3.0, train=True, rngs={"dropout": key}, mutable=["batch_stats"]
            )
            return jnp.mean((out.astype(jnp.float32) - 1) ** 2), mask, moved["batch_stats"]

        self.loss, self.mask, moved = hl.op(forward)(self.params, self.statistics, hl.random_key(), x)
        self.updates = (self.statistics.assign(moved),)


def test_masks_use_the_random_key_and_are_the_same_in_a_resumed_run(train, tmp_path):
    whole = train(Built, tmp_path / "whole", 6, fetch=lambda job: job.mask)
    first = train(Built, tmp_path / "parts", 3, fetch=lambda job: job.mask)
    second = train(Built, tmp_path / "parts", 6, fetch=lambda job: job.mask)

    assert len({mask.tobytes() for mask in whole}) == 6
    np.testing.assert_array_equal(first + second, whole)


def test_bfloat16_parameters_stay_bfloat16_and_statistics_change(train, saved, tmp_path):
    losses = train(Built, tmp_path, 40)
    leaves = saved(tmp_path)

    assert losses[-1] < 0.5 * losses[0]
    assert leaves["params/Dense_0/kernel"].dtype == jnp.bfloat16
    assert leaves["params/BatchNorm_0/scale"].dtype == np.float32
    np.testing.assert_allclose(leaves["statistics/BatchNorm_0/mean"], np.full(8, 3.0), atol=0.5)
    assert not any("mean" in name for name in leaves if name.startswith("optimizer/"))
