"""What the rows of `nn` compute with windows: convolutions and pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def _layout(data_format: str | None, dims: int) -> tuple[str, int]:
    """Returns JAX's name of a data format, and where its channels are."""
    data_format = data_format or ("N" + _LETTERS[dims] + "C")
    return data_format.replace("NWC", "NWC"), data_format.index("C")


def _spatial(values: Any, data_format: str, dims: int) -> list[int]:
    """Returns one number for each spatial dimension, of one for all, or of one for every dimension."""
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


def convolved(x: Any, kernel: Any, strides: Any, padding: Any, data_format: Any, dilations: Any = 1) -> Any:
    """Returns a convolution in one to three dimensions; the kernel's last two are channels in and out."""
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    dims = x.ndim - 2
    layout, channels = _layout(data_format, dims)
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        _spatial(strides, layout, dims),
        _padding(padding, layout),
        rhs_dilation=_spatial(1 if dilations is None else dilations, layout, dims),
        dimension_numbers=(layout, _LETTERS[dims] + "IO", layout),
        feature_group_count=x.shape[channels] // kernel.shape[-2],
    )


def transposed(
    x: Any, kernel: Any, shape: Any, strides: Any, padding: Any, data_format: Any, dilations: Any = 1
) -> Any:
    """Returns what `convolved` would have to be given to return `x`, as its gradient says: of shape `shape`."""
    x = jnp.asarray(x)
    like = jax.ShapeDtypeStruct(tuple(shape), x.dtype)
    back = jax.linear_transpose(lambda y: convolved(y, kernel, strides, padding, data_format, dilations), like)
    return back(x)[0]


def depthwise(x: Any, kernel: Any, strides: Any, padding: Any, rate: Any, data_format: Any, dilations: Any) -> Any:
    """Returns a convolution of each channel by itself."""
    height, width, channels, times = jnp.shape(kernel)
    kernel = jnp.reshape(kernel, (height, width, 1, channels * times))
    return convolved(x, kernel, strides, padding, data_format, rate if dilations is None else dilations)


def separable(x: Any, depth: Any, point: Any, strides: Any, padding: Any, rate: Any, data_format: Any, *_: Any) -> Any:
    """Returns a convolution of each channel by itself, and then one across channels."""
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
    return window, steps, padding.upper()


def max_pooled(x: Any, size: Any, strides: Any, padding: Any, data_format: Any, *_: Any) -> Any:
    """Returns the largest element of each window."""
    x = jnp.asarray(x)
    window, steps, padding = _windows(x, size, strides, padding, data_format)
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(x.shape, window, steps, padding)
    padding = tuple((int(low), int(high)) for low, high in padding)
    if math.prod(window) > _LARGE_WINDOW or not jnp.issubdtype(x.dtype, jnp.floating):
        return _max_of_windows(x, window, steps, padding)
    return _max_pool(x, window, steps, padding)


# Of larger windows the gradient is left to JAX: it would be a term for each place of the window.
_LARGE_WINDOW = 16


def _max_of_windows(x: Any, window: Any, steps: Any, padding: Any) -> Any:
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(x, np.asarray(lowest, x.dtype), jax.lax.max, window, steps, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _max_pool(x: Any, window: Any, steps: Any, padding: Any) -> Any:
    return _max_of_windows(x, window, steps, padding)


def _with_input(x: Any, window: Any, steps: Any, padding: Any) -> Any:
    found = _max_of_windows(x, window, steps, padding)
    return found, (x, found)


def _to_first_largest(window: Any, steps: Any, padding: Any, given: Any, slopes: Any) -> Any:
    """Sends each window's gradient to the first of its largest elements.

    XLA has an operation for that, which JAX uses: on CPU it takes ten times as long.
    """
    x, found = given
    edged = jnp.pad(x, padding, constant_values=-np.inf)
    total, left = jnp.zeros_like(edged), jnp.ones(found.shape, bool)
    for offset in np.ndindex(*window):
        ends = [o + (n - 1) * s + 1 for o, n, s in zip(offset, found.shape, steps, strict=True)]
        here = left & (jax.lax.slice(edged, offset, ends, steps) == found)
        left = left & ~here
        around = [(o, whole - end, s - 1) for o, whole, end, s in zip(offset, edged.shape, ends, steps, strict=True)]
        total = total + jax.lax.pad(jnp.where(here, slopes, 0), np.asarray(0, x.dtype), around)
    starts = [low for low, _ in padding]
    return (jax.lax.slice(total, starts, [start + n for start, n in zip(starts, x.shape, strict=True)]),)


_max_pool.defvjp(_with_input, _to_first_largest)


def mean_pooled(x: Any, size: Any, strides: Any, padding: Any, data_format: Any, *_: Any) -> Any:
    """Returns the mean of each window; what lies outside of the image does not count."""
    x = jnp.asarray(x)
    windows = _windows(x, size, strides, padding, data_format)
    total = jax.lax.reduce_window(x, np.asarray(0, x.dtype), jax.lax.add, *windows)
    if windows[2] == "VALID":
        return total / math.prod(windows[0])
    return total / jax.lax.reduce_window(jnp.ones_like(x), np.asarray(0, x.dtype), jax.lax.add, *windows)


def pooled(x: Any, size: Sequence[int], kind: str, padding: Any, rate: Any, strides: Any, data_format: Any) -> Any:
    """Returns the largest elements or the means of windows in one to three dimensions."""
    if any(step != 1 for step in np.ravel(1 if rate is None else rate)):
        raise NotImplementedError("tf.nn.pool with a dilation_rate is not available.")
    pool = {"MAX": max_pooled, "AVG": mean_pooled}[kind.upper()]
    return pool(x, size, 1 if strides is None else strides, padding, data_format)
