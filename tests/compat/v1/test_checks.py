"""What looks at values on the way: `Print`, `Assert` and its kind."""

from __future__ import annotations

import numpy as np
import pytest

import hookline.compat.v1 as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_print_shows_values_and_lets_the_gradient_through(capfd):
    x = tf.placeholder(tf.float32, [3])
    y = tf.Print(x * 2, [tf.shape(x), x], "seen: ", first_n=2, summarize=2)
    (slope,) = tf.gradients(y, [x])

    with tf.Session() as sess:
        for _ in range(3):
            value, slopes = sess.run([y, slope], {x: [1, 2, 3]})

    assert value.tolist() == [2.0, 4.0, 6.0]
    assert slopes.tolist() == [2.0, 2.0, 2.0]
    assert capfd.readouterr().err.count("seen: [3][1. 2.]") == 2


def test_a_check_that_fails_ends_the_run():
    x = tf.placeholder(tf.float32, [2])
    with tf.control_dependencies([tf.assert_positive(x), tf.assert_less(x, 5.0), tf.Assert(x[0] < 4, [x])]):
        y = tf.identity(x)
    safe = tf.check_numerics(tf.log(x), "the logarithm")

    with tf.Session() as sess:
        assert sess.run(y, {x: [1, 2]}).tolist() == [1.0, 2.0]
        assert sess.run(safe, {x: [1, 1]}).tolist() == [0.0, 0.0]
        with pytest.raises(tf.errors.OpError, match="assert_less"):
            sess.run(y, {x: [1, 6]})
    with tf.Session() as sess, pytest.raises(tf.errors.OpError, match="the logarithm"):
        sess.run(safe, {x: [1, -1]})


def test_a_rank_is_checked_where_the_graph_is_built():
    with pytest.raises(ValueError, match="rank 2 is required"):
        tf.assert_rank(tf.zeros([2]), 2)


def test_the_first_of_equal_elements_gets_the_gradient_of_a_pool():
    x = tf.placeholder(tf.float32, [1, 4, 4, 1])
    overlapping = tf.nn.max_pool(x, [1, 3, 3, 1], [1, 1, 1, 1], "SAME")
    (slope,) = tf.gradients(tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), [x])

    with tf.Session() as sess:
        slopes = sess.run(slope, {x: np.zeros((1, 4, 4, 1))})[0, :, :, 0]
        assert sess.run(overlapping, {x: -np.ones((1, 4, 4, 1))}).max() == -1.0

    assert slopes.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
