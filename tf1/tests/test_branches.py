"""`tf.cond`: the result of one of two branches, and the writes of a branch."""

from __future__ import annotations

import pytest

import hookline_tf1 as tf


def test_branch_is_chosen_in_the_run(sess):
    training, x = tf.placeholder(tf.bool, []), tf.placeholder(tf.float32, [None])
    one = tf.cond(training, lambda: x * 2, lambda: x)
    several = tf.cond(x[0] > 1, lambda: (x, {"a": 1.0}), lambda: (-x, {"a": 0.0}))
    (grad,) = tf.gradients(one, [x])

    assert sess.run([one, grad], {training: True, x: [3]}) == [[6.0], [2.0]]
    assert sess.run([one, grad], {training: False, x: [3]}) == [[3.0], [1.0]]
    assert sess.run(several, {x: [1]}) == ([-1.0], {"a": 0.0})
    assert one.shape.as_list() == [None]


def test_branch_writes_only_if_it_is_taken(sess):
    training, outer = tf.placeholder(tf.bool, []), tf.placeholder_with_default(True, [])
    count, mean = tf.Variable(0), tf.Variable(0.0, trainable=False)
    average = tf.train.ExponentialMovingAverage(0.5)
    value = tf.Variable(8.0)

    def update():
        inner = tf.cond(outer, lambda: tf.assign_add(count, 1), lambda: count + 0)
        with tf.control_dependencies([average.apply([value]), mean.assign(value), inner]):
            return tf.identity(value)

    result = tf.cond(training, update, lambda: tf.zeros([]))
    sess.run(tf.global_variables_initializer())
    state = [count, mean, average.average(value)]
    sess.run(value.assign(4.0))
    assert sess.run(result, {training: False}) == 0.0
    assert sess.run(state) == [0, 0.0, 8.0]
    assert sess.run(result, {training: True}) == 4.0
    assert sess.run(state) == [1, 4.0, 6.0]
    sess.run(result, {training: True, outer: False})
    assert sess.run(count) == 1


def test_operations_may_be_branches(sess):
    which, v = tf.placeholder(tf.bool, []), tf.Variable(1.0)
    op = tf.cond(which, lambda: tf.group(v.assign(5.0)), tf.no_op)

    sess.run(v.initializer)
    sess.run(op, {which: False})
    assert sess.run(v) == 1.0
    sess.run(op, {which: True})
    assert sess.run(v) == 5.0


def test_cases_are_tried_in_order(sess):
    x = tf.placeholder(tf.float32, [])
    made = tf.case([(x < 1, lambda: tf.constant(1)), (x < 2, lambda: tf.constant(2))], default=lambda: tf.constant(3))

    assert [sess.run(made, {x: value}) for value in (0.5, 1.5, 2.5)] == [1, 2, 3]


def test_invalid_branch_is_refused():
    with pytest.raises(ValueError, match="different structures"):
        tf.cond(tf.constant(True), lambda: tf.zeros([]), lambda: (tf.zeros([]), tf.zeros([])))
    with pytest.raises(TypeError, match="two functions"):
        tf.cond(tf.constant(True), tf.zeros([]), tf.zeros([]))
    numbers = tf.data.Dataset.from_tensor_slices([1.0, 2.0]).make_one_shot_iterator()
    with pytest.raises(NotImplementedError, match="takes an element of a dataset"):
        tf.cond(tf.constant(True), numbers.get_next, lambda: tf.zeros([]))
