"""User code as a type checker sees it: pyright checks this file (make lint), and pytest runs it."""

from __future__ import annotations

from typing import assert_type

import jax.numpy as jnp
import numpy as np
import optax

import hookline as hl


def dense(x: hl.Tensor, units: int, name: str) -> hl.Tensor:
    with hl.name_scope(name):
        w = hl.Variable(lambda: jnp.ones((3, units)), name="w")
        b = hl.Variable(np.zeros(units, "float32"), name="b")
        return x @ w + b


def loss_fn(prediction: hl.Tensor, labels: hl.Tensor) -> hl.Tensor:
    error = (prediction - labels) ** 2
    scaled = 0.5 * error / 2 - -error * [1.0]
    return hl.op(jnp.mean)(abs(scaled) + 1e-6)


class Watch(hl.train.SessionRunHook):
    """Keeps its fetched values."""

    def __init__(self, loss: hl.Tensor) -> None:
        self.loss = loss
        self.values: list[float] = []

    def before_run(self, run_context: hl.train.SessionRunContext) -> hl.train.SessionRunArgs:
        return hl.train.SessionRunArgs({"loss": self.loss})

    def after_run(self, run_context: hl.train.SessionRunContext, run_values: hl.train.SessionRunValues) -> None:
        self.values.append(float(run_values.results["loss"]))


def test_user_code_is_typed_and_runs():
    x = hl.placeholder("float32", [None, 3], name="x")
    y = hl.placeholder("float32", [None, 1], name="y")
    prediction = dense(x, 1, "dense")
    loss = loss_fn(prediction, y)
    step = hl.train.get_or_create_global_step()
    optimizer = hl.train.Optimizer(optax.sgd, learning_rate=0.1)
    averages = hl.train.ExponentialMovingAverage(0.9, step)
    with hl.control_dependencies([optimizer.minimize(loss, global_step=step)]):
        train_op = averages.apply()

    assert_type(x + y, hl.Tensor)
    assert_type(2.0 - x, hl.Tensor)
    assert_type(step < 3, hl.Tensor)
    assert_type(x[:, 0], hl.Tensor)
    assert_type(step.assign_add(1), hl.Tensor)
    assert_type(train_op, hl.Operation)
    assert_type(hl.get_default_graph().get_tensor_by_name("x:0"), hl.Tensor)

    watch = Watch(loss)
    with hl.train.MonitoredSession(hooks=[watch, hl.train.StopAtStepHook(last_step=3)]) as sess:
        while not sess.should_stop():
            sess.run(train_op, {x: np.ones((4, 3)), y: np.ones((4, 1))})
    assert len(watch.values) == 3
    assert watch.values[2] < watch.values[0]
