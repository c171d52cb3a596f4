"""Optimizers: TensorFlow's formulas, by hand, and the names of slots. `make conformance` compares with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline_tf1._machinery.ignored_arguments import ignored  # For a name that no other test has used.


def trained(optimizer, steps=2):
    """Returns the values of a variable that starts at 2.0, with the loss of its square, and of its slots."""
    weight = tf.Variable(2.0, name="weight")
    train_op = optimizer.minimize(weight * weight)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(steps):
            sess.run(train_op)
        return sess.run({variable.op.name: variable for variable in tf.global_variables()})


def test_gradient_descent_follows_its_formula():
    assert trained(tf.train.GradientDescentOptimizer(0.25))["weight"] == 0.5


def test_momentum_applies_the_rate_outside_the_sum():
    found = trained(tf.train.MomentumOptimizer(0.25, 0.5))

    assert found["weight/Momentum"] == 4.0
    assert found["weight"] == 0.0


def test_adam_adds_epsilon_before_the_correction():
    found = trained(tf.train.AdamOptimizer(0.1, epsilon=0.5), steps=1)
    rate = 0.1 * np.sqrt(1 - 0.999) / (1 - 0.9)

    np.testing.assert_allclose(found["weight"], 2.0 - rate * 0.4 / (np.sqrt(0.016) + 0.5), rtol=1e-5)
    np.testing.assert_allclose(found["beta1_power"], 0.81, rtol=1e-6)
    assert {"weight/Adam", "weight/Adam_1", "beta2_power"} <= found.keys()


def test_rmsprop_starts_at_one_with_the_rate_inside_the_momentum():
    found = trained(tf.train.RMSPropOptimizer(0.1, momentum=0.5), steps=1)

    np.testing.assert_allclose(found["weight/RMSProp"], 0.9 + 0.1 * 16, rtol=1e-6)
    np.testing.assert_allclose(found["weight/RMSProp_1"], 0.4 / np.sqrt(2.5), rtol=1e-5)


def test_adagrad_has_no_epsilon():
    found = trained(tf.train.AdagradOptimizer(0.1), steps=1)

    np.testing.assert_allclose(found["weight"], 2.0 - 0.4 / np.sqrt(16.1), rtol=1e-5)


def test_ftrl_sets_small_weights_to_zero():
    assert trained(tf.train.FtrlOptimizer(0.1, l1_regularization_strength=100.0))["weight"] == 0.0


@pytest.mark.parametrize("make", [lambda: 0.5, lambda: tf.constant(0.5), lambda: lambda: 0.5])
def test_rate_is_a_number_a_tensor_or_a_function(make):
    assert trained(tf.train.GradientDescentOptimizer(make()), steps=1)["weight"] == 0.0


def test_rate_may_be_fed(sess):
    rate = tf.placeholder(tf.float32, [])
    weight = tf.Variable(2.0, name="weight")
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(weight * weight)
    sess.run(tf.global_variables_initializer())
    sess.run(train_op, {rate: 0.25})
    assert sess.run(weight) == 1.0


def test_second_minimize_shares_the_slots():
    weight = tf.Variable(2.0, name="weight")
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    first, second = optimizer.minimize(weight * weight), optimizer.minimize(weight)

    assert [variable.op.name for variable in optimizer.variables()] == ["weight/Momentum"]
    assert (first.name, second.name) == ("Momentum", "Momentum_1")


def test_minimize_counts_the_step_after_its_control_dependencies(sess):
    step, seen = tf.train.get_or_create_global_step(), tf.Variable(0.0, trainable=False, name="seen")
    weight = tf.Variable(2.0, name="weight")
    with tf.control_dependencies([seen.assign_add(1.0)]):
        train_op = tf.train.AdamOptimizer(0.1).minimize(weight * weight, global_step=step)
    sess.run(tf.global_variables_initializer())
    assert sess.run(seen) == 0.0
    sess.run(train_op)
    assert sess.run([seen, step]) == [1.0, 1]


def test_slots_of_a_reusing_scope_are_new():
    with tf.variable_scope("net"):
        weight = tf.get_variable("weight", [2])
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(weight * weight))

    assert "net/weight/Adam" in [variable.op.name for variable in tf.global_variables()]


def test_slots_of_a_scope_have_its_name():
    weight = tf.Variable(2.0, name="weight")
    with tf.variable_scope("training"):
        tf.train.AdamOptimizer(0.1).minimize(weight * weight)

    names = [variable.op.name for variable in tf.global_variables()]
    assert {"training/weight/Adam", "training/beta1_power"} <= set(names)


def test_user_optimizer_may_be_defined():
    class Halving(tf.train.Optimizer):
        def __init__(self):
            super().__init__(False, "Halving")

        def _apply_dense(self, grad, var):
            return tf.assign(var, var / 2.0)

    assert trained(Halving())["weight"] == 0.5


def test_subclass_without_an_update_method_is_refused():
    class Empty(tf.train.Optimizer):
        pass

    weight = tf.Variable(2.0)
    with pytest.raises(NotImplementedError, match="Empty defines neither _apply_dense nor"):
        Empty(False, "Empty").minimize(weight * weight)


def test_missing_gradients_name_the_variables():
    tf.Variable(2.0, name="weight")
    with pytest.raises(ValueError, match=r"no gradients were given for any variable \(weight\)"):
        tf.train.AdamOptimizer().minimize(tf.constant(1.0))


def test_ignored_arguments_are_logged_once(caplog):
    caplog.set_level("INFO", logger="hookline")
    for _ in range(2):
        ignored("tf.train.Some", colocated=True, other=None, more=False)

    assert [record.getMessage() for record in caplog.records] == ["tf.train.Some: colocated is taken, without effect."]


def test_moving_averages_of_a_trained_variable_are_updated(sess):
    weight = tf.Variable(2.0, name="weight")
    train_op = tf.train.GradientDescentOptimizer(0.25).minimize(weight * weight)
    averages = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([train_op]):
        both = averages.apply([weight])
    sess.run(tf.global_variables_initializer())
    sess.run(both)
    assert sess.run([weight, averages.average(weight)]) == [1.0, 1.5]


def test_piecewise_constant_needs_one_more_value_than_boundaries():
    with pytest.raises(ValueError, match="one value more than boundaries, got 1 values and 1 boundaries"):
        tf.train.piecewise_constant(tf.constant(1), [2], [0.1])


def embedding():
    """Returns a table, the indices of the looked-up rows, and a loss whose gradient of each row is 1."""
    table = tf.Variable(np.ones((3, 2)), dtype=tf.float32, name="table")
    ids = tf.placeholder(tf.int32, [None])
    return table, ids, tf.reduce_sum(tf.nn.embedding_lookup(table, ids))


@pytest.mark.parametrize(("is_used_too", "rows"), [(False, [0.0, -1.0, 1.0]), (True, [-0.5, -1.0, 1.0])])
def test_rows_not_looked_up_are_unchanged_unless_the_variable_is_used_otherwise(sess, is_used_too, rows):
    table, ids, loss = embedding()
    train_op = tf.train.MomentumOptimizer(1.0, 0.5).minimize(loss + 0.0 * tf.reduce_sum(table) if is_used_too else loss)
    sess.run(tf.global_variables_initializer())
    sess.run(train_op, {ids: [0]})
    sess.run(train_op, {ids: [1, 1]})
    np.testing.assert_array_equal(sess.run(table)[:, 0], rows)


def test_global_norm_counts_a_row_once_per_lookup(sess):
    table, ids, loss = embedding()
    (gradient,) = tf.gradients(loss, [table])
    norm, dense = tf.global_norm([gradient]), tf.norm(gradient)
    sess.run(tf.global_variables_initializer())
    np.testing.assert_allclose(sess.run([norm, dense], {ids: [1, 1]}), [2.0, np.sqrt(8.0)], rtol=1e-6)
