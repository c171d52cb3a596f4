"""Convolutions and pooling of arrays, for `tf.nn` and `tf.layers`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.extend import specs
from hookline_tf1._rules import constant_folding

_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def _layout(data_format: str | None, dims: int) -> tuple[str, int]:
    """Returns JAX's name of a data format, and the axis of the channels."""
    data_format = data_format or ("N" + _LETTERS[dims] + "C")
    return data_format.replace("NWC", "NWC"), data_format.index("C")


def _spatial(values: Any, data_format: str, dims: int) -> list[int]:
    """Returns one number for each spatial dimension, from one for all, or one for every dimension."""
    values = [values] * dims if isinstance(values, int) else list(values)
    if len(values) == 1:
        values = values * dims
    if len(values) == dims:
        return values
    return [value for value, letter in zip(values, data_format, strict=True) if letter not in "NC"]


def _padding(padding: Any, data_format: str) -> Any:
    if isinstance(padding, str):
        return padding.upper()
    pairs = zip(padding, data_format, strict=True)
    return [tuple(pair) for pair, letter in pairs if letter not in "NC"]


def _check_window(image: Sequence[Any], window: Sequence[int], padding: Any) -> None:
    """Raises `ValueError` if a window is larger than an unpadded image."""
    for whole, width in zip(image, window, strict=True):
        if padding == "VALID" and isinstance(whole, int) and width > whole:
            raise ValueError(f"Negative dimension size caused by subtracting {width} from {whole}")


def convolved(x: Any, kernel: Any, strides: Any, padding: Any, data_format: Any, dilations: Any = 1) -> Any:
    """Computes a convolution in one to three dimensions; the kernel's last two are channels in and out."""
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    dims = x.ndim - 2
    layout, channels = _layout(data_format, dims)
    rate, around = _spatial(1 if dilations is None else dilations, layout, dims), _padding(padding, layout)
    image = [dim for dim, letter in zip(x.shape, layout, strict=True) if letter not in "NC"]
    widths = [1 + (width - 1) * step for width, step in zip(kernel.shape[:dims], rate, strict=True)]
    _check_window(image, widths, around)
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        _spatial(strides, layout, dims),
        around,
        rhs_dilation=rate,
        dimension_numbers=(layout, _LETTERS[dims] + "IO", layout),
        feature_group_count=x.shape[channels] // kernel.shape[-2],
    )


def transposed(
    x: Any, kernel: Any, shape: Any, strides: Any, padding: Any, data_format: Any, dilations: Any = 1
) -> Any:
    """Computes a transposed convolution of shape `shape`: the gradient of `convolved` with respect to its input."""
    x = jnp.asarray(x)
    like = jax.ShapeDtypeStruct(tuple(shape), x.dtype)
    back = jax.linear_transpose(lambda y: convolved(y, kernel, strides, padding, data_format, dilations), like)
    return back(x)[0]


def as_asked(value: Any, filter: Any, output_shape: Any, data_format: Any, **_: Any) -> Any:
    """Returns the spec of a result whose shape is an argument; items computed in a run are open dimensions."""
    given, kernel = (specs.open_shape(getattr(part, "spec", specs.UNKNOWN)) for part in (value, filter))
    channels = (given[data_format.index("C")], kernel[-1]) if given and kernel else (None, None)
    if None not in channels and channels[0] != channels[1]:
        raise ValueError(
            f"Dimensions must be equal, but are {channels[0]} and {channels[1]}: the channels of the value, of shape "
            f"{given}, and the last dimension of the filter, of shape {kernel}."
        )
    try:
        asked = constant_folding.partly(output_shape)
    except constant_folding.Unknown:
        asked = [None] * len(kernel or ()) or None
    if value.spec is specs.UNKNOWN or asked is None:
        return specs.UNKNOWN
    return specs.array_spec(value.spec.dtype, asked)


