"""The same training on hookline, with the same losses."""

import argparse
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import batches, load

import hookline as hl
import hookline.numpy as hnp


def weight(name, shape):
    rng = np.random.RandomState(shape[-1])
    values = rng.normal(0.0, np.sqrt(2.0 / np.prod(shape[:-1])), shape)
    return hl.Variable(values.astype("float32"), name=name)


def bias(size):
    return hl.Variable(jnp.zeros([size]), name="bias")


@hl.op
def conv2d(x, kernel):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=[2, 2],
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


relu = hl.op(jax.nn.relu)


def model(images):
    with hl.name_scope("conv"):
        x = hnp.expand_dims(images, -1)
        kernel = weight("kernel", [3, 3, 1, 8])
        x = conv2d(x, kernel)
        x = relu(x + bias(8))
    with hl.name_scope("dense"):
        x = hnp.reshape(x, [-1, 6 * 6 * 8])
        x = x @ weight("kernel", [288, 32])
        x = relu(x + bias(32))
    with hl.name_scope("logits"):
        return x @ weight("kernel", [32, 10]) + bias(10)


class KeepLosses(hl.train.SessionRunHook):
    def __init__(self, loss):
        self.loss, self.kept = loss, []

    def before_run(self, run_context):
        return hl.train.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        self.kept.append(float(run_values.results))


def train(logdir, last_step):
    images, labels, _, _ = load()
    x = hl.placeholder("float32", [None, 12, 12], name="x")
    y = hl.placeholder("int32", [None], name="y")
    logits = model(x)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    losses = hl.op(cross_entropy)(logits, y)
    loss = hl.op(jnp.mean, name="loss")(losses)
    hl.summary.scalar("cross_entropy", loss)

    step = hl.train.get_or_create_global_step()
    rate = optax.exponential_decay(0.1, 100, 0.5)
    optimizer = hl.train.Optimizer(
        optax.sgd,
        learning_rate=rate,
        momentum=0.9,
    )
    minimize = optimizer.minimize(loss, global_step=step)
    averages = hl.train.ExponentialMovingAverage(0.9)
    with hl.control_dependencies([minimize]):
        train_op = averages.apply(hl.trainable_variables())

    keep = KeepLosses(loss)
    hooks = [
        hl.train.StopAtStepHook(last_step=last_step),
        hl.train.LoggingTensorHook({"loss": loss}, every_n_iter=20),
        hl.train.NanTensorHook(loss),
        keep,
    ]
    feed = batches(images, labels)
    with hl.train.MonitoredTrainingSession(
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
    logits = model(hl.constant(images))
    right = hnp.equal(hnp.argmax(logits, 1), labels)
    accuracy = hnp.mean(right)
    averages = hl.train.ExponentialMovingAverage(0.9)
    saver = hl.train.Saver(averages.variables_to_restore())
    with hl.Session() as sess:
        saver.restore(sess, hl.train.latest_checkpoint(logdir))
        return float(sess.run(accuracy))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", default="runs/mnist")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    logging.getLogger("hookline").setLevel(logging.INFO)
    with hl.Graph().as_default():
        losses = train(args.logdir, args.steps)
    with hl.Graph().as_default():
        accuracy = evaluate(args.logdir)
    print(json.dumps({"losses": losses, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
