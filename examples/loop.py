"""Trains on handwritten digits with `train.Loop`: an ordinary train step, an evaluation, and the best checkpoint.

It takes less than a minute on two CPU cores. Killed and started again, it resumes.
"""

import argparse
import logging

import jax.numpy as jnp
import optax
from digits import BATCH, Network, load
from flax import nnx

import hookline as hl


def loss_and_accuracy(model, batch):
    images, labels = batch
    logits = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


@nnx.jit
def train_step(model, optimizer, batch):
    (loss, accuracy), grads = nnx.value_and_grad(loss_and_accuracy, has_aux=True)(model, batch)
    optimizer.update(model, grads)
    return {"loss": loss, "accuracy": accuracy}


def eval_step(model, batch):
    model.eval()  # a copy: the model in training does not change
    loss, accuracy = loss_and_accuracy(model, batch)
    return {"loss": loss, "accuracy": accuracy}


def main():
    parser = argparse.ArgumentParser(description="Trains on handwritten digits, and resumes where it stopped.")
    parser.add_argument("--steps", type=int, default=1000, help="train up to this global step")
    parser.add_argument("--logdir", default="runs/loop", help="where checkpoints and summaries go")
    args = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hookline").setLevel(logging.INFO)

    x_train, x_test, y_train, y_test = load()
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    batches = hl.data.from_arrays((x_train, y_train), BATCH, shuffle_seed=0, epochs=None)
    test_batches = hl.data.from_arrays((x_test, y_test), batch_size=120)

    loop = hl.train.Loop(train_step, (model, optimizer), batches)
    evaluate = hl.train.Evaluate(eval_step, test_batches, every=100, keep_best="accuracy")
    stop = hl.train.StopIfNoImprovement("accuracy", patience=5)
    loop.run(
        args.logdir, last_step=args.steps, hooks=[evaluate, stop], checkpoints=hl.train.CheckpointOptions(save_secs=10)
    )

    best = hl.train.load(args.logdir, like=model, prefix="0", step="best")
    print(f"Curves: tensorboard --logdir {args.logdir}")
    print(f"test accuracy: {float(eval_step(best, (x_test, y_test))['accuracy']):.3f}")


if __name__ == "__main__":
    main()
