"""Integers of Python that int32 cannot hold, beside floating tensors."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: tf.ones_like(x) * (-(2**32) + 1), -(2.0**32)),
        (lambda x: (-(2**32) + 1) * tf.to_float(tf.equal(x, 2.0)), -(2.0**32)),
        (lambda x: x / 10**10, 2e-10),
        (lambda x: 2**40 - x, 2.0**40),
        (lambda x: x > 2**40, 0),
        (lambda x: tf.multiply(x, 2**40), 2.0**41),
        (lambda x: tf.maximum(x, 2**40), 2.0**40),
        (lambda x: tf.minimum(x, 2**40), 2),
        (lambda x: tf.add(x, 2**40), 2.0**40),
        (lambda x: tf.subtract(2**40, x), 2.0**40),
        (lambda x: tf.clip_by_value(x, 2**33, 2**34), 2.0**33),
    ],
)
def test_large_integer_beside_a_float_tensor_becomes_a_float(make, expected, sess):
    x = tf.placeholder(tf.float32, [None, 2])
    made = make(x)
    assert made.shape.as_list() == [None, 2]
    np.testing.assert_allclose(sess.run(made, {x: np.full((1, 2), 2.0)}), np.full((1, 2), expected), rtol=1e-6)
