"""Sizes known only in a run: shapes that TensorFlow 2.15 infers before it, and the results of a run."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.fixture
def given():
    with tf.Graph().as_default():
        yield SimpleNamespace(
            size=tf.placeholder(tf.int32, []),
            sizes=tf.placeholder(tf.int32, [None]),
            two=tf.placeholder(tf.int32, [2]),
            three=tf.placeholder(tf.int32, [3]),
            pads=tf.placeholder(tf.int32, [2, 2]),
            x=tf.placeholder(tf.float32, [None, 3]),
            ids=tf.placeholder(tf.int32, [None, None]),
            image=tf.placeholder(tf.float32, [None, 14, 14, 16]),
            large=tf.placeholder(tf.float32, [None, 28, 28, 64]),
            any_rank=tf.placeholder(tf.float32),
        )


def deconvolved(of, shape):
    return tf.nn.conv2d_transpose(of.image, tf.zeros([5, 5, 64, 16]), shape, [1, 2, 2, 1])


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda of: deconvolved(of, tf.stack([tf.shape(of.image)[0], 28, 28, 64])), [None, 28, 28, 64]),
        (lambda of: deconvolved(of, [tf.shape(of.image)[0], 28, 28, 64]), [None, 28, 28, 64]),
        (lambda of: deconvolved(of, tf.stack([of.size, 28, 28, 64])), [None, 28, 28, 64]),
        (lambda of: deconvolved(of, tf.concat([tf.shape(of.image)[:1], [28, 28, 64]], 0)), [None, 28, 28, 64]),
        (lambda of: deconvolved(of, tf.shape(of.large)), [None, 28, 28, 64]),
        (lambda of: deconvolved(of, of.sizes), [None, None, None, None]),
        (lambda of: tf.range(of.size), [None]),
        (lambda of: tf.range(0, of.size, 2), [None]),
        (lambda of: tf.range(of.size, 10), [None]),
        (lambda of: tf.expand_dims(tf.range(of.size), 0), [1, None]),
        (lambda of: tf.pad(of.x, [[0, of.size], [0, 0]]), [None, 3]),
        (lambda of: tf.pad(of.x, [[of.size, of.size], [1, 1]]), [None, 5]),
        (lambda of: tf.pad(of.x, of.pads), [None, None]),
        (lambda of: tf.reshape(of.x, tf.stack([of.size, 2, 3])), [None, 2, 3]),
        (lambda of: tf.reshape(of.x, [of.size, -1, 3]), [None, None, 3]),
        (lambda of: tf.reshape(of.x, of.three), [None, None, None]),
        (lambda of: tf.reshape(of.any_rank, [-1, 4]), [None, 4]),
        (lambda of: tf.reshape(of.x, [tf.placeholder(tf.int32), 3, 1]), [None, 3, 1]),
        (lambda of: tf.zeros(tf.stack([tf.placeholder(tf.int32), 2])), [None, 2]),
        (lambda of: tf.zeros([of.size - of.two[0], 2]), [None, 2]),
        (lambda of: tf.reshape(of.any_rank, [of.size, 4]), [None, 4]),
        (lambda of: tf.tile(of.x, [of.size, 2]), [None, 6]),
        (lambda of: tf.tile(of.x, of.two), [None, None]),
        (lambda of: tf.tile(tf.zeros([1, 4]), tf.concat([[of.size], [1]], 0)), [None, 4]),
        (lambda of: tf.fill([of.size, 3], 1), [None, 3]),
        (lambda of: tf.zeros(tf.stack([of.size, 4])), [None, 4]),
        (lambda of: tf.zeros(tf.stack([tf.shape(of.x)[0], tf.constant(3)])), [None, 3]),
        (lambda of: tf.ones([tf.minimum(of.size, 0), 4]), [None, 4]),
        (lambda of: tf.random_normal([of.size, 4]), [None, 4]),
        (lambda of: tf.random_uniform(of.three), [None, None, None]),
        (lambda of: tf.truncated_normal(tf.stack([of.size, 4])), [None, 4]),
        (lambda of: tf.random_crop(tf.zeros([9, 9, 3]), [of.size, of.size, 3]), [None, None, 3]),
        (lambda of: tf.concat([of.x, tf.zeros([of.size, 2])], 1), [None, 5]),
        (lambda of: tf.concat([tf.zeros([of.size, 3]), of.x], 0), [None, 3]),
        (lambda of: tf.gather(of.x, tf.range(of.size)), [None, 3]),
        (lambda of: tf.one_hot(tf.range(of.size), 4), [None, 4]),
        (lambda of: tf.one_hot(of.ids, of.size), [None, None, None]),
        (lambda of: tf.slice(of.x, [0, 0], [of.size, 2]), [None, 2]),
        (lambda of: tf.slice(of.x, [of.size, 0], [2, 2]), [2, 2]),
        (lambda of: tf.slice(of.x, of.two, [-1, 2]), [None, 2]),
        (lambda of: of.x[: of.size], [None, 3]),
        (lambda of: of.x[..., of.size :], [None, None]),
        (lambda of: of.image[of.size, 1:-1, :: of.size], [12, None, 16]),
        (lambda of: tf.strided_slice(of.x, [0, 0], [of.size, 2]), [None, None]),
        (lambda of: tf.sequence_mask([1, 2], of.size), [2, None]),
        (lambda of: tf.image.resize_images(of.image, [of.size, of.size]), [None, None, None, 16]),
        (lambda of: tf.image.resize_nearest_neighbor(of.image, of.two), [None, None, None, 16]),
        (lambda of: tf.linspace(0.0, 1.0, of.size), [None]),
        (lambda of: tf.nn.top_k(of.x, of.size)[1], [None, None]),
        (lambda of: tf.broadcast_to(tf.zeros([1, 4]), [of.size, 4]), [None, 4]),
        (lambda of: tf.eye(of.size, 3), [None, 3]),
        (lambda of: tf.scatter_nd([[0]], [[1.0, 2.0]], [of.size, 2]), [None, 2]),
        (lambda of: tf.unstack(tf.zeros([of.size, 3]), axis=1)[0], [None]),
        (lambda of: tf.matmul(tf.zeros([of.size, 4]), tf.zeros([4, 2])), [None, 2]),
        (lambda of: tf.zeros([of.size, 1]) * tf.zeros([4]), [None, 4]),
    ],
)
def test_known_shapes_equal_those_of_tensorflow(given, make, shape):
    assert make(given).shape.as_list() == shape


@pytest.mark.parametrize(
    "make",
    [
        lambda of: tf.zeros(of.sizes),
        lambda of: tf.reshape(of.x, of.sizes),
        lambda of: of.x[0, tf.placeholder(tf.int32)],
        lambda of: tf.ones(tf.placeholder(tf.int32)),
    ],
)
def test_rank_may_be_unknown(given, make):
    assert make(given).shape.ndims is None


def test_dtype_follows_the_arguments(given):
    assert tf.range(given.size).dtype == tf.int32
    assert tf.range(given.size, dtype=tf.float32).dtype == tf.float32
    assert tf.fill([given.size], 1.0).dtype == tf.float32
    assert tf.one_hot([1], given.size, dtype=tf.int32).dtype == tf.int32
    assert tf.image.resize_images(tf.zeros([4, 4, 1], tf.uint8), given.two).dtype == tf.float32
    assert tf.image.resize_images(tf.zeros([4, 4, 1], tf.uint8), given.two, 1).dtype == tf.uint8


def run(fetches, feed_dict=None):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed_dict)


def test_layer_after_a_transposed_convolution_of_a_fed_batch_trains(given, sess):
    kernel = tf.get_variable("kernel", [5, 5, 2, 16])
    made = tf.nn.conv2d_transpose(given.image, kernel, tf.stack([given.size, 28, 28, 2]), [1, 2, 2, 1])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.reshape(made, [-1, 28 * 28 * 2]), 3) - 1))
    train = tf.train.GradientDescentOptimizer(1e-4).minimize(loss)

    sess.run(tf.global_variables_initializer())
    feeds = {given.image: np.ones((2, 14, 14, 16)), given.size: 2}
    before, _ = sess.run([loss, train], feeds)
    assert sess.run(loss, feeds) < before


def test_positions_of_a_sequence_are_looked_up(given):
    ids = given.ids
    places = tf.tile(tf.expand_dims(tf.range(tf.shape(ids)[1]), 0), [tf.shape(ids)[0], 1])
    table = tf.constant(np.arange(20.0).reshape(10, 2))
    made = tf.layers.dense(tf.nn.embedding_lookup(table, places), 2, kernel_initializer=tf.ones_initializer())

    assert made.shape.as_list() == [None, None, 2]
    assert run(made, {ids: np.zeros((2, 3))})[:, :, 0].tolist() == [[1.0, 5.0, 9.0]] * 2


def test_each_fed_size_has_its_own_program_with_a_log_line(given, caplog):
    rows = tf.zeros([given.size, 2]) + tf.to_float(given.size)

    with caplog.at_level(logging.INFO, "hookline"), tf.Session() as session:
        found = [session.run([rows, given.size], {given.size: size}) for size in (3, 2, 3)]

    assert [(value.shape, value[0, 0], size) for value, size in found] == [
        ((3, 2), 3, 3),
        ((2, 2), 2, 2),
        ((3, 2), 3, 3),
    ]
    assert caplog.text.count("Compiling a program") == 2
    assert "Placeholder:0 is 2, it was 3" in caplog.text


def test_fed_number_is_static_only_if_a_size_depends_on_it(given, caplog):
    number, rows = tf.to_float(given.size) + 1, tf.zeros([given.size * 2])

    with caplog.at_level(logging.INFO, "hookline"), tf.Session() as session:
        assert [session.run(number, {given.size: size}) for size in (3, 2, 4)] == [4, 3, 5]
        assert caplog.text.count("Compiling a program") == 1
        assert [session.run(rows, {given.size: size}).shape for size in (3, 2)] == [(6,), (4,)]
    assert caplog.text.count("Compiling a program") == 3


def test_size_may_be_computed_from_feeds_and_constants(given):
    half = given.size // tf.constant(2)
    by_default = tf.placeholder_with_default(4, [])

    assert run(tf.ones(tf.stack([half, 3])), {given.size: 5}).shape == (2, 3)
    assert tf.range(by_default).shape.as_list() == [None]
    assert run(tf.range(by_default)).tolist() == [0, 1, 2, 3]
    assert run(tf.range(by_default), {by_default: 2}).tolist() == [0, 1]
    assert run(tf.reshape(given.x, given.two), {given.x: np.zeros((2, 3)), given.two: [6, 1]}).shape == (6, 1)


def test_constants_beside_shapes_give_sizes(given):
    made = tf.zeros(tf.stack([tf.shape(given.x)[0], tf.constant(3)]))

    assert run(made, {given.x: np.zeros((4, 3))}).shape == (4, 3)


def test_slice_with_a_fed_begin_needs_no_other_program(given, caplog):
    x = tf.constant([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    part = tf.slice(x, [given.size, 1], [1, -1])

    with caplog.at_level(logging.INFO, "hookline"), tf.Session() as session:
        assert [session.run(part, {given.size: at}).tolist() for at in (0, 2)] == [[[2.0, 3.0]], [[8.0, 9.0]]]
        with pytest.raises(Exception, match="Write the size"):
            session.run(tf.slice(x, [given.size, 0], [-1, 1]), {given.size: 1})
    assert part.shape.as_list() == [1, 2]
    assert caplog.text.count("Compiling a program (") == 1


def test_maximum_and_minimum_of_numbers_give_sizes(given, sess):
    longest, shape = tf.reduce_max(given.sizes), tf.shape(given.ids)
    mask, less = tf.sequence_mask(given.sizes, longest), tf.zeros([tf.reduce_min(given.sizes) + 1, 2])
    side, back = tf.zeros([tf.reduce_max(shape), tf.reduce_min(shape)]), tf.zeros([-tf.negative(longest)])

    assert mask.shape.as_list() == [None, None]
    assert (less.shape.as_list(), side.shape.as_list()) == ([None, 2], [None, None])
    assert tf.zeros([tf.reduce_max([2, 3])]).shape.as_list() == [3]
    for sizes in ([1, 3], [2, 2, 1], [1, 3]):
        shapes = [found.shape for found in sess.run([mask, less, back], {given.sizes: sizes})]
        assert shapes == [(len(sizes), max(sizes)), (2, 2), (max(sizes),)]
    assert sess.run(side, {given.ids: [[1, 2, 3]]}).shape == (3, 1)


def test_image_cropped_to_a_computed_size_keeps_its_channels():
    with tf.Graph().as_default():
        x, y = (tf.placeholder(tf.float32, [None, None, None, 8]) for _ in range(2))
        pooled, sizes = tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), tf.shape(y)
        cropped = tf.slice(pooled, [0, 0, 0, 0], [-1, sizes[1], sizes[2], -1])
        assert cropped.shape.as_list() == [None, None, None, 8]
        assert tf.concat([cropped, y], 3).shape.as_list() == [None, None, None, 16]
