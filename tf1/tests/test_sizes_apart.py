"""Open dimensions of several tensors are several sizes, whatever is inferred of them."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (lambda x, y, n, m: tf.slice(x, [n - m], [-1]), [None], [4, 5]),
        (lambda x, y, n, m: x[: n - m], [None], [1, 2, 3]),
        (lambda x, y, n, m: x[m:], [None], [3, 4, 5]),
        (lambda x, y, n, m: tf.zeros([n - m]), [None], [0, 0, 0]),
        (lambda x, y, n, m: tf.zeros([n // m, 1]), [None, 1], [[0], [0]]),
        (lambda x, y, n, m: tf.pad(y, [[0, n - m]]), [None], [1, 2, 0, 0, 0]),
        (lambda x, y, n, m: tf.tile([1.0], [n - m]), [None], [1, 1, 1]),
        (lambda x, y, n, m: tf.fill([n - m, 1], 2.0), [None, 1], [[2], [2], [2]]),
        (lambda x, y, n, m: tf.range(n - m), [None], [0, 1, 2]),
        (lambda x, y, n, m: tf.range(m, n), [None], [2, 3, 4]),
        (lambda x, y, n, m: x[m:n], [None], [3, 4, 5]),
        (lambda x, y, n, m: tf.reshape(x, [n - m + 2]), [None], [1, 2, 3, 4, 5]),
        (lambda x, y, n, m: tf.one_hot([0], n - m), [1, None], [[1, 0, 0]]),
    ],
)
def test_sizes_of_two_placeholders_are_distinct(make, shape, expected, sess):
    x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])

    made = make(x, y, tf.shape(x)[0], tf.shape(y)[0])

    assert made.shape.as_list() == shape
    np.testing.assert_allclose(sess.run(made, {x: [1, 2, 3, 4, 5], y: [1, 2]}), expected)


def test_rows_of_a_reshaped_tensor_are_not_its_batch(sess):
    x = tf.placeholder(tf.float32, [None, None, 3])
    rows = tf.reshape(x, [-1, 6])

    made = sess.run(tf.zeros([tf.shape(rows)[0] // tf.shape(x)[0]]), {x: np.ones((2, 4, 3))})

    assert made.shape == (2,)


def test_image_cropped_to_the_size_of_another_keeps_its_channels(sess):
    large, small = (tf.placeholder(tf.float32, [None, None, None, 3]) for _ in range(2))
    begin = (tf.shape(large) - tf.shape(small)) // 2

    crop = tf.slice(large, [0, begin[1], begin[2], 0], [-1, tf.shape(small)[1], tf.shape(small)[2], -1])

    both = tf.concat([crop, small], 3)
    assert both.shape.as_list() == [None, None, None, 6]
    fed = np.arange(48.0, dtype=np.float32).reshape(1, 4, 4, 3)
    found = sess.run(both, {large: fed, small: np.zeros((1, 2, 2, 3))})
    np.testing.assert_allclose(found[..., :3], fed[:, 1:3, 1:3])


def test_time_to_batch_before_a_convolution_is_not_refused(sess):
    x = tf.placeholder(tf.float32, [None, None, 4])
    sizes = tf.shape(x)
    padded = tf.pad(x, [[0, 0], [0, 1 - (sizes[1] + 1) % 2], [0, 0]])
    pairs = tf.transpose(tf.reshape(padded, [-1, 2, 4]), [1, 0, 2])
    made = tf.nn.conv1d(tf.reshape(pairs, [sizes[0] * 2, -1, 4]), tf.ones([2, 4, 4]), 1, "VALID")

    found = sess.run(made, {x: np.ones((1, 8, 4))})

    np.testing.assert_allclose(found, np.full((2, 3, 4), 8.0))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x, k: tf.ones([k]), "k:0"),
        (lambda x, k: tf.reduce_sum(x, k), "k:0"),
        (lambda x, k: tf.ones([k + 1]), "k:0"),
        (lambda x, k: tf.ones(tf.add(k, 1, name="sum")), "sum:0"),
        (lambda x, k: x[k:], "k:0"),
        (lambda x, k: tf.range(tf.shape(x, name="sizes")[0]), "sizes:0"),
        (lambda x, k: tf.range(tf.size(x, name="size")), "size:0"),
        (lambda x, k: tf.range(tf.rank(x, name="rank")), "rank:0"),
    ],
)
def test_feed_of_a_number_inside_the_graph_is_refused(make, name, sess):
    made = make(tf.constant([[1.0, 2], [3, 4]]), tf.constant(1, name="k"))

    sess.run(made)
    with pytest.raises(ValueError, match=rf"{name}.*part of the graph already.*tf.placeholder_with_default"):
        sess.run(made, {name: 1})


def test_feeds_of_sizes_outside_the_graph_take_effect(sess):
    x, default = tf.placeholder(tf.float32, [None, 3]), tf.placeholder_with_default(4, [])
    shape, number = tf.shape(x), tf.constant(1)
    rows, columns, more = tf.ones([shape[0]]), tf.ones([shape[1]]), tf.ones([default])
    assert sess.run(rows, {shape: [5, 3]}).shape == (5,)
    assert sess.run(columns, {shape: [5, 3]}).shape == (3,)
    assert sess.run(columns, {x: [[1, 2, 3]]}).shape == (3,)
    assert sess.run(more, {default: 2}).shape == (2,)
    assert sess.run(number + 1, {number: 2}) == 3
