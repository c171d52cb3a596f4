"""`tf.contrib.layers`: layers with other names and defaults than in `tf.layers`.

A layer's variables are `<scope>/weights` and `<scope>/biases`, and its default activation is ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline_tf1 import layers, nn
from hookline_tf1._machinery.graphs import GraphKeys, control_dependencies, get_default_graph
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import op
from hookline_tf1._tf.variable_scopes import get_variable_scope, variable_scope
from hookline_tf1.contrib._initializers import (
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from hookline_tf1.contrib._normalization import bias_add, finished, instance_norm, layer_norm
from hookline_tf1.contrib._parameter_free_layers import (
    avg_pool2d,
    dropout,
    flatten,
    layout,
    max_pool2d,
    one_hot_encoding,
    softmax,
)
from hookline_tf1.contrib._repeat import repeat, stack
from hookline_tf1.contrib._separable_convolution import separable_conv2d
from hookline_tf1.contrib.framework import add_arg_scope, add_model_variable
from hookline_tf1.layers._base import ZEROS, Layer

__all__ = [
    "avg_pool2d",
    "batch_norm",
    "bias_add",
    "conv2d",
    "conv2d_transpose",
    "convolution2d",
    "convolution2d_transpose",
    "dropout",
    "flatten",
    "fully_connected",
    "instance_norm",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "layer_norm",
    "linear",
    "max_pool2d",
    "one_hot_encoding",
    "relu",
    "repeat",
    "separable_conv2d",
    "separable_convolution2d",
    "softmax",
    "stack",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]

__getattr__, __dir__ = offered("tf.contrib.layers", lambda: __all__)


def _renamed(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    """Custom getter: creates the variables of a layer of `tf.layers` under the names in `tf.contrib.layers`."""
    scope, _, last = name.rpartition("/")
    last = {"kernel": "weights", "bias": "biases"}.get(last, last)
    variable = getter(f"{scope}/{last}" if scope else last, *args, **kwargs)
    add_model_variable(variable)
    return variable


def _called(
    layer: Layer,
    label: str,
    inputs: Any,
    activation_fn: Any,
    normalizer_fn: Any,
    normalizer_params: dict[str, Any] | None,
    reuse: Any,
    scope: Any,
    outputs_collections: Any,
    variables_collections: Any,
) -> Any:
    """Calls a layer in its scope, then its normalizer, then its activation."""
    with variable_scope(scope, label, [inputs], reuse=reuse, custom_getter=_renamed):
        layer._scope = get_variable_scope()
        outputs = layer(inputs)
        if normalizer_fn is not None:
            outputs = normalizer_fn(outputs, **(normalizer_params or {}))
        return finished(outputs, activation_fn, layer.variables, variables_collections, outputs_collections)


XAVIER = xavier_initializer()


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Any = nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Adds a fully connected layer, with a bias unless it has a normalizer.

    References:
        `tf.contrib.layers.fully_connected`.
    """
    use_bias = normalizer_fn is None and biases_initializer is not None
    layer = layers.Dense(
        num_outputs, None, use_bias, weights_initializer, biases_initializer, weights_regularizer, biases_regularizer,
        trainable=trainable,
    )  # fmt: skip
    return _called(layer, "fully_connected", inputs, activation_fn, normalizer_fn, normalizer_params, reuse, scope,
                   outputs_collections, variables_collections)  # fmt: skip


@add_arg_scope
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: int | Sequence[int] = 1,
    activation_fn: Any = nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Adds a convolution of images.

    References:
        `tf.contrib.layers.conv2d`.
    """
    layer = layers.Conv2D(
        num_outputs, kernel_size, stride, padding, layout(data_format), rate, None,
        normalizer_fn is None and biases_initializer is not None, weights_initializer, biases_initializer,
        weights_regularizer, biases_regularizer, trainable=trainable,
    )  # fmt: skip
    return _called(layer, "Conv", inputs, activation_fn, normalizer_fn, normalizer_params, reuse, scope,
                   outputs_collections, variables_collections)  # fmt: skip


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    activation_fn: Any = nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Adds a transposed convolution of images.

    References:
        `tf.contrib.layers.conv2d_transpose`.
    """
    layer = layers.Conv2DTranspose(
        num_outputs, kernel_size, stride, padding, layout(data_format), None,
        normalizer_fn is None and biases_initializer is not None, weights_initializer, biases_initializer,
        weights_regularizer, biases_regularizer, trainable=trainable,
    )  # fmt: skip
    return _called(layer, "Conv2d_transpose", inputs, activation_fn, normalizer_fn, normalizer_params, reuse, scope,
                   outputs_collections, variables_collections)  # fmt: skip


class _Normalization(layers.BatchNormalization):
    """Batch normalisation that uses the fused kernel, and so the unbiased variance, for vectors, too."""

    def build(self, input_shape: Any) -> None:
        """Creates the variables."""
        super().build(input_shape)
        self._unbiased = self._unbiased or (input_shape.ndims == 2 and self.fused is not False)


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Any = None,
    param_initializers: dict[str, Any] | None = None,
    param_regularizers: dict[str, Any] | None = None,
    updates_collections: Any = GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
) -> Any:
    """Adds batch normalisation; with `updates_collections=None` each run of the result also updates the averages.

    References:
        `tf.contrib.layers.batch_norm`, without `batch_weights` and `zero_debias_moving_mean`.
    """
    if batch_weights is not None or zero_debias_moving_mean:
        raise NotImplementedError("tf.contrib.layers.batch_norm has no batch_weights and no zero_debias_moving_mean.")
    given = {f"{key}_initializer": value for key, value in (param_initializers or {}).items()}
    given |= {f"{key}_regularizer": value for key, value in (param_regularizers or {}).items()}
    layer = _Normalization(
        1 if data_format.startswith("NC") else -1, decay, epsilon, center, scale, fused=fused, trainable=trainable,
        renorm=renorm, **given,
    )  # fmt: skip
    updates = get_default_graph().get_collection_ref(GraphKeys.UPDATE_OPS)
    before = len(updates)
    with variable_scope(scope, "BatchNorm", [inputs], reuse=reuse, custom_getter=_renamed):
        layer._scope = get_variable_scope()
        outputs = layer(inputs, training=is_training)
        made = updates[before:]
        if updates_collections != GraphKeys.UPDATE_OPS:
            del updates[before:]
        if updates_collections is None:
            with control_dependencies(made):
                outputs = op(lambda x: x, name="updated")(outputs)
        elif updates_collections != GraphKeys.UPDATE_OPS:
            for update in made:
                get_default_graph().add_to_collections(updates_collections, update)
        return finished(outputs, activation_fn, layer.variables, variables_collections, outputs_collections)


def linear(inputs: Any, num_outputs: int, **kwargs: Any) -> Any:
    """`fully_connected` without an activation."""
    kwargs.setdefault("activation_fn", None)
    return fully_connected(inputs, num_outputs, **kwargs)


relu = fully_connected
# The names of TensorFlow's functions, which `repeat` and `stack` use for scopes.
for _layer in (conv2d, conv2d_transpose, separable_conv2d):
    _layer.__name__ = _layer.__name__.replace("conv2d", "convolution2d")
convolution2d, convolution2d_transpose, separable_convolution2d = conv2d, conv2d_transpose, separable_conv2d
