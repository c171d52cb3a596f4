"""Reads MNIST's files, as the tutorials of TF 1.x did."""

from __future__ import annotations

import collections
import gzip
import os

import numpy as np

Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])


class DataSet:
    """Images and labels, which come in batches of random order."""

    def __init__(self, images, labels):
        self.images, self.labels, self.num_examples = images, labels, len(images)
        self.epochs_completed, self._at, self._order = 0, 0, None

    def next_batch(self, batch_size, fake_data=False, shuffle=True):
        """Returns the next images and labels."""
        if self._order is None or self._at + batch_size > self.num_examples:
            self.epochs_completed += self._order is not None
            self._at, self._order = 0, np.random.permutation(self.num_examples)
            if not shuffle:
                self._order = np.arange(self.num_examples)
        chosen = self._order[self._at : self._at + batch_size]
        self._at += batch_size
        return self.images[chosen], self.labels[chosen]


def read_data_sets(
    train_dir=None, fake_data=False, one_hot=False, dtype=None, reshape=True, validation_size=None, seed=None, **_
):
    """Returns the images, from 0 to 1, and the labels."""
    parts = []
    for kind in ("train", "t10k"):
        images = _read(kind + "-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype(np.float32) / 255
        labels = _read(kind + "-labels-idx1-ubyte.gz", 8)
        labels = np.eye(10)[labels] if one_hot else labels
        parts.append((images.reshape(len(images), 784) if reshape else images, labels))
    (images, labels), test = parts
    split = len(images) // 12
    return Datasets(DataSet(images[split:], labels[split:]), DataSet(images[:split], labels[:split]), DataSet(*test))


def _read(name, header):
    with gzip.open(os.path.join(os.environ["MNIST"], name)) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
