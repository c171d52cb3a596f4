"""The same step under TensorFlow's own sessions and hooks; see `in_processes.py`."""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf


def main(kind: str) -> None:
    tf.disable_v2_behavior()
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 32)).astype("float32"))
    y = tf.constant(rng.normal(size=(32, 1)).astype("float32"))
    w1 = tf.get_variable("w1", initializer=(rng.normal(size=(32, 64)) / 6).astype("float32"))
    b1 = tf.get_variable("b1", initializer=np.zeros(64, "float32"))
    w2 = tf.get_variable("w2", initializer=(rng.normal(size=(64, 1)) / 8).astype("float32"))
    b2 = tf.get_variable("b2", initializer=np.zeros(1, "float32"))
    loss = tf.reduce_mean((tf.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)
    tf.summary.scalar("loss", loss)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(1e-2).minimize(loss, step)
    if kind == "bare":
        session = tf.Session()
        session.run(tf.global_variables_initializer())
    else:
        folder = tempfile.mkdtemp()
        hooks = [
            tf.train.StopAtStepHook(last_step=10**9),
            tf.train.StepCounterHook(output_dir=folder),
            tf.train.SummarySaverHook(
                save_steps=100, output_dir=folder, scaffold=tf.train.Scaffold(summary_op=tf.summary.merge_all())
            ),
            tf.train.CheckpointSaverHook(folder, save_secs=600),
            tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=100),
            tf.train.NanTensorHook(loss),
        ]
        session = tf.train.MonitoredSession(hooks=hooks)
    for line in sys.stdin:
        for _ in range(int(line)):
            session.run(train_op)
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
