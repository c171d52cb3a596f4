"""Trains a small convolutional network on handwritten digits, with a graph and a monitored session.

It takes less than a minute on two CPU cores. Run again with `--steps 2000`, it resumes from its checkpoint.
"""

import argparse

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hookline as hl

BATCH = 64


class Network(nnx.Module):
    """Two convolutions and two dense layers; batch normalisation and dropout carry state that is not trained."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 32, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.dense = nnx.Linear(4 * 4 * 64, 128, rngs=rngs)
        self.logits = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.conv1(images[..., None])))
        x = nnx.relu(self.conv2(x)).reshape(images.shape[0], -1)
        return self.logits(self.dropout(nnx.relu(self.dense(x))))


def load():
    """Returns the training images, test images, training labels and test labels."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")
    return train_test_split(images, digits.target, test_size=0.2, random_state=0)


def build(steps, task_id=0):
    """Builds the graph: each operation is a JAX function (`op`) or plain Python (`host_op`)."""
    x_train, x_test, y_train, y_test = load()
    step = hl.train.get_or_create_global_step()
    graphdef, params, state = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)
    params, state = hl.Variable(params, name="params"), hl.Variable(state, name="state", trainable=False)

    def draw_batch(step):
        """Returns the batch of a step and a task, so training resumes with the right batch."""
        epoch, place = divmod(int(step), len(x_train) // BATCH)
        chosen = np.random.default_rng((epoch, task_id)).permutation(len(x_train))[place * BATCH : (place + 1) * BATCH]
        return x_train[chosen], y_train[chosen]

    def forward(params, state, images, labels):
        model = nnx.merge(graphdef, params, state)
        model.train()
        logits = model(images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        accuracy = jnp.mean(logits.argmax(-1) == labels)
        return {"loss": loss, "accuracy": accuracy, "state": nnx.split(model, nnx.Param, ...)[2]}

    def evaluate(params, state):
        model = nnx.merge(graphdef, params, state)
        model.eval()
        return jnp.mean(model(x_test).argmax(-1) == y_test)

    batch = hl.host_op(draw_batch, spec=draw_batch(0))(step)
    out = hl.op(forward)(params, state, *batch)
    schedule = optax.cosine_decay_schedule(2e-3, steps, alpha=0.1)
    optimizer = hl.train.Optimizer(optax.adam(schedule))
    gradients = optimizer.compute_gradients(out["loss"])
    # With several workers (digits_workers.py) the last one's statistics win; `state.assign` would warn of that.
    train_op = hl.group(optimizer.apply_gradients(gradients, step), hl.update(state, lambda _, new: new, out["state"]))
    hl.summary.scalar("loss", out["loss"])
    hl.summary.scalar("accuracy", out["accuracy"])
    hl.summary.scalar("learning_rate", hl.op(schedule)(step))
    hl.summary.histogram("gradients", [gradient for gradient, _ in gradients])
    return train_op, out["loss"], hl.train.FinalOpsHook(hl.op(evaluate)(params, state))


def main():
    parser = argparse.ArgumentParser(description="Trains on handwritten digits, and resumes where it stopped.")
    parser.add_argument("--steps", type=int, default=1000, help="train up to this global step")
    parser.add_argument("--logdir", default="runs/digits", help="where checkpoints and summaries go")
    args = parser.parse_args()
    train_op, loss, final = build(args.steps)
    hooks = [hl.train.StopAtStepHook(last_step=args.steps), hl.train.ProgressHook({"loss": loss}), final]
    with hl.train.MonitoredTrainingSession(checkpoint_dir=args.logdir, hooks=hooks, save_checkpoint_secs=10) as sess:
        start = sess.raw_session().global_step
        done = sess.should_stop()
        print(
            f"Already trained to step {start}: nothing to do."
            if done
            else f"Training from step {start}. The first step compiles the network: some seconds, if not cached."
        )
        while not sess.should_stop():
            sess.run(train_op)

    print(f"Curves: tensorboard --logdir {args.logdir}")
    print(f"test accuracy: {final.final_ops_values:.2f}")


if __name__ == "__main__":
    main()
