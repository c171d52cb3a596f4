"""Settings without effect, and Python functions in the graph."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import hookline_tf1 as tf
from hookline_tf1._machinery import ignored_arguments  # To clear the record of logged lines.


def test_device_settings_are_accepted_and_logged_once(caplog):
    ignored_arguments.say_once.cache_clear()
    caplog.set_level(logging.INFO)
    settings = tf.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
    settings.gpu_options.allow_growth = True
    settings.gpu_options.per_process_gpu_memory_fraction = 0.5
    for name in ("/gpu:0", "/cpu:0", None):
        with tf.device(name):
            total = tf.constant(1.0) + 2.0
    with tf.Session(config=settings) as sess:
        assert sess.run(total) == 3.0
    assert tf.train.start_queue_runners() == []
    assert [r.getMessage().split(" ")[0] for r in caplog.records if "no effect" in r.getMessage()] == [
        "tf.device",
        "tf.ConfigProto",
        "tf.train.start_queue_runners",
    ]


def test_python_function_takes_and_returns_arrays(sess):
    x = tf.placeholder(tf.float32, [None])

    def both(values, factor, text):
        assert isinstance(values, np.ndarray)
        assert text == b"name"
        return values * factor, [len(values)]

    scaled, count = tf.py_func(both, [x, np.float32(2.0), "name"], [tf.float32, tf.int64])
    single = tf.py_func(lambda values: values.sum(), [x], tf.float32)
    single.set_shape([])
    values, number, total = sess.run([scaled, count, single + 1.0], {x: [1, 2]})
    assert values.tolist() == [2.0, 4.0]
    assert number.tolist() == [2]
    assert total == 4.0


def test_python_function_must_return_the_declared_values():
    wrong = tf.py_func(lambda: (1.0, 2.0, 3.0), [], [tf.float32, tf.float32])
    with tf.Session() as sess, pytest.raises(ValueError, match="returned 3 values, but Tout has 2"):
        sess.run(wrong)
