"""A TensorFlow 1.x training: digits, with averaged weights."""

import argparse
import json
import logging

import numpy as np
import tensorflow.compat.v1 as tf
from digits import batches, load

tf.disable_v2_behavior()


def weight(name, shape):
    rng = np.random.RandomState(shape[-1])
    values = rng.normal(0.0, np.sqrt(2.0 / np.prod(shape[:-1])), shape)
    return tf.Variable(values.astype("float32"), name=name)


def bias(size):
    return tf.Variable(tf.zeros([size]), name="bias")


def model(images):
    with tf.name_scope("conv"):
        x = tf.expand_dims(images, -1)
        kernel = weight("kernel", [3, 3, 1, 8])
        x = tf.nn.conv2d(x, kernel, [1, 2, 2, 1], "SAME")
        x = tf.nn.relu(x + bias(8))
    with tf.name_scope("dense"):
        x = tf.reshape(x, [-1, 6 * 6 * 8])
        x = tf.matmul(x, weight("kernel", [288, 32]))
        x = tf.nn.relu(x + bias(32))
    with tf.name_scope("logits"):
        return tf.matmul(x, weight("kernel", [32, 10])) + bias(10)


class KeepLosses(tf.train.SessionRunHook):
    def __init__(self, loss):
        self.loss, self.kept = loss, []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        self.kept.append(float(run_values.results))


def train(logdir, last_step):
    images, labels, _, _ = load()
    x = tf.placeholder("float32", [None, 12, 12], name="x")
    y = tf.placeholder("int32", [None], name="y")
    logits = model(x)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=y,
        logits=logits,
    )
    loss = tf.reduce_mean(losses, name="loss")
    tf.summary.scalar("cross_entropy", loss)

    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 100, 0.5)
    optimizer = tf.train.MomentumOptimizer(rate, 0.9)
    minimize = optimizer.minimize(loss, global_step=step)
    averages = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([minimize]):
        train_op = averages.apply(tf.trainable_variables())

    keep = KeepLosses(loss)
    hooks = [
        tf.train.StopAtStepHook(last_step=last_step),
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=20),
        tf.train.NanTensorHook(loss),
        keep,
    ]
    feed = batches(images, labels)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=logdir,
        hooks=hooks,
        save_summaries_steps=20,
    ) as sess:
        while not sess.should_stop():
            x_batch, y_batch = next(feed)
            sess.run(train_op, {x: x_batch, y: y_batch})
    return keep.kept


def evaluate(logdir):
    _, _, images, labels = load()
    logits = model(tf.constant(images))
    right = tf.equal(tf.argmax(logits, 1, output_type="int32"), labels)
    accuracy = tf.reduce_mean(tf.cast(right, "float32"))
    averages = tf.train.ExponentialMovingAverage(0.9)
    saver = tf.train.Saver(averages.variables_to_restore())
    with tf.Session() as sess:
        saver.restore(sess, tf.train.latest_checkpoint(logdir))
        return float(sess.run(accuracy))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", default="runs/mnist")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.INFO)
    with tf.Graph().as_default():
        losses = train(args.logdir, args.steps)
    with tf.Graph().as_default():
        accuracy = evaluate(args.logdir)
    print(json.dumps({"losses": losses, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
