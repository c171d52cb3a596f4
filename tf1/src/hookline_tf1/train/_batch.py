"""`tf.train.batch` and `shuffle_batch`: run the graph before them once for each example."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from hookline import Session
from hookline.errors import OutOfRangeError
from hookline_tf1._machinery.graphs import get_default_graph
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1.data import Dataset, _elements
from hookline_tf1.data._elements import Component
from hookline_tf1.data._iterators import make_one_shot_iterator
from hookline_tf1.data._mapping import Pass


def batch(
    tensors: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches examples: each run returns `batch_size` examples.

    A prefetching thread runs the graph before `tensors` in a separate session, once for each example, so it may not
    read variables.

    Args:
        tensors: A list or a dict.
        batch_size: The number of examples in a batch.
        num_threads: Without effect, like `capacity` and `shared_name`: one thread prefetches.
        capacity: See `num_threads`.
        enqueue_many: Whether the first dimension of `tensors` is a number of examples.
        shapes: The shapes of the examples, if they are unknown.
        dynamic_pad: Whether to pad the examples of a batch with zeros to one shape.
        allow_smaller_final_batch: Whether to return a smaller last batch, or to drop it.
        shared_name: See `num_threads`.
        name: Name of the operation.

    References:
        `tf.train.batch`, and likewise for the other functions of this file.
    """
    examples = _examples([tensors], enqueue_many, shapes)
    return _batches(examples, tensors, batch_size, dynamic_pad, allow_smaller_final_batch, name or "batch")


def shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches examples in random order, drawn from a buffer of at least `min_after_dequeue`. See `batch`."""
    examples = _examples([tensors], enqueue_many, shapes).shuffle(_buffer_size(min_after_dequeue, batch_size), seed)
    return _batches(examples, tensors, batch_size, False, allow_smaller_final_batch, name or "shuffle_batch")


def batch_join(
    tensors_list: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches the examples of several lists of tensors, in turn. See `batch`."""
    examples = _examples(tensors_list, enqueue_many, shapes)
    return _batches(examples, tensors_list[0], batch_size, dynamic_pad, allow_smaller_final_batch, name or "batch_join")


def shuffle_batch_join(
    tensors_list: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches the examples of several lists of tensors, in random order. See `shuffle_batch`."""
    examples = _examples(tensors_list, enqueue_many, shapes).shuffle(_buffer_size(min_after_dequeue, batch_size), seed)
    return _batches(examples, tensors_list[0], batch_size, False, allow_smaller_final_batch, name or "shuffle_batch")


def _buffer_size(min_after_dequeue: int, batch_size: Any) -> int:
    return max(min_after_dequeue, 0) + (batch_size if isinstance(batch_size, int) else 1)


def _examples(tensors_list: Any, enqueue_many: bool, shapes: Any) -> Dataset:
    """Yields the values of several structures of tensors, in turn, until all have ended."""
    listed = [tuple(map(convert_to_tensor, _values(tensors))) for tensors in tensors_list]
    if not listed or not listed[0]:
        raise ValueError("Must provide at least one tensor to batch.")
    known = [_elements.component_of(tensor) for tensor in listed[0]]
    given = [component.shape for component in known] if shapes is None else map(_elements.shape_of, shapes)
    if enqueue_many and shapes is not None:
        given = [None if shape is None else (None, *shape) for shape in given]
    spec = tuple(Component(component.dtype, shape) for component, shape in zip(known, given, strict=True))
    graph = get_default_graph()

    def make(run: Pass) -> Iterator[Any]:
        with Session(graph=graph) as session:
            waiting = list(listed)
            for tensors in itertools.cycle(listed):
                if tensors not in waiting:
                    continue
                try:
                    with jax.default_device(jax.devices("cpu")[0]):
                        values = session.run(tensors)
                    yield tuple(map(_elements.as_array, values))
                except OutOfRangeError:
                    waiting.remove(tensors)
                    if not waiting:
                        return

    found = Dataset(make, spec)
    return found.unbatch() if enqueue_many else found


def _batches(examples: Dataset, like: Any, size: Any, pads: bool, allows_smaller: bool, name: str) -> Any:
    """Returns tensors of the next batch of examples in each run, nested like one example."""
    join = examples.padded_batch if pads else examples.batch
    found = make_one_shot_iterator(join(size, drop_remainder=not allows_smaller)).get_next(name)
    if isinstance(like, dict):
        return dict(zip(like, found, strict=True))
    return found[0] if len(found) == 1 else list(found)


def _values(tensors: Any) -> list[Any]:
    return list(tensors.values() if isinstance(tensors, dict) else tensors)
