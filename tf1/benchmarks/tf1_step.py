"""Training steps as TF 1.x scripts write them, on either system; see `tf1_scripts.py`."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

tf: Any = None
BATCH = 64


def data(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(BATCH, inputs)).astype("float32"), rng.normal(size=(BATCH, outputs)).astype("float32")


def dense(x: Any, inputs: int, outputs: int, name: str) -> Any:
    w = tf.get_variable(f"{name}/w", [inputs, outputs], initializer=tf.glorot_uniform_initializer(seed=1))
    return tf.matmul(x, w) + tf.get_variable(f"{name}/b", [outputs], initializer=tf.zeros_initializer())


def network(x: Any, y: Any, *sizes: int) -> Any:
    for place, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        x = dense(x if place == 0 else tf.nn.relu(x), inputs, outputs, f"layer{place}")
    return tf.reduce_mean(tf.square(x - y))


def fed(optimizer: Any, *sizes: int) -> Callable[[], object]:
    x, y = tf.placeholder(tf.float32, [None, sizes[0]]), tf.placeholder(tf.float32, [None, sizes[-1]])
    loss = network(x, y, *sizes)
    train_op = optimizer.minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    feeds = dict(zip((x, y), data(sizes[0], sizes[-1]), strict=True))
    return lambda: session.run([train_op, loss], feed_dict=feeds)


def linear() -> Callable[[], object]:
    return fed(tf.train.GradientDescentOptimizer(0.01), 1, 1)


def mlp() -> Callable[[], object]:
    return fed(tf.train.AdamOptimizer(1e-3), 784, 128, 128, 10)


def monitored() -> Callable[[], object]:
    loss = network(*map(tf.constant, data(32, 1)), 32, 64, 1)
    tf.summary.scalar("loss", loss)
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    hooks = [tf.train.NanTensorHook(loss), tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=100)]
    session = tf.train.MonitoredTrainingSession(checkpoint_dir=tempfile.mkdtemp(), hooks=hooks)
    return lambda: session.run(train_op)


def main(module: str, kind: str) -> None:
    global tf
    tf = importlib.import_module(module)
    tf.disable_v2_behavior()
    step = {"linear": linear, "mlp": mlp, "monitored": monitored}[kind]()
    for line in sys.stdin:
        for _ in range(int(line)):
            step()
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
