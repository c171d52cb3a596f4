"""Convolutions and pooling of `tf.nn`."""

from __future__ import annotations

from typing import Any

from hookline_tf1._machinery.op_definitions import Plain, Static, Unused, computed_by
from hookline_tf1.nn import _convolution


@computed_by(_convolution.convolved, "conv1d")
def conv1d(
    value: Any,
    filters: Any,
    stride: Static,
    padding: Plain,
    use_cudnn_on_gpu: Unused = None,
    data_format: Plain = None,
    name: str | None = None,
) -> Any: ...


@computed_by(_convolution.convolved, "Conv2D", earlier={"filters": "filter"})
def conv2d(
    input: Any,
    filter: Any,
    strides: Static,
    padding: Plain,
    use_cudnn_on_gpu: Unused = True,
    data_format: Plain = "NHWC",
    dilations: Static = [1, 1, 1, 1],  # noqa: B006
    name: str | None = None,
) -> Any: ...


@computed_by(_convolution.convolved, "Conv3D", earlier={"filters": "filter"})
def conv3d(
    input: Any,
    filter: Any,
    strides: Static,
    padding: Plain,
    data_format: Plain = "NDHWC",
    dilations: Static = [1, 1, 1, 1, 1],  # noqa: B006
    name: str | None = None,
) -> Any: ...


@computed_by(lambda x, kernel, rate, padding: _convolution.convolved(x, kernel, 1, padding, None, rate), "convolution")
def atrous_conv2d(value: Any, filters: Any, rate: Static, padding: Plain, name: str | None = None) -> Any: ...


@computed_by(
    lambda x, kernel, padding, strides, rate, layout: _convolution.convolved(
        x, kernel, strides or 1, padding, layout, rate
    ),
    "convolution",
)
def convolution(
    input: Any,
    filter: Any,
    padding: Plain,
    strides: Static = None,
    dilation_rate: Static = None,
    name: str | None = None,
    data_format: Plain = None,
) -> Any: ...


@computed_by(_convolution.transposed, "conv2d_transpose", spec=_convolution.as_asked)
def conv2d_transpose(
    value: Any,
    filter: Any,
    output_shape: Static,
    strides: Static,
    padding: Plain = "SAME",
    data_format: Plain = "NHWC",
    name: str | None = None,
) -> Any: ...


@computed_by(
    lambda shape, kernel, x, strides, padding, layout: _convolution.transposed(
        x, kernel, shape, strides, padding, layout
    ),
    "Conv2DBackpropInput",
)
def conv2d_backprop_input(
    input_sizes: Static,
    filter: Any,
    out_backprop: Any,
    strides: Static,
    padding: Plain,
    use_cudnn_on_gpu: Unused = True,
    data_format: Plain = "NHWC",
    name: str | None = None,
) -> Any: ...


@computed_by(_convolution.transposed, "conv3d_transpose", spec=_convolution.as_asked)
def conv3d_transpose(
    value: Any,
    filter: Any,
    output_shape: Static,
    strides: Static,
    padding: Plain = "SAME",
    data_format: Plain = "NDHWC",
    name: str | None = None,
) -> Any: ...


@computed_by(_convolution.depthwise, "depthwise")
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Static,
    padding: Plain,
    rate: Static = 1,
    name: str | None = None,
    data_format: Plain = "NHWC",
    dilations: Static = None,
) -> Any: ...


@computed_by(
    lambda x, kernel, strides, padding, layout, dilations: _convolution.depthwise(
        x, kernel, strides, padding, dilations, layout, None
    )
)
def depthwise_conv2d_native(
    input: Any,
    filter: Any,
    strides: Static,
    padding: Plain,
    data_format: Plain = "NHWC",
    dilations: Static = 1,
    name: str | None = None,
) -> Any: ...


@computed_by(_convolution.separable, "separable_conv2d")
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Static,
    padding: Plain,
    rate: Static = 1,
    name: str | None = None,
    data_format: Plain = "NHWC",
) -> Any: ...


@computed_by(_convolution.max_pooled, earlier={"input": "value"})
def max_pool(
    value: Any, ksize: Static, strides: Static, padding: Plain, data_format: Plain = "NHWC", name: str | None = None
) -> Any: ...


@computed_by(_convolution.mean_pooled, earlier={"input": "value"})
def avg_pool(
    value: Any, ksize: Static, strides: Static, padding: Plain, data_format: Plain = "NHWC", name: str | None = None
) -> Any: ...


@computed_by(_convolution.max_pooled)
def max_pool3d(
    input: Any, ksize: Static, strides: Static, padding: Plain, data_format: Plain = "NDHWC", name: str | None = None
) -> Any: ...


@computed_by(_convolution.mean_pooled)
def avg_pool3d(
    input: Any, ksize: Static, strides: Static, padding: Plain, data_format: Plain = "NDHWC", name: str | None = None
) -> Any: ...


@computed_by(_convolution.pooled, "pool")
def pool(
    input: Any,
    window_shape: Static,
    pooling_type: Plain,
    padding: Plain,
    dilation_rate: Static = None,
    strides: Static = None,
    name: str | None = None,
    data_format: Plain = None,
) -> Any: ...
