"""Reads MNIST's files on TensorFlow, as the tutorials of TF 1.x did; hookline has a reader of its own."""

from __future__ import annotations

import collections
import gzip
import os

import numpy as np
from tensorflow.python.framework import random_seed

Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])


class DataSet:
    """Images and labels, which come in batches of random order."""

    def __init__(self, images, labels, seed=None):
        of_graph, own = random_seed.get_seed(seed)
        if of_graph is not None:  # Else TensorFlow's reader takes one that nobody knows.
            np.random.seed(of_graph if seed is None else own)
        self.images, self.labels, self.num_examples = images, labels, len(images)
        self.epochs_completed = self._at = 0

    def next_batch(self, batch_size, fake_data=False, shuffle=True):
        """Returns the next images and labels; a batch may reach from one epoch into the next."""
        if shuffle and self._at == self.epochs_completed == 0:
            self._shuffle()
        start, self._at = self._at, self._at + batch_size
        if self._at <= self.num_examples:
            return self.images[start : self._at], self.labels[start : self._at]
        rest = self.images[start:], self.labels[start:]
        self._at -= self.num_examples
        self.epochs_completed += 1
        if shuffle:
            self._shuffle()
        return tuple(
            np.concatenate([old, new[: self._at]]) for old, new in zip(rest, (self.images, self.labels), strict=True)
        )

    def _shuffle(self):
        order = np.arange(self.num_examples)
        np.random.shuffle(order)
        self.images, self.labels = self.images[order], self.labels[order]


def read_data_sets(
    train_dir=None, fake_data=False, one_hot=False, dtype=None, reshape=True, validation_size=5000, seed=None, **_
):
    """Returns the images, from 0 to 1, and the labels."""
    parts = []
    for kind in ("train", "t10k"):
        images = _read(kind + "-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)
        images = images.astype(np.float32) * np.float32(1 / 255)
        labels = _read(kind + "-labels-idx1-ubyte.gz", 8)
        labels = np.eye(10)[labels] if one_hot else labels
        parts.append((images.reshape(len(images), 784) if reshape else images, labels))
    (images, labels), test = parts
    split = validation_size
    pairs = (images[split:], labels[split:]), (images[:split], labels[:split]), test
    return Datasets(*(DataSet(*pair, seed) for pair in pairs))


def _read(name, header):
    with gzip.open(os.path.join(os.environ["MNIST"], name)) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
