"""Gradients at a function's corner are TensorFlow's, as literals."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.mark.parametrize(
    ("function", "at", "gradient"),
    [
        (lambda x: tf.maximum(x, 0.2 * x), [0.0], [1.0]),
        (lambda x: tf.maximum(0.0, x), [0.0], [0.0]),
        (lambda x: tf.maximum(x, 0.0), [0.0, 2.0, -2.0], [1.0, 1.0, 0.0]),
        (lambda x: tf.minimum(x, 1.0), [1.0], [1.0]),
        (lambda x: tf.clip_by_value(x, 0.0, 1.0), [0.0, 0.5, 1.0, 2.0], [1.0, 1.0, 1.0, 0.0]),
        (tf.nn.leaky_relu, [0.0, 1.0], [0.2, 1.0]),
        (tf.nn.selu, [0.0], [1.050701]),
        (tf.abs, [0.0, -3.0], [0.0, -1.0]),
        (lambda x: tf.nn.sigmoid_cross_entropy_with_logits(labels=[0.0, 1.0], logits=x), [0.0, 0.0], [0.5, -0.5]),
        (lambda x: tf.nn.weighted_cross_entropy_with_logits([1.0], x, 2.0), [0.0], [0.0]),
        (lambda x: tf.clip_by_norm(x, 1.0), [0.0, 0.0], [1.0, 1.0]),
        (lambda x: tf.losses.absolute_difference([0.0, 5.0], x), [0.0, 0.0], [0.0, -0.5]),
    ],
)
def test_gradient_at_a_corner_equals_tensorflows(function, at, gradient, sess):
    x = tf.placeholder(tf.float32, [len(at)])
    (found,) = tf.gradients(function(x), x)
    np.testing.assert_allclose(sess.run(found, {x: at}), gradient, rtol=1e-6)


def test_integer_arguments_do_not_prevent_gradients(sess):
    x = tf.placeholder(tf.float32, [])
    steps = tf.maximum(tf.constant(3), 2)
    (found,) = tf.gradients(tf.maximum(x, 1.0) * tf.to_float(tf.abs(steps)), x)
    assert sess.run(found, {x: 2.0}) == 3


def test_line_of_text_is_no_array(tmp_path, sess):
    path = tmp_path / "lines"
    path.write_text("a,1\nb,2\n")
    line = tf.data.TextLineDataset(str(path)).make_one_shot_iterator().get_next()
    assert sess.run(line).split(b",") == [b"a", b"1"]
