"""`tf.data.experimental`, and `tf.contrib.data`: transformations for `Dataset.apply`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline_tf1._machinery.ignored_arguments import ignored
from hookline_tf1._machinery.namespaces import offered

AUTOTUNE = -1

Transformation = Callable[[Any], Any]


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """Returns a transformation: `map`, then `batch`."""
    ignored("map_and_batch", num_parallel_batches=num_parallel_batches, num_parallel_calls=num_parallel_calls)
    return lambda dataset: dataset.map(map_func).batch(batch_size, drop_remainder)


def shuffle_and_repeat(buffer_size: Any, count: Any = None, seed: int | None = None) -> Transformation:
    """Returns a transformation: `shuffle`, then `repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """Returns a transformation: `batch`, without a shorter last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """Returns a transformation: `interleave`, always in the same order."""
    ignored("parallel_interleave", sloppy=sloppy, buffer_output_elements=buffer_output_elements)
    ignored("parallel_interleave", prefetch_input_elements=prefetch_input_elements)
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def unbatch() -> Transformation:
    """Returns a transformation that splits batches into elements."""
    return lambda dataset: dataset.unbatch()


def prefetch_to_device(device: Any, buffer_size: int | None = None) -> Transformation:
    """Returns a transformation that changes nothing: iterators always put elements on the device."""
    ignored("prefetch_to_device", device=device, buffer_size=buffer_size)
    return lambda dataset: dataset


PUBLIC = [
    "AUTOTUNE",
    "map_and_batch",
    "shuffle_and_repeat",
    "batch_and_drop_remainder",
    "parallel_interleave",
    "unbatch",
    "prefetch_to_device",
]

__getattr__, __dir__ = offered("tf.data.experimental", lambda: PUBLIC)
