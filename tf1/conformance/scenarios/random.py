"""Random functions of `hookline_tf1`: the numbers are others than TensorFlow's, but of the same kind."""

from __future__ import annotations

import numpy as np

from conformance.scenario import Record, scenario
from conformance.system import System

CALLS: dict[str, tuple[str, float, float]] = {
    "normal": ("tf.random_normal([80, 50], 1.0, 2.0)", 1.0, 2.0),
    "truncated": ("tf.truncated_normal([80, 50], stddev=2.0)", 0.0, 1.76),
    "uniform": ("tf.random_uniform([80, 50])", 0.5, 0.289),
    "bounds": ("tf.random_uniform([80, 50], -1, 3)", 1.0, 1.155),
    "integers": ("tf.random_uniform([80, 50], maxval=4, dtype=tf.int32)", 1.5, 1.118),
    "gamma": ("tf.random_gamma([4000], 2.0, 2.0)", 1.0, 0.707),
    "poisson": ("tf.random_poisson(3.0, [4000])", 3.0, 1.732),
    "categories": ("tf.multinomial(tf.log([[0.5, 0.25, 0.25]]), 4000)", 0.75, 0.829),
    "dropout": ("tf.nn.dropout(tf.ones([80, 50]), 0.8)", 1.0, 0.5),
    "dropout_rate": ("tf.nn.dropout(tf.ones([80, 50]), rate=0.8)", 1.0, 2.0),
    "rows": ("tf.nn.dropout(tf.ones([4000, 3]), keep_prob=keep, noise_shape=[4000, 1])", 1.0, 1.0),
    "open": ("tf.random_normal([tf.shape(x)[0] * 80, 50], dtype=tf.float32)", 0.0, 1.0),
}


@scenario("v1.random.distributions")
def _(s: System) -> Record:
    """Shapes, dtypes, means and spreads are those of TensorFlow's functions, and each run draws again."""
    tf, found = s.tf, {}
    x, keep = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32)
    made = {name: eval(call, {"tf": tf, "x": x, "keep": keep}) for name, (call, *_) in CALLS.items()}
    feeds = {x: [0.0], keep: 0.5}
    with tf.Session() as sess:
        first, second = sess.run(made, feeds), sess.run(made, feeds)
    for name, (_, mean, spread) in CALLS.items():
        value = np.asarray(first[name], "float64")
        found[name] = [
            list(value.shape),
            made[name].get_shape().as_list(),
            first[name].dtype.name.replace("64", "32"),
            bool(abs(value.mean() - mean) < 0.12 * spread),
            bool(abs(value.std() / spread - 1) < 0.08),
            bool(np.any(first[name] != second[name])),
        ]
    return found


@scenario("v1.random.arrangements")
def _(s: System) -> Record:
    """What is shuffled stays whole, and what is cut is a part."""
    tf = s.tf
    rows = np.arange(200.0).reshape(100, 2)
    shuffled, cut = tf.random_shuffle(rows.astype("float32")), tf.random_crop(rows.astype("float32"), [10, 2])
    flipped = tf.image.random_flip_left_right(np.arange(6.0, dtype="float32").reshape(1, 6, 1), seed=1)
    brighter = tf.image.random_brightness(np.zeros((2, 2, 1), "float32"), 0.5)
    contrasted = tf.image.random_contrast(np.arange(6.0, dtype="float32").reshape(1, 6, 1), 0.5, 1.5)
    with tf.Session() as sess:
        all_rows, part = sess.run([shuffled, cut])
        pictures = [sess.run([flipped, brighter, contrasted]) for _ in range(12)]
    return {
        "kept": sorted(all_rows[:, 0].tolist()) == rows[:, 0].tolist(),
        "pairs": bool((all_rows[:, 1] - all_rows[:, 0] == 1).all()),
        "moved": bool((all_rows != rows).any()),
        "cut": [list(part.shape), bool((np.diff(part[:, 0]) == 2).all())],
        "flips": sorted({float(picture[0].ravel()[0]) for picture in pictures}),
        "brightness": [len({float(p[1].ravel()[0]) for p in pictures}) > 6, all(np.ptp(p[1]) == 0 for p in pictures)],
        "contrast": all(0.49 < np.ptp(p[2]) / 5 < 1.51 for p in pictures),
    }
