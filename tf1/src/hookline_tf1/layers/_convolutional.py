"""Convolutions in one to three dimensions, and transposed convolutions in two and three."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hookline_tf1._machinery.nodes import op
from hookline_tf1.layers._base import ZEROS, Layer, activated, dimension, functional
from hookline_tf1.nn import _convolution

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def several(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns one number for each dimension, from a list or a single number."""
    return (int(value),) * rank if isinstance(value, int) else tuple(int(item) for item in value)


def layout(rank: int, data_format: str) -> str:
    """Returns the layout of dimensions for `channels_last` or `channels_first`."""
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"data_format is 'channels_last' or 'channels_first', got {data_format!r}.")
    return f"N{_SPATIAL[rank]}C" if data_format == "channels_last" else f"NC{_SPATIAL[rank]}"


class _Convolution(Layer):
    """The base of convolutions. A subclass sets the number of dimensions."""

    rank = 0
    transposed = False

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = ZEROS,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        if padding.lower() not in ("valid", "same"):
            raise ValueError(f"{type(self).__name__}: padding is 'valid' or 'same', got {padding!r}.")
        self.filters, self.padding, self.data_format = int(filters), padding, data_format
        self.kernel_size, self.strides = several(kernel_size, self.rank), several(strides, self.rank)
        self.dilation_rate = several(dilation_rate, self.rank)
        self.activation, self.use_bias = activation, use_bias
        self._kernel = {
            "initializer": kernel_initializer,
            "regularizer": kernel_regularizer,
            "constraint": kernel_constraint,
        }
        self._bias = {"initializer": bias_initializer, "regularizer": bias_regularizer, "constraint": bias_constraint}
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        """Creates the kernel and the bias."""
        channels = dimension(self, input_shape, layout(self.rank, self.data_format).index("C"))
        ends = [self.filters, channels] if self.transposed else [channels, self.filters]
        self.kernel = self.add_weight("kernel", [*self.kernel_size, *ends], **self._kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.filters], **self._bias)

    def call(self, inputs: Any) -> Any:
        """Computes the convolution and its activation."""
        order, padding = layout(self.rank, self.data_format), self.padding.upper()
        if self.transposed:
            convolve = functools.partial(_transposed, self.strides, padding, order)
            outputs = op(convolve, name=f"conv{self.rank}d_transpose")(inputs, self.kernel)
        else:
            how = {"strides": self.strides, "padding": padding, "dilations": self.dilation_rate}
            convolve = functools.partial(_convolution.convolved, data_format=order, **how)
            outputs = op(convolve, name=f"Conv{self.rank}D")(inputs, self.kernel)
        return activated(self.activation, self._biased(outputs))

    def _biased(self, outputs: Any) -> Any:
        if not self.use_bias:
            return outputs
        axes = (1,) * self.rank if self.data_format == "channels_first" else ()
        return op(lambda x, bias: x + bias.reshape((-1, *axes)), name="BiasAdd")(outputs, self.bias)


def _transposed(strides: Sequence[int], padding: str, order: str, x: Any, kernel: Any) -> Any:
    """Computes a transposed convolution, with TensorFlow's shape of the outputs."""
    steps, windows = iter(strides), iter(kernel.shape)
    shape = list(x.shape)
    for i, letter in enumerate(order):
        if letter == "C":
            shape[i] = kernel.shape[-2]
        elif letter != "N":
            step, window = next(steps), next(windows)
            shape[i] = shape[i] * step + (max(window - step, 0) if padding == "VALID" else 0)
    return _convolution.transposed(x, kernel, shape, strides, padding, order)


class Conv1D(_Convolution):
    """A convolution over one dimension.

    References:
        `tf.layers.Conv1D`.
    """

    rank = 1


class Conv2D(_Convolution):
    """A convolution over two dimensions.

    References:
        `tf.layers.Conv2D`.
    """

    rank = 2


class Conv3D(_Convolution):
    """A convolution over three dimensions.

    References:
        `tf.layers.Conv3D`.
    """

    rank = 3


class _Transposed(_Convolution):
    transposed = True

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = ZEROS,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, 1, activation, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
            bias_constraint, trainable, name, **kwargs,
        )  # fmt: skip


class Conv2DTranspose(_Transposed):
    """A transposed convolution over two dimensions.

    References:
        `tf.layers.Conv2DTranspose`.
    """

    rank = 2


class Conv3DTranspose(_Transposed):
    """A transposed convolution over three dimensions.

    References:
        `tf.layers.Conv3DTranspose`.
    """

    rank = 3


class SeparableConv2D(_Convolution):
    """A depthwise convolution followed by a pointwise one.

    References:
        `tf.layers.SeparableConv2D`.
    """

    rank = 2

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: int | Sequence[int] = (1, 1),
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = ZEROS,
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, None,
            bias_initializer, None, bias_regularizer, activity_regularizer, None, bias_constraint, trainable, name,
            **kwargs,
        )  # fmt: skip
        self.depth_multiplier = depth_multiplier
        self._depthwise = {
            "initializer": depthwise_initializer,
            "regularizer": depthwise_regularizer,
            "constraint": depthwise_constraint,
        }
        self._pointwise = {
            "initializer": pointwise_initializer,
            "regularizer": pointwise_regularizer,
            "constraint": pointwise_constraint,
        }

    def build(self, input_shape: Any) -> None:
        """Creates both kernels and the bias."""
        channels = dimension(self, input_shape, layout(2, self.data_format).index("C"))
        depth = channels * self.depth_multiplier
        shape = [*self.kernel_size, channels, self.depth_multiplier]
        self.depthwise_kernel = self.add_weight("depthwise_kernel", shape, **self._depthwise)
        self.pointwise_kernel = self.add_weight("pointwise_kernel", [1, 1, depth, self.filters], **self._pointwise)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.filters], **self._bias)

    def call(self, inputs: Any) -> Any:
        """Computes both convolutions and the activation."""
        order, padding = layout(2, self.data_format), self.padding.upper()
        how = {"strides": self.strides, "padding": padding, "rate": self.dilation_rate, "data_format": order}
        separable = functools.partial(_convolution.separable, **how)
        outputs = op(separable, name="separable_conv2d")(inputs, self.depthwise_kernel, self.pointwise_kernel)
        return activated(self.activation, self._biased(outputs))


conv1d, conv2d, conv3d = functional(Conv1D), functional(Conv2D), functional(Conv3D)
conv2d_transpose, conv3d_transpose = functional(Conv2DTranspose), functional(Conv3DTranspose)
separable_conv2d = functional(SeparableConv2D)
