"""Shapes with open dimensions: the known part of a result, and refusals at graph construction."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


def opened(*dims):
    return tf.placeholder(tf.float32, dims)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: tf.matmul(x, tf.zeros([4, 5])),
         r"Dimensions must be equal, but are 3 and 4 for 'MatMul' \(op: 'MatMul'\) with .* \[\?,3\], \[4,5\]"),
        (lambda x: x + tf.zeros([4]), r"Dimensions must be equal, but are 3 and 4 for 'add' .*: \[\?,3\], \[4\]"),
        (lambda x: x - opened(None, 4), r"equal, but are 3 and 4 for 'sub' .*: \[\?,3\], \[\?,4\]"),
        (lambda x: tf.maximum(x, tf.zeros([2, 4])), r"equal, but are 3 and 4 for 'Maximum'"),
        (lambda x: tf.nn.bias_add(x, tf.zeros([4])), r"equal, but are 3 and 4 for 'BiasAdd'"),
        (lambda x: tf.concat([x, opened(None, 4)], 0), r"concatenate .* with input shapes: \[\?,3\], \[\?,4\]"),
        (lambda x: tf.stack([x, opened(None, 4)]), r"for 'stack' .* with input shapes: \[\?,3\], \[\?,4\]"),
        (lambda x: tf.reshape(x, [4, 5]), r"Dimension size must be evenly divisible by 3 but is 20 for 'Reshape'"),
        (lambda x: tf.squeeze(x, [1]), r"for 'Squeeze' .* with input shapes: \[\?,3\]"),
        (lambda x: tf.reduce_sum(x, 2), r"axis 2 is out of bounds .* 'Sum'"),
        (lambda x: tf.split(x, 2, 1), r"equal division.*for 'split'"),
        (lambda x: tf.transpose(x, [0, 2, 1]), r"for 'transpose'"),
        (lambda x: tf.tile(x, [2]), r"one multiple for each dimension is required"),
        (lambda x: tf.pad(x, [[1, 1]]), r"a pair for each dimension is required"),
        (lambda x: tf.matmul(x, opened(None)), r"Shape must be rank 2 but is rank 1"),
        (lambda x: tf.unstack(x, 4, 1), r"num=4 parts are wanted, but there are 3"),
        (lambda x: x[:, 5], r"slice index 5 of dimension 1 out of bounds"),
        (lambda x: x[:, -4], r"slice index -4 of dimension 1 out of bounds"),
        (lambda x: tf.losses.mean_squared_error(x, opened(None, 4)), r"equal, but are 3 and 4"),
        (lambda x: tf.nn.sigmoid_cross_entropy_with_logits(labels=opened(None), logits=x), r"must have the same shape"),
        (lambda x: tf.assign(tf.Variable(tf.zeros([2, 4])), x), r"Shapes \(2, 4\) and \(\?, 3\) are incompatible"),
    ],
)  # fmt: skip
def test_impossible_shapes_are_refused_at_graph_construction(make, text):
    with pytest.raises(ValueError, match=text):
        make(opened(None, 3))


def test_impossible_windows_and_channels_are_refused():
    image = opened(None, 8, 8, 3)

    with pytest.raises(ValueError, match=r"for 'Conv2D' .* shapes: \[\?,8,8,3\], \[3,3,4,8\]"):
        tf.nn.conv2d(image, tf.zeros([3, 3, 4, 8]), [1, 1, 1, 1], "SAME")
    with pytest.raises(ValueError, match="Negative dimension size caused by subtracting 9 from 8"):
        tf.nn.conv2d(image, tf.zeros([9, 9, 3, 8]), [1, 1, 1, 1], "VALID")
    with pytest.raises(ValueError, match="Negative dimension size caused by subtracting 9 from 8"):
        tf.nn.max_pool(image, [1, 9, 9, 1], [1, 1, 1, 1], "VALID")
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 4"):
        tf.nn.conv2d_transpose(image, tf.zeros([3, 3, 8, 4]), [2, 16, 16, 8], [1, 2, 2, 1])


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: tf.matmul(opened(None, None), tf.zeros([4, 5])), [None, 5]),
        (lambda x: tf.matmul(opened(None, None, 5), tf.zeros([2, 5, 4])), [2, None, 4]),
        (lambda x: x * opened(None), [None, 3]),
        (lambda x: opened(None, None) * tf.zeros([3, 4]), [3, 4]),
        (lambda x: x + tf.zeros([2, 1]), [2, 3]),
        (lambda x: tf.concat([x, tf.zeros([2, 3])], 1), [2, 6]),
        (lambda x: tf.squeeze(x, [0]), [3]),
        (lambda x: tf.reshape(x, [-1, 4, 4]), [None, 4, 4]),
        (lambda x: tf.reshape(opened(None, 13), [-1, 169]), [None, 169]),
        (lambda x: tf.reshape(opened(None, 8, 8, 3), [-1, 100]), [None, 100]),
        (lambda x: tf.tensordot(x, opened(None, 4), 1), [None, 4]),
        (lambda x: tf.einsum("ij,jk->ik", x, opened(None, 4)), [None, 4]),
        (lambda x: tf.split(x, 2, 0)[0], [None, 3]),
    ],
)
def test_known_part_of_a_result_shape_is_inferred(make, shape):
    assert make(opened(None, 3)).shape.as_list() == shape


def test_batch_of_twice_the_length_of_another_is_not_refused(sess):
    """As in a GAN: the labels of both halves are fed, and have the length of neither."""
    real, fake, labels = opened(None, 3), opened(None, 3), tf.placeholder(tf.float32, [None, 3])
    both = tf.concat([real, fake], 0)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=both))
    squared = tf.losses.mean_squared_error(labels, both)

    fed = {real: np.ones((2, 3)), fake: np.zeros((2, 3)), labels: np.ones((4, 3))}
    assert np.isfinite(sess.run([loss, squared], fed)).all()


def test_plain_list_gives_a_size(sess):
    x = opened(None, 3)
    places = tf.stack([tf.range(tf.shape(x)[0]), [0, 1, 2]], 1)

    assert places.shape.as_list() == [3, 2]
    assert sess.run(tf.gather_nd(x, places), {x: np.eye(3)}).tolist() == [1.0, 1.0, 1.0]


def test_sizes_in_arguments_are_checked_in_the_run(sess):
    x, many = opened(None, 3), opened(None)

    parts = tf.split(many, [3, 4])
    rows = tf.reshape(x, [tf.shape(many)[0], 1])
    fed = {many: np.arange(7.0), x: np.zeros((2, 3))}
    assert [part.tolist() for part in sess.run(parts, fed)] == [[0, 1, 2], [3, 4, 5, 6]]
    assert sess.run(rows, {**fed, many: np.zeros(6)}).shape == (6, 1)


def test_ambiguous_sizes_are_checked_in_the_run():
    x, y = opened(None, None, None, 3), opened(None, None, None, 4)

    total = x + y
    with tf.Session() as sess, pytest.raises(Exception, match="incompatible shapes for broadcasting"):
        sess.run(total, {x: np.zeros((1, 2, 2, 3)), y: np.zeros((1, 2, 2, 4))})