def depthwise(x: Any, kernel: Any, strides: Any, padding: Any, rate: Any, data_format: Any, dilations: Any) -> Any:
    """Computes a depthwise convolution."""
    height, width, channels, times = jnp.shape(kernel)
    kernel = jnp.reshape(kernel, (height, width, 1, channels * times))
    return convolved(x, kernel, strides, padding, data_format, rate if dilations is None else dilations)


def separable(x: Any, depth: Any, point: Any, strides: Any, padding: Any, rate: Any, data_format: Any) -> Any:
    """Computes a depthwise convolution, then a pointwise one."""
    return convolved(depthwise(x, depth, strides, padding, rate, data_format, None), point, 1, "VALID", data_format)


def _windows(x: Any, size: Any, strides: Any, padding: Any, data_format: Any) -> tuple[Any, Any, Any]:
    dims = x.ndim - 2
    layout, _ = _layout(data_format, dims)
    spread = iter(_spatial(size, layout, dims))
    window = tuple(1 if letter in "NC" else next(spread) for letter in layout)
    spread = iter(_spatial(strides, layout, dims))
    steps = tuple(1 if letter in "NC" else next(spread) for letter in layout)
    if not isinstance(padding, str):
        return window, steps, [tuple(pair) for pair in padding]
    _check_window(x.shape, window, padding.upper())
    return window, steps, padding.upper()


def max_pooled(x: Any, size: Any, strides: Any, padding: Any, data_format: Any) -> Any:
    """Computes max pooling; the gradient goes to the first of equal elements."""
    x = jnp.asarray(x)
    window, steps, padding = _windows(x, size, strides, padding, data_format)
    if window == steps and _tiles(x.shape, window, padding):
        return _largest_of_tiles(x, window)
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(x, np.asarray(lowest, x.dtype), jax.lax.max, window, steps, padding)


def _tiles(shape: Any, window: Sequence[int], padding: Any) -> bool:
    """Whether the windows are small and adjacent, without padding."""
    spatial = [(dim, width) for dim, width in zip(shape, window, strict=True) if width > 1]
    if math.prod(window) > 9 or not all(isinstance(dim, int) and dim >= width for dim, width in spatial):
        return False
    return padding == "VALID" or (padding == "SAME" and all(dim % width == 0 for dim, width in spatial))


def _largest_of_tiles(x: Any, window: Sequence[int]) -> Any:
    # On a CPU the gradient of `reduce_window` takes several times as long.
    def tile(at: Sequence[int]) -> Any:
        ends = [dim - dim % width if width > 1 else None for dim, width in zip(x.shape, window, strict=True)]
        return x[tuple(slice(start, end, width) for start, end, width in zip(at, ends, window, strict=True))]

    largest, *others = (tile(at) for at in itertools.product(*map(range, window)))
    for other in others:
        largest = jnp.where((other > largest) | jnp.isnan(other), other, largest)
    return largest


def mean_pooled(x: Any, size: Any, strides: Any, padding: Any, data_format: Any) -> Any:
    """Computes average pooling; padding does not count."""
    x = jnp.asarray(x)
    windows = _windows(x, size, strides, padding, data_format)
    total = jax.lax.reduce_window(x, np.asarray(0, x.dtype), jax.lax.add, *windows)
    if windows[2] == "VALID":
        return total / math.prod(windows[0])
    return total / jax.lax.reduce_window(jnp.ones_like(x), np.asarray(0, x.dtype), jax.lax.add, *windows)


def pooled(x: Any, size: Sequence[int], kind: str, padding: Any, rate: Any, strides: Any, data_format: Any) -> Any:
    """Computes max or average pooling in one to three dimensions."""
    if any(step != 1 for step in np.ravel(1 if rate is None else rate)):
        raise NotImplementedError("tf.nn.pool with a dilation_rate is not available.")
    pool = {"MAX": max_pooled, "AVG": mean_pooled}[kind.upper()]
    return pool(x, size, 1 if strides is None else strides, padding, data_format)
