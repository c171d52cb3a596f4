from __future__ import annotations

import inspect

import hookline_tf1 as tf


def test_location_of_an_operation_is_the_users_line():
    line = inspect.currentframe().f_lineno + 1
    product = tf.layers.dense(tf.zeros([2, 3]), 4, name="made_here")

    assert f"{__file__}:{line}" in product.op.location
