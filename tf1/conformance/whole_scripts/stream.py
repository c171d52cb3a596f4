"""One stream of random numbers for both systems: the n-th draw of the k-th random operation is the same in each."""

from __future__ import annotations

import numpy as np


def drawn(kind, operation, times, shape):
    """Returns the numbers of a draw.

    Args:
        kind: `normal`, `truncated` (at two standard deviations), `uniform` (from 0 to 1) or `permutation`.
        operation: The place of the operation among the random ones of the graph.
        times: How often it has drawn before.
        shape: How many numbers; of a permutation, how many things.
    """
    random = np.random.RandomState([20, operation, times])
    shape = tuple(int(size) for size in shape)
    if kind == "permutation":
        return random.permutation(shape[0]).astype(np.int32)
    if kind == "uniform":
        return random.uniform(size=shape).astype(np.float32).clip(0, np.float32(1) - np.finfo(np.float32).eps)
    numbers = random.normal(size=shape)
    if kind == "truncated":
        while (np.abs(numbers) > 2).any():
            numbers = np.where(np.abs(numbers) > 2, random.normal(size=shape), numbers)
    return numbers.astype(np.float32)


def sampler(tf):
    """Returns what stands for the sampler of classes of both systems: any class as often, as if small ones were."""

    def sample(true_classes, num_true, num_sampled, unique, range_max, seed=None, name=None):
        def expected(classes):
            number = tf.cast(classes, tf.float32)
            return num_sampled * (tf.log(number + 2.0) - tf.log(number + 1.0)) / float(np.log(range_max + 1.0))

        sampled = tf.random_uniform([num_sampled], maxval=range_max, dtype=tf.int64)
        return sampled, expected(true_classes), expected(sampled)

    return sample


def chosen(logits, uniform):
    """Returns, of each row of logits, the places that numbers from 0 to 1 choose."""
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    ends = np.cumsum(odds / odds.sum(-1, keepdims=True), -1)
    return np.minimum((uniform[:, :, None] > ends[:, None, :]).sum(-1), logits.shape[-1] - 1)
