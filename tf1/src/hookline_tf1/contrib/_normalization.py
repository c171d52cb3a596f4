"""Layers of `tf.contrib.layers` with a bias or scale for each channel: `bias_add`, `layer_norm`, `instance_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookline_tf1 import nn
from hookline_tf1._machinery.nodes import convert_to_tensor
from hookline_tf1._tf import array_ops
from hookline_tf1._tf.variable_scopes import get_variable_scope, variable_scope
from hookline_tf1.contrib._layer_collections import collect_named_outputs, collect_variables
from hookline_tf1.contrib.framework import add_arg_scope, model_variable
from hookline_tf1.initializers import ones_initializer, zeros_initializer
from hookline_tf1.layers._base import ZEROS


def finished(outputs: Any, activation_fn: Any, variables: Sequence[Any], collections: Any, outputs_to: Any) -> Any:
    """Adds a layer's variables and activations to collections, and returns the activations."""
    collect_variables(variables, collections)
    outputs = outputs if activation_fn is None else activation_fn(outputs)
    return collect_named_outputs(outputs_to, get_variable_scope().name, outputs)


@add_arg_scope
def bias_add(
    inputs: Any,
    activation_fn: Any = None,
    initializer: Any = ZEROS,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Adds a bias to each channel.

    References:
        `tf.contrib.layers.bias_add`.
    """
    inputs = convert_to_tensor(inputs)
    channels = inputs.shape[1 if data_format == "NCHW" else -1].value
    with variable_scope(scope, "BiasAdd", [inputs], reuse=reuse):
        biases = model_variable("biases", [channels], inputs.dtype, initializer, regularizer, trainable)
        outputs = nn.bias_add(inputs, biases, data_format=data_format)
        return finished(outputs, activation_fn, [biases], variables_collections, outputs_collections)


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Adds layer normalisation over the dimensions from `begin_norm_axis` on.

    References:
        `tf.contrib.layers.layer_norm`.
    """
    inputs = convert_to_tensor(inputs)
    rank = _rank("layer_norm", inputs)
    axes = list(range(begin_norm_axis % rank, rank))
    with variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        shape = inputs.shape.as_list()[begin_params_axis:]
        made = _shift_and_scale(shape, inputs.dtype, center, scale, {}, trainable)
        outputs = _normalized(inputs, axes, made, [1] * (rank - len(shape)) + shape, 1e-12)
        return finished(outputs, activation_fn, list(made.values()), variables_collections, outputs_collections)


@add_arg_scope
def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: dict[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Adds instance normalisation: each channel of each image gets mean 0 and variance 1.

    References:
        `tf.contrib.layers.instance_norm`.
    """
    inputs = convert_to_tensor(inputs)
    rank = _rank("instance_norm", inputs)
    channel = 1 if data_format == "NCHW" else rank - 1
    axes = [axis for axis in range(1, rank) if axis != channel]
    with variable_scope(scope, "InstanceNorm", [inputs], reuse=reuse):
        size = inputs.shape.as_list()[channel]
        made = _shift_and_scale([size], inputs.dtype, center, scale, param_initializers or {}, trainable)
        broad = [size if axis == channel else 1 for axis in range(rank)]
        outputs = _normalized(inputs, axes, made, broad, epsilon)
        return finished(outputs, activation_fn, list(made.values()), variables_collections, outputs_collections)


def _rank(who: str, inputs: Any) -> int:
    if inputs.shape.ndims is None:
        raise ValueError(f"tf.contrib.layers.{who} requires inputs of known rank, got {inputs.name} of unknown shape.")
    return inputs.shape.ndims


def _shift_and_scale(
    shape: list[Any], dtype: Any, center: bool, scale: bool, initializers: dict[str, Any], trainable: bool
) -> dict[str, Any]:
    """Creates the requested variables `beta` and `gamma`, and returns them by name."""
    starts = {"beta": zeros_initializer(), "gamma": ones_initializer()} | initializers
    wanted = [name for name, is_wanted in (("beta", center), ("gamma", scale)) if is_wanted]
    return {name: model_variable(name, shape, dtype, starts[name], trainable=trainable) for name in wanted}


def _normalized(inputs: Any, axes: list[int], made: dict[str, Any], shape: list[int], epsilon: float) -> Any:
    mean, variance = nn.moments(inputs, axes, keepdims=True)
    beta, gamma = (array_ops.reshape(made[name], shape) if name in made else None for name in ("beta", "gamma"))
    return nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
