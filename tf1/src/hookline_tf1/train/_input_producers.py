"""Input producers of `tf.train`: TF 1.x fills queues in threads; here each of them is a dataset."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from hookline_tf1._machinery.ignored_arguments import say_once
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf.io_ops import matching_files
from hookline_tf1.data import Dataset
from hookline_tf1.data._iterators import Iterator, make_one_shot_iterator


class Queue:
    """The queue of an input producer: readers, or `dequeue`, take its elements one by one.

    Each session has its own, from the first one on, and a thread reads ahead.

    Args:
        elements: The dataset of them.
        name: Its name.
    """

    def __init__(self, elements: Dataset, name: str) -> None:
        self.elements, self.name = elements, name
        self._iterators: dict[Hashable, Iterator] = {}

    def dequeue(self, name: str | None = None) -> Any:
        """Returns tensors that have the next element in each run."""
        return self.next_of("dequeue", self.elements, name)

    def next_of(self, key: Hashable, dataset: Dataset, name: str | None) -> Any:
        """Returns the next element of a dataset that is made of the queue: all that ask with one key share them."""
        if key not in self._iterators:
            self._iterators[key] = make_one_shot_iterator(dataset)
        return self._iterators[key].get_next(name)


def _produced(given: Any, num_epochs: int | None, shuffle: bool, seed: int | None) -> Dataset:
    """Returns the slices of tensors, again and again, each time in another order if `shuffle` is true."""
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
    """Returns the rows of a tensor as a queue: `num_epochs` times, then a run of it raises `OutOfRangeError`.

    References:
        `tf.train.input_producer`, as for the others of this file. Without a seed, elements are shuffled by the
        seed of the graph. The capacity is not used, and no local variable counts the epochs.
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
    """Returns texts, such as the paths of files, as a queue. See `input_producer`."""
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
    """Returns the whole numbers below `limit` as a queue. See `input_producer`."""
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
    """Returns tensors that have, in each run, one row of each of several tensors. See `input_producer`."""
    given = tuple(convert_to_tensor(tensor) for tensor in tensor_list)
    if not given:
        raise ValueError("Expected at least one tensor in slice_input_producer().")
    return list(Queue(_produced(given, num_epochs, shuffle, seed), name or "input_producer").dequeue())


def match_filenames_once(pattern: Any, name: str | None = None) -> Any:
    """Returns the paths that match a pattern, looked for by each session when it reads them.

    References:
        `tf.train.match_filenames_once`, without its local variable.
    """
    return matching_files(pattern, name)


def start_queue_runners(
    sess: Any = None, coord: Any = None, daemon: bool = True, start: bool = True, collection: Any = "queue_runners"
) -> list[Any]:
    """Returns no thread: the batches of `tf.train` and the iterators of `tf.data` read ahead by themselves.

    References:
        `tf.train.start_queue_runners`.
    """
    say_once("tf.train.start_queue_runners", "what reads ahead begins by itself")
    return []
