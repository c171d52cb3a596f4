"""Trains a small language model on text that comes with Python: `train.Loop`, Grain, the best checkpoint, samples.

It takes less than three minutes on two CPU cores. Killed and started again, it resumes.
"""

import argparse
import functools
import pydoc_data.topics

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import hookline as hl

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 32, 128, 4, 3
BETTER_BY = 0.4  # bits per character

TEXT = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
CHARACTERS, CODES = np.unique(list(TEXT), return_inverse=True)
TRAIN, TEST = np.split(CODES.astype("int32"), [len(CODES) * 9 // 10])


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.norm2 = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        parts = self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        mixed = jax.nn.dot_product_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.characters = nnx.Embed(len(CHARACTERS), WIDTH, rngs=rngs)
        self.positions = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, len(CHARACTERS), rngs=rngs)

    def __call__(self, codes):
        x = self.characters(codes) + self.positions(jnp.arange(codes.shape[1]))
        return self.logits(self.norm(functools.reduce(lambda x, block: block(x), self.blocks, x)))


def loss_fn(model, codes):
    """Returns the cross-entropy of the next character, in bits per character."""
    return optax.softmax_cross_entropy_with_integer_labels(model(codes[:, :-1]), codes[:, 1:]).mean() / np.log(2)


def train_step(model, optimizer, codes):
    loss, grads = nnx.value_and_grad(loss_fn)(model, codes)
    optimizer.update(model, grads)
    return loss


def sample(model, length=300):
    """Returns the codes of a text sampled from the model."""

    def next_code(seen, key):
        code = jax.random.categorical(key, model(seen[None])[0, -1])
        return jnp.append(seen[1:], code), code

    return jax.lax.scan(next_code, jnp.asarray(TEST[:CONTEXT]), jax.random.split(jax.random.key(0), length))[1]


def words(codes):
    return "".join(CHARACTERS[code] for code in codes)


def bigram_bits():
    """Returns the cross-entropy of a bigram model on the held-out text, in bits per character."""
    counts = np.ones((len(CHARACTERS), len(CHARACTERS)))
    np.add.at(counts, (TRAIN[:-1], TRAIN[1:]), 1)
    return -np.log2(counts / counts.sum(axis=1, keepdims=True))[TEST[:-1], TEST[1:]].mean()


def main():
    parser = argparse.ArgumentParser(description="Trains a small language model, and resumes where it stopped.")
    parser.add_argument("--steps", type=int, default=500, help="train up to this global step")
    parser.add_argument("--logdir", default="runs/text", help="where checkpoints and summaries go")
    args = parser.parse_args()

    windows = np.lib.stride_tricks.sliding_window_view(TRAIN, CONTEXT + 1)
    batches = grain.MapDataset.source(windows).shuffle(seed=0).repeat().batch(BATCH).to_iter_dataset()
    test_windows = np.lib.stride_tricks.sliding_window_view(TEST, CONTEXT + 1)[::CONTEXT]
    model = Transformer(nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0, 3e-3, args.steps // 10, args.steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)

    loop = hl.train.Loop(train_step, (model, optimizer), batches)
    every = max(args.steps // 8, 1)
    with loop.graph.as_default():
        generated = hl.op(lambda state: sample(loop.form.arguments(state)[0]))(loop.state)
        text = hl.summary.text("sample", hl.host_op(words)(generated), collections=[])
    samples = hl.train.SummarySaverHook(save_steps=every, output_dir=args.logdir, summary_op=text)
    evaluate = hl.train.Evaluate(loss_fn, hl.data.from_arrays(test_windows, 128), every, keep_best="loss")
    checkpoints = hl.train.CheckpointOptions(save_steps=every)
    loop.run(args.logdir, args.steps, hooks=[samples, evaluate], checkpoints=checkpoints)

    best = hl.train.load(args.logdir, like=model, prefix="0", step="best")
    print(words(np.asarray(nnx.jit(sample)(best))))
    bits, bigram = evaluate.best["loss"].value, bigram_bits()
    print(f"Curves and samples: tensorboard --logdir {args.logdir}")
    print(f"held-out text: {bits:.2f} bits a character; a bigram model: {bigram:.2f}")
    if bits > bigram - BETTER_BY:
        raise SystemExit(f"The model is to be better by {BETTER_BY} bits.")


if __name__ == "__main__":
    main()
