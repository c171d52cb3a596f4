"""Random operations of `hookline_tf1`: `make conformance` compares them with TensorFlow's; here each one runs."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf

# Each distribution, with its mean and its standard deviation.
DRAWN = {
    "normal": (lambda: tf.random_normal([4000], 1.0, 2.0), 1.0, 2.0),
    "truncated": (lambda: tf.truncated_normal([4000], stddev=2.0), 0.0, 1.76),
    "uniform": (lambda: tf.random_uniform([4000], -1, 3), 1.0, 1.155),
    "integers": (lambda: tf.random_uniform([4000], maxval=4, dtype=tf.int32), 1.5, 1.118),
    "gamma": (lambda: tf.random_gamma([4000], 2.0, 2.0), 1.0, 0.707),
    "poisson": (lambda: tf.random_poisson(3.0, [4000]), 3.0, 1.732),
    "poisson of each": (lambda: tf.random.poisson([[3.0], [3.0]], [2000]), 3.0, 1.732),
    "categories": (lambda: tf.multinomial(tf.log([[0.5, 0.25, 0.25]]), 4000), 0.75, 0.829),
    "shuffled": (lambda: tf.random_shuffle(tf.range(100)), 49.5, 28.87),
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_values_have_mean_and_spread_differ_by_run_and_follow_the_seed(name):
    draw, mean, spread = DRAWN[name]
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            tf.set_random_seed(4)
            drawn = draw()
            with tf.Session() as session:
                found.append((session.run(drawn), session.run(drawn)))
    for first, second in found:
        assert np.mean(first) == pytest.approx(mean, abs=0.15)
        assert np.std(first) == pytest.approx(spread, abs=0.15)
        assert not np.array_equal(first, second)
    np.testing.assert_array_equal(found[0], found[1])
