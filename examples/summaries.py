"""Writes every kind of summary: show them with `tensorboard --logdir runs/summaries`.

It trains a softmax regression on handwritten digits, in seconds. The weights are shown as one image per digit, and the
loss is a falling tone.
"""

import argparse

import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import hookline as hl
from hookline import summary, train

FRAMES, RATE = 8000, 0.02


def tone(loss):
    """Returns one second of sound; the larger the loss, the higher the tone."""
    return 0.5 * jnp.sin(2 * jnp.pi * 220 * (1 + loss) * jnp.arange(FRAMES) / FRAMES)


def report(loss, accuracy):
    """Returns a Markdown table; runs on the host."""
    return f"| loss | accuracy |\n|---|---|\n| {loss:.3f} | **{accuracy:.1%}** |"


def build():
    digits = load_digits()
    images, labels = hl.constant((digits.data / 16).astype("float32")), hl.constant(digits.target)
    step = train.get_or_create_global_step()
    weights = hl.Variable(jnp.zeros((64, 10)), name="weights")
    logits = hl.op(jnp.matmul, name="logits")(images, weights)
    loss = hl.op(lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y).mean(), name="loss")(logits, labels)
    accuracy = hl.op(lambda x, y: jnp.mean(x.argmax(-1) == y), name="accuracy")(logits, labels)

    summary.scalar("loss", loss)
    summary.scalar("accuracy", accuracy)
    summary.histogram("weights", weights)
    summary.image("digit", hl.op(lambda w: w.T.reshape(10, 8, 8, 1), name="as_images")(weights), max_outputs=10)
    summary.audio("tone", hl.op(tone)(loss)[None], FRAMES, max_outputs=1)
    summary.text("report", hl.host_op(report)(loss, accuracy))
    return train.Optimizer(optax.adam(RATE)).minimize(loss, global_step=step)


def main():
    parser = argparse.ArgumentParser(description="Writes every kind of summary.")
    parser.add_argument("--steps", type=int, default=100, help="train up to this global step")
    parser.add_argument("--logdir", default="runs/summaries", help="where they go")
    args = parser.parse_args()
    train_op = build()
    stop = train.StopAtStepHook(last_step=args.steps)
    with train.MonitoredTrainingSession(
        summary_dir=args.logdir,
        save_summaries_steps=10,
        hooks=[stop],
        logging=train.LoggingOptions(hparams={"optimizer": "adam", "rate": RATE}),
    ) as sess:
        sess.summary_writer.add_graph(sess.graph)
        while not sess.should_stop():
            sess.run(train_op)
    print(f"Look at it: tensorboard --logdir {args.logdir}")


if __name__ == "__main__":
    main()
