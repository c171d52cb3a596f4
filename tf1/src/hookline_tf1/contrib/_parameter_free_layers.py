"""The layers of `tf.contrib.layers` without variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline_tf1 import layers, math, nn
from hookline_tf1._machinery.graphs import get_default_graph, name_scope
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops
from hookline_tf1.contrib._layer_collections import collect_named_outputs
from hookline_tf1.contrib.framework import add_arg_scope


def layout(data_format: str | None) -> str:
    """Converts a data format to its name in `tf.layers`."""
    return "channels_first" if (data_format or "N").startswith("NC") else "channels_last"


def _made(scope: Any, label: str, make: Callable[[], Any], outputs_collections: Any) -> Any:
    """Computes a layer's outputs in its scope, and adds them to collections."""
    with name_scope(scope, label):
        outputs = make()
        return collect_named_outputs(outputs_collections, get_default_graph().get_name_scope(), outputs)


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
    """Adds dropout; `keep_prob` is the fraction to keep."""
    return _made(
        scope,
        "Dropout",
        lambda: layers.dropout(inputs, 1 - keep_prob, noise_shape, seed, is_training),
        outputs_collections,
    )


def _pooling(name: str, label: str, pool: Callable[..., Any], what: str) -> Callable[..., Any]:
    def pooled(
        inputs: Any,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 2,
        padding: str = "VALID",
        data_format: str = "NHWC",
        outputs_collections: Any = None,
        scope: Any = None,
    ) -> Any:
        windows = (inputs, kernel_size, stride, padding, layout(data_format))
        return _made(scope, label, lambda: pool(*windows), outputs_collections)

    pooled.__name__ = pooled.__qualname__ = name
    pooled.__doc__ = f"Returns {what} of each window."
    return add_arg_scope(pooled)


max_pool2d = _pooling("max_pool2d", "MaxPool2D", layers.max_pooling2d, "the largest value")
avg_pool2d = _pooling("avg_pool2d", "AvgPool2D", layers.average_pooling2d, "the mean")


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Flattens all dimensions but the first."""
    return _made(scope, "Flatten", lambda: layers.flatten(inputs), outputs_collections)


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """Encodes labels as one-hot rows."""
    labels = math.cast(convert_to_tensor(labels), "int64")
    hot = array_ops.one_hot
    return _made(scope, "OneHotEncoding", lambda: hot(labels, num_classes, on_value, off_value), outputs_collections)


def softmax(logits: Any, scope: Any = None) -> Any:
    """Computes the softmax over the last dimension."""
    with name_scope(scope, "softmax"):
        return nn.softmax(logits)
