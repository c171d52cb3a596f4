"""The layers of `tf.contrib.layers` that have no variables, and the collections that all of them add to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hookline.compat.v1 import layers
from hookline.compat.v1.contrib.framework import add_arg_scope
from hookline.compat.v1.graphs import get_default_graph, name_scope


def _listed(keys: Any) -> list[Any]:
    return [keys] if isinstance(keys, str) else list(keys or ())


def collected(outputs: Any, outputs_collections: Any) -> Any:
    """Returns the outputs of a layer, after it has added them to collections."""
    for key in _listed(outputs_collections):
        get_default_graph().add_to_collection(key, outputs)
    return outputs


def collect_variables(variables: Iterable[Any], variables_collections: Any) -> None:
    """Adds the variables of a layer to collections: the same for all, or those that a dict has by their names."""
    for variable in variables:
        last = variable.op.name.rpartition("/")[2]
        keys = variables_collections.get(last) if isinstance(variables_collections, dict) else variables_collections
        for key in _listed(keys):
            kept = get_default_graph().get_collection_ref(key)
            if variable not in kept:
                kept.append(variable)


def layout(data_format: str | None) -> str:
    """Returns what `tf.layers` calls a data format."""
    return "channels_first" if (data_format or "N").startswith("NC") else "channels_last"


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Sets elements to zero in training; `keep_prob` is the share that stays."""
    with name_scope(scope, "Dropout"):
        dropped = layers.dropout(inputs, 1 - keep_prob, noise_shape, seed, is_training)
    return collected(dropped, outputs_collections)


@add_arg_scope
def max_pool2d(
    inputs: Any,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Returns the largest value of each window."""
    with name_scope(scope, "MaxPool2D"):
        largest = layers.max_pooling2d(inputs, kernel_size, stride, padding, layout(data_format))
    return collected(largest, outputs_collections)


@add_arg_scope
def avg_pool2d(
    inputs: Any,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Returns the mean of each window."""
    with name_scope(scope, "AvgPool2D"):
        means = layers.average_pooling2d(inputs, kernel_size, stride, padding, layout(data_format))
    return collected(means, outputs_collections)


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Makes one dimension of all but the first."""
    with name_scope(scope, "Flatten"):
        flat = layers.flatten(inputs)
    return collected(flat, outputs_collections)
