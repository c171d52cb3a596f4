"""MNIST's files as the tutorials of TF 1.x read them: `tensorflow.examples.tutorials.mnist.input_data`."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hookline_tf1._machinery.dtypes import as_dtype, float32
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.namespaces import missing

__all__ = ["DataSet", "Datasets", "read_data_sets"]

_IMAGES, _LABELS = 2051, 2049


class DataSet:
    """Images and labels, in batches, reshuffled in each epoch.

    The order is drawn from NumPy's global generator. As in TensorFlow, a seed (of the data set, or else of the graph)
    sets that generator; without one it is left as it is.

    Args:
        images: Of shape `[count, height, width, 1]`, from 0 to 255.
        labels: One for each image.
        fake_data: Is refused.
        one_hot: Is not used: labels are as they are given.
        dtype: `uint8` keeps the images as they are; `float32` scales them to the range 0 to 1.
        reshape: Whether each image is flattened.
        seed: See above.
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        _refuse(fake_data)
        wanted, count = as_dtype(dtype).name, len(images)
        if wanted not in ("uint8", "float32"):
            raise TypeError(f"DataSet requires uint8 or float32 as dtype, got {wanted}.")
        if count != len(labels):
            raise ValueError(f"DataSet requires a label for each image, got {count} images, {len(labels)} labels.")
        seed = get_default_graph().seed or None if seed is None else seed
        if seed is not None:
            np.random.seed(seed)
        images = images.reshape(count, int(np.prod(images.shape[1:]))) if reshape else images
        scale = np.float32(1 / 255)
        self._images = images.astype(np.float32) * scale if wanted == "float32" else images
        self._labels, self._num_examples = labels, count
        self._epochs_completed = self._index_in_epoch = 0

    @property
    def images(self) -> Any:
        """The images, in the order of the current epoch."""
        return self._images

    @property
    def labels(self) -> Any:
        """The labels, in the order of the current epoch."""
        return self._labels

    @property
    def num_examples(self) -> int:
        """The number of images."""
        return self._num_examples

    @property
    def epochs_completed(self) -> int:
        """The number of epochs returned so far."""
        return self._epochs_completed

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """Returns the next images and labels; a batch may span two epochs."""
        _refuse(fake_data)
        start, end = self._index_in_epoch, self._index_in_epoch + batch_size
        if shuffle and start == 0 and self._epochs_completed == 0:
            self._shuffle()
        if end <= self._num_examples:
            self._index_in_epoch = end
            return self._images[start:end], self._labels[start:end]
        rest = self._images[start:], self._labels[start:]
        self._epochs_completed += 1
        self._index_in_epoch = end - self._num_examples
        if shuffle:
            self._shuffle()
        first = self._images[: self._index_in_epoch], self._labels[: self._index_in_epoch]
        return np.concatenate([rest[0], first[0]]), np.concatenate([rest[1], first[1]])

    def _shuffle(self) -> None:
        order = np.arange(self._num_examples)
        np.random.shuffle(order)
        self._images, self._labels = self._images[order], self._labels[order]


class Datasets(NamedTuple):
    """The three parts of MNIST."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: Any,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str | None = None,
) -> Datasets:
    """Returns MNIST's images and labels from its four files.

    Args:
        train_dir: The folder where they are. Nothing is downloaded.
        fake_data: Is refused.
        one_hot: Whether a label is a one-hot row of ten numbers.
        dtype: See `DataSet`.
        reshape: See `DataSet`.
        validation_size: How many of the first training images are for validation.
        seed: See `DataSet`.
        source_url: Is not used.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is not an MNIST file, or `validation_size` is above the number of images.

    References:
        `tf.contrib.learn.datasets.mnist.read_data_sets`.
    """
    _refuse(fake_data)
    (images, labels), test = (_part(Path(train_dir), kind, one_hot) for kind in ("train", "t10k"))
    if not 0 <= validation_size <= len(images):
        raise ValueError(f"validation_size must be from 0 to {len(images)}, got {validation_size}.")
    how = {"dtype": dtype, "reshape": reshape, "seed": seed}
    train = DataSet(images[validation_size:], labels[validation_size:], **how)
    validation = DataSet(images[:validation_size], labels[:validation_size], **how)
    return Datasets(train, validation, DataSet(*test, **how))


def _part(folder: Path, kind: str, one_hot: bool) -> tuple[Any, Any]:
    images = _read(folder / f"{kind}-images-idx3-ubyte.gz", _IMAGES, 3)[..., None]
    labels = _read(folder / f"{kind}-labels-idx1-ubyte.gz", _LABELS, 1)
    return images, np.eye(10)[labels] if one_hot else labels


def _read(path: Path, magic: int, dims: int) -> np.ndarray:
    """Reads an MNIST file: a magic number, the sizes, and a byte for each element."""
    if not path.exists():
        raise FileNotFoundError(
            f"read_data_sets requires {path.name} in {str(path.parent)!r}, which has none. Put MNIST's four files "
            "there, train- and t10k-images-idx3-ubyte.gz and -labels-idx1-ubyte.gz: hookline does not download them."
        )
    with gzip.open(path) as file:
        found, *shape = struct.unpack(f">{dims + 1}i", file.read(4 * (dims + 1)))
        if found != magic:
            raise ValueError(f"{path} is no file of MNIST's: it begins with {found} instead of {magic}.")
        return np.frombuffer(file.read(), np.uint8).reshape(shape)


def _refuse(fake_data: bool) -> None:
    if fake_data:
        raise NotImplementedError("fake_data is not available: give MNIST's files, or files in their format.")


__getattr__ = missing("tensorflow.examples.tutorials.mnist.input_data", lambda: __all__)
