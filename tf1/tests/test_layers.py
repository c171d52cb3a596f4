"""`tf.layers`: names, sharing, shapes, and batch normalisation with its updates."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


def names():
    return [variable.op.name for variable in tf.global_variables()]


def run(fetches, feed=None):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        return sess.run(fetches, feed)


def test_layers_are_numbered():
    x = tf.placeholder(tf.float32, [None, 4])
    y = tf.layers.dense(tf.layers.dense(x, 3), 2, use_bias=False)

    assert names() == ["dense/kernel", "dense/bias", "dense_1/kernel"]
    assert y.get_shape().as_list() == [None, 2]


def test_layers_are_shared_by_name():
    x = tf.ones([2, 4])
    one = tf.layers.dense(x, 3, name="fc")
    with pytest.raises(ValueError, match="fc/kernel already exists"):
        tf.layers.dense(x, 3, name="fc")
    other = tf.layers.dense(x, 3, name="fc", reuse=True)

    assert names() == ["fc/kernel", "fc/bias"]
    a, b = run([one, other])
    np.testing.assert_array_equal(a, b)


def test_layers_of_a_scope_are_shared_by_the_scope():
    def net(x):
        return tf.layers.dense(tf.layers.dense(x, 3), 1)

    with tf.variable_scope("critic"):
        net(tf.ones([2, 4]))
    with tf.variable_scope("critic", reuse=True):
        net(tf.zeros([2, 4]))

    assert names() == [f"critic/{layer}/{part}" for layer in ("dense", "dense_1") for part in ("kernel", "bias")]


def test_layer_object_may_be_called_again():
    layer = tf.layers.Dense(3, name="fc")
    one, other = layer(tf.ones([2, 4])), layer(tf.ones([2, 4]))

    assert [variable.name for variable in layer.trainable_weights] == ["fc/kernel:0", "fc/bias:0"]
    assert layer.count_params() == 15
    a, b = run([one, other])
    np.testing.assert_array_equal(a, b)


def test_regularizers_and_activations_are_applied():
    tf.layers.dense(
        tf.ones([2, 4]), 3, activation=tf.nn.relu, kernel_initializer=tf.ones_initializer(),
        kernel_regularizer=tf.reduce_sum, activity_regularizer=tf.reduce_sum,
    )  # fmt: skip

    assert run(tf.losses.get_regularization_losses()) == [12.0, 12.0]


def test_convolutions_and_pools_have_tensorflows_shapes():
    x = tf.zeros([2, 7, 8, 3])
    shapes = {
        "conv": tf.layers.conv2d(x, 4, 3, strides=2, padding="same"),
        "valid": tf.layers.conv2d(x, 4, (3, 2), dilation_rate=2),
        "transposed": tf.layers.conv2d_transpose(x, 4, 3, strides=2),
        "max": tf.layers.max_pooling2d(x, 2, 2, "same"),
        "mean": tf.layers.average_pooling2d(x, 3, 1),
        "flat": tf.layers.flatten(x),
        "separable": tf.layers.separable_conv2d(x, 5, 3, depth_multiplier=2),
    }

    assert {name: tensor.get_shape().as_list() for name, tensor in shapes.items()} == {
        "conv": [2, 4, 4, 4],
        "valid": [2, 3, 6, 4],
        "transposed": [2, 15, 17, 4],
        "max": [2, 4, 4, 3],
        "mean": [2, 5, 6, 3],
        "flat": [2, 168],
        "separable": [2, 5, 6, 5],
    }


def test_average_and_max_pooling_exclude_the_padding():
    x = tf.ones([1, 3, 3, 1])

    np.testing.assert_array_equal(run(tf.layers.average_pooling2d(x, 2, 1, "same")), np.ones((1, 3, 3, 1)))
    assert run(tf.nn.max_pool(-x, [1, 3, 3, 1], [1, 1, 1, 1], "SAME")).max() == -1.0


def test_dropout_is_applied_only_in_training(sess):
    x, training = tf.ones([1000]), tf.placeholder(tf.bool, [])
    y = tf.layers.dropout(x, 0.25, training=training)
    kept = sess.run(y, {training: True})
    np.testing.assert_array_equal(sess.run(y, {training: False}), np.ones(1000))
    assert 0.6 < np.mean(kept > 0) < 0.9
    np.testing.assert_allclose(kept.max(), 4 / 3, rtol=1e-6)


def test_batch_normalisation_differs_in_training_and_inference(sess):
    x, training = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.bool, [])
    y = tf.layers.batch_normalization(x, momentum=0.5, epsilon=0.0, training=training)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    batch = np.array([[1.0, 2.0], [3.0, 6.0]])

    assert names() == [f"batch_normalization/{part}" for part in ("gamma", "beta", "moving_mean", "moving_variance")]
    assert len(tf.trainable_variables()) == 2
    sess.run(tf.global_variables_initializer())
    np.testing.assert_allclose(sess.run(y, {x: batch, training: True}), [[-1, -1], [1, 1]], rtol=1e-6)
    sess.run(updates, {x: batch, training: True})
    np.testing.assert_allclose(sess.run(tf.global_variables()[2:]), [[1.0, 2.0], [1.0, 2.5]])
    sess.run(updates, {x: batch, training: False})
    np.testing.assert_allclose(sess.run(tf.global_variables()[2:]), [[1.0, 2.0], [1.0, 2.5]])
    found = sess.run(y, {x: batch, training: False})
    np.testing.assert_allclose(found, (batch - [1, 2]) / np.sqrt([1.0, 2.5]), rtol=1e-6)


def test_moving_variance_of_images_is_unbiased(sess):
    x = tf.constant(np.arange(4.0).reshape(1, 2, 2, 1))
    tf.layers.batch_normalization(x, momentum=0.0, training=True)
    sess.run(tf.global_variables_initializer())
    sess.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    np.testing.assert_allclose(sess.run(tf.global_variables()[3]), [5 / 3], rtol=1e-6)


def test_update_ops_are_run_in_training(sess):
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.batch_normalization(x, training=True), 1) - 1.0))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdamOptimizer(0.1).minimize(loss)
    batch = np.random.RandomState(0).randn(8, 3)
    sess.run(tf.global_variables_initializer())
    losses = [sess.run([loss, train_op], {x: batch})[0] for _ in range(50)]
    mean = sess.run(tf.global_variables()[2])
    assert losses[-1] < losses[0] / 2
    np.testing.assert_allclose(mean, batch.mean(0) * (1 - 0.99**50), rtol=1e-4)


def test_user_layer_may_be_defined():
    class Scaled(tf.layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight("scale", [int(input_shape[-1])], initializer=tf.ones_initializer())

        def call(self, inputs):
            return inputs * self.scale * 2.0

    np.testing.assert_array_equal(run(Scaled()(tf.ones([1, 2]))), [[2.0, 2.0]])
    assert names() == ["scaled/scale"]


def test_unknown_dimension_is_named():
    with pytest.raises(ValueError, match="Dense requires inputs whose dimension -1 is known"):
        tf.layers.dense(tf.placeholder(tf.float32, [2, None]), 3)


def test_shape_is_known_after_a_cond_of_unknown_shape():
    switch = tf.placeholder(tf.bool)
    normed = tf.layers.batch_normalization(tf.placeholder(tf.float32, [None, 4]), training=switch)

    assert normed.shape.as_list() == [None, 4]
    assert tf.layers.dropout(normed, training=switch).shape.as_list() == [None, 4]


def test_transposed_convolution_has_the_requested_shape():
    x, kernel = tf.placeholder(tf.float32, [None, 4, 4, 3]), tf.ones([5, 5, 2, 3])
    fixed = tf.nn.conv2d_transpose(x, kernel, [6, 8, 8, 2], [1, 2, 2, 1])
    from_batch = tf.nn.conv2d_transpose(x, kernel, [tf.shape(x)[0], 8, 8, 2], [1, 2, 2, 1])

    assert fixed.get_shape().as_list() == [6, 8, 8, 2]
    assert from_batch.get_shape().as_list() == [None, 8, 8, 2]
    assert run(from_batch, {x: np.ones((5, 4, 4, 3))}).shape == (5, 8, 8, 2)


@pytest.mark.parametrize("size", [2, 3])
def test_gradient_of_a_maximum_goes_to_the_first_of_several(size):
    x = tf.ones([1, 5, 5, 1])
    y = tf.layers.max_pooling2d(x, size, size)

    grads = run(tf.gradients(y, x)[0])[0, :, :, 0]
    expected = np.zeros((5, 5))
    expected[: 5 - 5 % size : size, : 5 - 5 % size : size] = 1.0
    np.testing.assert_array_equal(grads, expected)
