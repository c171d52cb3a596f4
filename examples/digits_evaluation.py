"""Evaluates each new checkpoint of `digits.py` on the test images, in a job of its own.

Run both at once, each in its own terminal. TensorBoard shows the two accuracies as two curves of one chart.
"""

import argparse
import os

import jax.numpy as jnp
from digits import Network, load
from flax import nnx

import hookline as hl

BATCH = 60


class ResultLine(hl.train.SessionRunHook):
    """Prints the accuracy at the end of each evaluation."""

    def __init__(self, accuracy):
        self.accuracy = accuracy

    def end(self, session):
        print(f"step {session.global_step}  test accuracy {session.run(self.accuracy):.3f}", flush=True)


def build():
    """Builds the graph: the model of the training job, without an optimizer, and two sums over the batches."""
    _, images, _, labels = load()
    hl.train.get_or_create_global_step()
    graphdef, params, state = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)
    params, state = hl.Variable(params, name="params"), hl.Variable(state, name="state", trainable=False)
    batch = hl.data.iterator(hl.data.from_arrays((images, labels), BATCH), resume=False)
    local = [hl.GraphKeys.LOCAL_VARIABLES]
    right = hl.Variable(0.0, name="right", trainable=False, collections=local)
    seen = hl.Variable(0.0, name="seen", trainable=False, collections=local)

    def count(sums, params, state, images, labels):
        model = nnx.merge(graphdef, params, state)
        model.eval()
        return sums[0] + jnp.sum(model(images).argmax(-1) == labels), sums[1] + len(labels)

    accuracy = right / seen
    hl.summary.scalar("accuracy", accuracy)
    return hl.update((right, seen), count, params, state, *batch), accuracy


def main():
    parser = argparse.ArgumentParser(description="Evaluates each new checkpoint of digits.py.")
    parser.add_argument("--steps", type=int, default=1000, help="the global step at which training ends")
    parser.add_argument("--logdir", default="runs/digits", help="where digits.py saves its checkpoints")
    args = parser.parse_args()
    eval_ops, accuracy = build()
    hooks = [hl.train.SummaryAtEndHook(os.path.join(args.logdir, "eval")), ResultLine(accuracy)]

    def training_is_over():
        newest = hl.train.latest_checkpoint(args.logdir)
        return newest is not None and hl.train.load_variable(newest, "global_step") >= args.steps

    final = hl.train.evaluate_repeatedly(
        args.logdir,
        eval_ops=eval_ops,
        final_ops=accuracy,
        hooks=hooks,
        eval_interval_secs=5,
        timeout=5,
        timeout_fn=training_is_over,
    )
    print(f"final test accuracy: {final:.2f}")


if __name__ == "__main__":
    main()
