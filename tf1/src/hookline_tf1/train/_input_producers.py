"""Input producers of `tf.train`: datasets, where TF 1.x fills queues in threads."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hookline_tf1._machinery.ignored_arguments import log_once
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf.io_ops import matching_files
from hookline_tf1.data import Dataset
from hookline_tf1.data._iterators import Iterator, make_one_shot_iterator


class Queue:
    """The queue of an input producer: readers, or `dequeue`, read its elements one by one.

    Each session reads all elements, from the first one on; a thread prefetches.

    Args:
        elements: The dataset of the elements.
        name: Its name.
    """

    def __init__(self, elements: Dataset, name: str) -> None:
        self.elements, self.name = elements, name
        self._iterators: dict[Hashable, Iterator] = {}

    def dequeue(self, name: str | None = None) -> Any:
        """Returns tensors of the next element in each run."""
        return self.next_of("dequeue", self.elements, name)

    def next_of(self, key: Hashable, dataset: Dataset, name: str | None) -> Any:
        """Returns the next element of a dataset made from the queue; calls with the same key share the elements."""
        if key not in self._iterators:
            self._iterators[key] = make_one_shot_iterator(dataset)
        return self._iterators[key].get_next(name)


def _produced(given: Any, num_epochs: int | None, shuffle: bool, seed: int | None) -> Dataset:
    """Returns a dataset that repeats the slices of tensors, reshuffled each epoch if `shuffle` is true."""
    slices = Dataset.from_tensor_slices(given)
    return (slices.shuffle(1 << 30, seed) if shuffle else slices).repeat(num_epochs)


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Queue:
    """Returns a queue of a tensor's rows, for `num_epochs` epochs; after them a run raises `OutOfRangeError`.

    References:
        `tf.train.input_producer`, and likewise for the other functions of this file. Without a seed, elements are
        shuffled by the graph's seed. `capacity` has no effect, and no local variable counts the epochs.
    """
    return Queue(_produced(convert_to_tensor(input_tensor), num_epochs, shuffle, seed), name or "input_producer")


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Queue:
    """Returns a queue of strings, such as paths of files. See `input_producer`."""
    if isinstance(string_tensor, list | tuple | np.ndarray) and not len(string_tensor):
        raise ValueError("string_input_producer requires a non-null input tensor")
    return input_producer(string_tensor, None, num_epochs, shuffle, seed, name=name)


def range_input_producer(
    limit: int,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> Queue:
    """Returns a queue of the integers below `limit`. See `input_producer`."""
    numbers = Dataset.range(limit).map(lambda number: number)
    shuffled = numbers.shuffle(1 << 30, seed) if shuffle else numbers
    return Queue(shuffled.repeat(num_epochs), name or "input_producer")


def slice_input_producer(
    tensor_list: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Any]:
    """Returns tensors of the next row of each given tensor in each run. See `input_producer`."""
    given = tuple(convert_to_tensor(tensor) for tensor in tensor_list)
    if not given:
        raise ValueError("Expected at least one tensor in slice_input_producer().")
    return list(Queue(_produced(given, num_epochs, shuffle, seed), name or "input_producer").dequeue())


def match_filenames_once(pattern: Any, name: str | None = None) -> Any:
    """Returns the paths that match a pattern, searched when they are read.

    References:
        `tf.train.match_filenames_once`, without its local variable.
    """
    return matching_files(pattern, name)


def start_queue_runners(
    sess: Any = None, coord: Any = None, daemon: bool = True, start: bool = True, collection: Any = "queue_runners"
) -> list[Any]:
    """Starts no thread: `tf.train.batch` and iterators of `tf.data` prefetch by themselves.

    References:
        `tf.train.start_queue_runners`.
    """
    log_once("tf.train.start_queue_runners", "batches and iterators prefetch by themselves")
    return []
