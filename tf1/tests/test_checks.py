"""Operations that check values: `Print`, `Assert` and similar ones."""

from __future__ import annotations

import pytest

import hookline_tf1 as tf


def test_print_shows_values_and_passes_the_gradient(capfd, sess):
    x = tf.placeholder(tf.float32, [3])
    y = tf.Print(x * 2, [tf.shape(x), x], "seen: ", first_n=2, summarize=2)
    (grad,) = tf.gradients(y, [x])

    for _ in range(3):
        value, grads = sess.run([y, grad], {x: [1, 2, 3]})

    assert value.tolist() == [2.0, 4.0, 6.0]
    assert grads.tolist() == [2.0, 2.0, 2.0]
    assert capfd.readouterr().err.count("seen: [3][1. 2.]") == 2


def test_failed_check_ends_the_run(sess):
    x = tf.placeholder(tf.float32, [2])
    with tf.control_dependencies([tf.assert_positive(x), tf.assert_less(x, 5.0), tf.Assert(x[0] < 4, [x])]):
        y = tf.identity(x)
    safe = tf.check_numerics(tf.log(x), "the logarithm")

    assert sess.run(y, {x: [1, 2]}).tolist() == [1.0, 2.0]
    assert sess.run(safe, {x: [1, 1]}).tolist() == [0.0, 0.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Condition x < y did not hold element-wise") as raised:
        sess.run(y, {x: [1, 6]})
    assert raised.value.op.name == "assert_less"
    with pytest.raises(tf.errors.InvalidArgumentError, match="the logarithm : Tensor had NaN values"):
        sess.run(safe, {x: [1, -1]})
    assert sess.run(y, {x: [1, 2]}).tolist() == [1.0, 2.0]


def test_failed_run_changes_nothing_and_the_session_continues(sess):
    count, is_well = tf.get_variable("count", [], initializer=tf.zeros_initializer()), tf.placeholder(tf.bool, [])
    with tf.control_dependencies([tf.Assert(is_well, ["not", [1, 2, 3, 4], tf.constant("well")])]):
        counted = tf.assign_add(count, 1.0)

    sess.run(tf.global_variables_initializer())
    for fetch in (counted, counted.op):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            sess.run(fetch, {is_well: False})
        assert raised.value.message == "assertion failed: [not] [1 2 3...] [well]"
    assert sess.run(count) == 0.0
    assert sess.run(counted, {is_well: True}) == 1.0


def test_monitored_training_raises_the_same_error():
    x = tf.placeholder(tf.float32, [2])
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([tf.assert_non_negative(x, message="negative")]):
        train_op = tf.assign_add(step, 1)

    with tf.train.MonitoredTrainingSession() as sess:
        sess.run(train_op, {x: [0, 1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[negative\] \[Condition x >= 0 did not hold"):
            sess.run(train_op, {x: [0, -1]})


def test_check_shows_the_given_data():
    x = tf.placeholder(tf.float32, [4])

    with tf.Session() as sess, pytest.raises(tf.errors.InvalidArgumentError, match=r"\[look\] \[0.5 2...\]$"):
        sess.run(tf.assert_positive(x, data=["look", x], summarize=2), {x: [0.5, 2, 3, -4]})


def test_add_check_numerics_ops_checks_all_numbers_of_a_graph(sess):
    x = tf.placeholder(tf.float32, [], name="x")
    tf.log(x, name="logarithm")
    tf.cast(x, tf.int32)
    everything = tf.add_check_numerics_ops()

    sess.run(everything, {x: 1.0})
    with pytest.raises(tf.errors.InvalidArgumentError, match="logarithm:0 : Tensor had Inf values"):
        sess.run(everything, {x: 0.0})


def test_gradient_passes_through_a_check(sess):
    x = tf.placeholder(tf.float32, [])
    assert sess.run(tf.gradients(tf.check_numerics(x * 2.0, "finite"), x), {x: 1.0}) == [2.0]


def test_ranks_and_dtypes_are_checked_at_graph_construction(sess):
    x = tf.zeros([2], name="x")

    with pytest.raises(ValueError, match=r"What\?\.  Tensor x:0 must have rank 2\.  Received rank 1, shape \(2,\)"):
        tf.assert_rank(x, 2, message="What?")
    with pytest.raises(ValueError, match="must have rank at least 2"):
        tf.assert_rank_at_least(x, 2)
    with pytest.raises(TypeError, match="x:0 must be of type tf.int32, got tf.float32"):
        tf.assert_type(x, tf.int32)
    unknown = tf.placeholder(tf.float32)
    sess.run([tf.assert_rank(x, 1), tf.assert_rank(unknown, 1)], {unknown: [1]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank 1"):
        sess.run(tf.assert_rank(unknown, 1), {unknown: 1})
