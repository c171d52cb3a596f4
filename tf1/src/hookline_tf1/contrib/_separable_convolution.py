"""`tf.contrib.layers.separable_conv2d`: a depthwise and a pointwise convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookline_tf1 import nn
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf.variable_scopes import variable_scope
from hookline_tf1.contrib._initializers import xavier_initializer
from hookline_tf1.contrib._normalization import finished
from hookline_tf1.contrib.framework import add_arg_scope, model_variable
from hookline_tf1.layers._base import ZEROS
from hookline_tf1.layers._convolutional import several


@add_arg_scope
def separable_conv2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: int | Sequence[int],
    depth_multiplier: int = 1,
    stride: int | Sequence[int] = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: int | Sequence[int] = 1,
    activation_fn: Any = nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008 - a stateless function
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Adds a depthwise convolution, and then a pointwise one unless `num_outputs` is None.

    References:
        `tf.contrib.layers.separable_conv2d`. Its variables are `depthwise_weights`, `pointwise_weights` and `biases`.
    """
    inputs = convert_to_tensor(inputs)
    first = data_format.startswith("NC")
    channels = inputs.shape[1 if first else -1].value
    if channels is None:
        raise ValueError(f"separable_conv2d requires inputs of a known number of channels, got {inputs.shape}.")
    steps = several(stride, 2)
    how = {
        "strides": [1, 1, *steps] if first else [1, *steps, 1],
        "padding": padding,
        "rate": list(several(rate, 2)),
        "data_format": data_format,
    }
    with variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse):

        def weights(name: str, shape: list[int], initializer: Any) -> Any:
            return model_variable(name, shape, inputs.dtype, initializer, weights_regularizer, trainable)

        shape = [*several(kernel_size, 2), channels, depth_multiplier]
        made = [weights("depthwise_weights", shape, weights_initializer)]
        if num_outputs is None:
            outputs = nn.depthwise_conv2d(inputs, made[0], **how)
        else:
            start = weights_initializer if pointwise_initializer is None else pointwise_initializer
            made.append(weights("pointwise_weights", [1, 1, channels * depth_multiplier, num_outputs], start))
            outputs = nn.separable_conv2d(inputs, *made, **how)
        if normalizer_fn is not None:
            outputs = normalizer_fn(outputs, **(normalizer_params or {}))
        elif biases_initializer is not None:
            size = num_outputs or channels * depth_multiplier
            biases = model_variable("biases", [size], inputs.dtype, biases_initializer, biases_regularizer, trainable)
            outputs = nn.bias_add(outputs, biases, data_format=data_format)
            made.append(biases)
        return finished(outputs, activation_fn, made, variables_collections, outputs_collections)
