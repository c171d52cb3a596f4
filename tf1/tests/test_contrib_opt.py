"""`tf.contrib.opt`: three steps of each optimizer, beside the formulas of its documentation or paper in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline_tf1.contrib import opt

START = np.array([1.0, -2.0, 0.5, 3.0])
GRADS = [np.array([0.5, -1.0, 0.25, 0.0]), np.array([-0.5, -1.0, 0.5, 0.0]), np.array([0.1, 2.0, -0.25, 0.0])]
EPSILON = 1e-8


def adam(var, slots, grad, t, rate=0.1, nesterov=False):
    m, v = slots.get("m", 0 * var), slots.get("v", 0 * var)
    slots["m"], slots["v"] = m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
    top = 0.9 * m + 0.1 * grad if nesterov else m
    return var - rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * top / (np.sqrt(v) + EPSILON)


def adamax(var, slots, grad, t):
    slots["m"] = m = 0.9 * slots.get("m", 0 * var) + 0.1 * grad
    slots["v"] = v = np.maximum(0.999 * slots.get("v", 0 * var), abs(grad))
    return var - 0.1 / (1 - 0.9**t) * m / (v + EPSILON)


def momentum(var, slots, grad, t):
    slots["accum"] = accum = 0.9 * slots.get("accum", 0 * var) + grad
    return var - 0.1 * accum


def sign(factor):
    def step(var, slots, grad, t):
        slots["m"] = m = 0.9 * slots.get("m", 0 * var) + 0.1 * grad
        return var - 0.1 * factor(np.sign(grad) * np.sign(m), t) * grad

    return step


def lars(var, slots, grad, t):
    norm, grads = np.linalg.norm(var), np.linalg.norm(grad)
    ratio = 0.01 * norm / (grads + 0.1 * norm + 0.001)
    slots["accum"] = accum = 0.9 * slots.get("accum", 0 * var) + grad + 0.1 * var
    return var - 0.1 * ratio * accum


def decayed(step):
    return lambda var, slots, grad, t: step(var - 0.01 * var, slots, grad, t)


def half(step):
    return 0.5 * tf.cast(step, tf.float32)


CASES = {
    "adamw": (lambda: opt.AdamWOptimizer(0.01, 0.1), decayed(adam)),
    "momentumw": (lambda: opt.MomentumWOptimizer(0.01, 0.1, 0.9), decayed(momentum)),
    "extended": (lambda: opt.extend_with_decoupled_weight_decay(tf.train.AdamOptimizer)(0.01, 0.1), decayed(adam)),
    "nadam": (lambda: opt.NadamOptimizer(0.1), lambda *given: adam(*given, nesterov=True)),
    "lazy": (lambda: opt.LazyAdamOptimizer(0.1), adam),
    "adamax": (lambda: opt.AdaMaxOptimizer(0.1), adamax),
    "add": (lambda: opt.AddSignOptimizer(0.1), sign(lambda agrees, t: 1 + agrees)),
    "add decayed": (
        lambda: opt.AddSignOptimizer(0.1, 2.0, 0.9, half),
        sign(lambda agrees, t: 2 + 0.5 * (t - 1) * agrees),
    ),
    "power": (lambda: opt.PowerSignOptimizer(0.1), sign(lambda agrees, t: np.exp(agrees))),
    "power of 2": (lambda: opt.PowerSignOptimizer(0.1, 2.0), sign(lambda agrees, t: 2.0**agrees)),
    "lars": (lambda: opt.LARSOptimizer(0.1, 0.9, 0.1, 0.01, 0.001), lars),
    "lars skipped": (lambda: opt.LARSOptimizer(0.1, skip_list=["w"]), momentum),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_follow_the_formula(sess, case):
    make, formula = CASES[case]
    weight = tf.Variable(START.astype(np.float32), name="w")
    grad = tf.placeholder(tf.float32, [4])
    train_op = make().apply_gradients([(grad, weight)], tf.train.get_or_create_global_step())
    sess.run(tf.global_variables_initializer())
    expected, slots = START, {}
    for t, value in enumerate(GRADS, 1):
        sess.run(train_op, {grad: value})
        expected = formula(expected, slots, value, t)
        np.testing.assert_allclose(sess.run(weight), expected, rtol=2e-5, atol=1e-6)


def test_only_listed_weights_decay(sess):
    weight, bias = (tf.Variable(1.0, name=name) for name in ("w", "b"))
    optimizer = opt.MomentumWOptimizer(0.5, 0.0, 0.0)
    train_op = optimizer.minimize(weight + bias, decay_var_list=[weight])
    sess.run(tf.global_variables_initializer())
    sess.run(train_op)
    assert sess.run([weight, bias]) == [0.5, 1.0]


def test_lazy_adam_leaves_rows_not_looked_up_and_their_moments(sess):
    table = tf.Variable(tf.ones([3, 2]), name="table")
    ids = tf.placeholder(tf.int32, [1])
    optimizer = opt.LazyAdamOptimizer(0.1)
    train_op = optimizer.minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, ids)))
    sess.run(tf.global_variables_initializer())
    for row in (0, 2):
        sess.run(train_op, {ids: [row]})
    values, moments = sess.run([table, optimizer.get_slot(table, "m")])
    assert (values[1] == 1.0).all()
    assert values[0].tolist() == pytest.approx([0.9, 0.9], abs=1e-3)
    np.testing.assert_allclose(moments, [[0.1, 0.1], [0, 0], [0.1, 0.1]], rtol=1e-6)


def test_averages_are_saved_under_their_variables_names(sess, tmp_path):
    weight = tf.Variable(4.0, name="w")
    optimizer = opt.MovingAverageOptimizer(tf.train.GradientDescentOptimizer(1.0), 0.5)
    train_op = optimizer.minimize(2.0 * weight)
    sess.run(tf.global_variables_initializer())
    sess.run(train_op)
    assert sess.run(weight) == 2.0
    path = optimizer.swapping_saver().save(sess, str(tmp_path / "m"))
    reader = tf.train.NewCheckpointReader(path)
    assert (reader.get_tensor("w"), reader.get_tensor("w/ExponentialMovingAverage")) == (3.0, 2.0)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="momentum >= 0"):
        opt.LARSOptimizer(0.1, momentum=-1)
    with pytest.raises(RuntimeError, match="before creating the swapping_saver"):
        opt.MovingAverageOptimizer(tf.train.AdamOptimizer()).swapping_saver()
    weight = tf.Variable(1.0)
    with pytest.raises(ValueError, match="global step"):
        opt.AddSignOptimizer(sign_decay_fn=half).minimize(weight * weight)
    with pytest.raises(AttributeError, match="tf.contrib.opt"):
        _ = opt.ShampooOptimizer
