"""Flax NNX: tied weights, random streams and batch statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import hookline as hl

WIDTH = 8


class Tied(nnx.Module):
    """The second layer uses the matrix of the first."""

    def __init__(self, rngs):
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.second.kernel = self.first.kernel

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def tied(x, y):
    graphdef, params = nnx.split(Tied(nnx.Rngs(0)), nnx.Param)
    variable = hl.Variable(params, name="params")

    def forward(params, x):
        net = nnx.merge(graphdef, params)
        assert net.first.kernel is net.second.kernel
        return jnp.mean((net(x) - x) ** 2)

    job = hl.op(forward)(variable, x)
    return _Job(job, graphdef, variable)


class _Job:
    updates = ()

    def __init__(self, loss, graphdef, params):
        self.loss, self.graphdef, self.params = loss, graphdef, params


def test_tied_weights_are_one_array_in_variable_and_checkpoint(train, saved, tmp_path):
    losses = train(tied, tmp_path, 40)
    assert losses[-1] < 0.5 * losses[0]
    shapes = [value.shape for name, value in saved(tmp_path).items() if name.startswith("params/")]
    assert sorted(shapes) == [(WIDTH,), (WIDTH,), (WIDTH, WIDTH)]

    with hl.Graph().as_default(), hl.Session() as sess:
        job = tied(hl.constant(np.ones((1, WIDTH), "float32")), None)
        hl.train.Saver([job.params]).restore(sess, hl.train.latest_checkpoint(str(tmp_path)))
        net = nnx.merge(job.graphdef, sess.run(job.params))
    assert net.first.kernel is net.second.kernel
    kernel = next(v for name, v in saved(tmp_path).items() if name.startswith("params/") and v.ndim == 2)
    np.testing.assert_array_equal(net.first.kernel[...], kernel)


def dropped(x, y):
    """A network whose dropout mask can be fetched."""
    graphdef, params, rest = nnx.split(
        nnx.List([nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))]), nnx.Param, ...
    )
    params = hl.Variable(params, name="params")
    rest = hl.Variable(rest, name="rest", trainable=False)

    def forward(params, rest, x):
        linear, dropout = net = nnx.merge(graphdef, params, rest)
        mask = dropout(jnp.ones(64)) != 0
        return jnp.mean((linear(x) - 1) ** 2), mask, nnx.split(net, nnx.Param, ...)[2]

    loss, mask, after = hl.op(forward)(params, rest, x)
    job = _Job(loss, graphdef, params)
    job.updates, job.mask = (rest.assign(after),), mask
    return job


def test_dropout_masks_differ_in_each_step_and_are_the_same_in_a_resumed_run(train, tmp_path):
    whole = train(dropped, tmp_path / "whole", 6, fetch=lambda job: job.mask)
    first = train(dropped, tmp_path / "parts", 3, fetch=lambda job: job.mask)
    second = train(dropped, tmp_path / "parts", 6, fetch=lambda job: job.mask)

    assert len({mask.tobytes() for mask in whole}) == 6
    np.testing.assert_array_equal(first + second, whole)


def normalised(x, y):
    graphdef, params, rest = nnx.split(nnx.BatchNorm(WIDTH, rngs=nnx.Rngs(0)), nnx.Param, ...)
    params = hl.Variable(params, name="params")
    rest = hl.Variable(rest, name="rest", trainable=False)

    def forward(params, rest, x):
        norm = nnx.merge(graphdef, params, rest)
        return jnp.mean((norm(x + 5.0) - 1) ** 2), nnx.split(norm, nnx.Param, ...)[2]

    loss, after = hl.op(forward)(params, rest, x)
    job = _Job(loss, graphdef, params)
    job.updates, job.rest = (rest.assign(after),), rest
    return job


def test_batch_statistics_approach_the_data_and_are_not_optimised(train, saved, tmp_path):
    trained = []

    def build(x, y):
        job = normalised(x, y)
        trained.extend(hl.trainable_variables())
        return job

    train(build, tmp_path, 60)
    leaves = saved(tmp_path)
    assert [variable.op.name for variable in trained] == ["params"]
    np.testing.assert_allclose(leaves["rest/mean/value"], np.full(WIDTH, 5.0), atol=3.0)
    assert np.all(leaves["rest/mean/value"] > 1.0)
    assert not any("mean" in name for name in leaves if name.startswith("optimizer/"))
    assert jax.tree.structure(normalised(hl.constant(np.ones((2, WIDTH), "float32")), None).rest.spec).num_leaves == 2
