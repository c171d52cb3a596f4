"""Functions of arrays for `array_ops`, which move, pick and repeat elements."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hookline.errors import InvalidArgumentError
from hookline_tf1._machinery import subgradients
from hookline_tf1._rules import inference_by_example


def dims(shape: Any) -> Any:
    return tuple(shape) if isinstance(shape, list | tuple) else (shape,)


def tiled(x: Any, multiples: Any) -> Any:
    found = dims(multiples)
    if len(found) != jnp.ndim(x):
        raise ValueError(f"tf.tile: one multiple for each dimension is required, got {found} for {jnp.ndim(x)}.")
    return jnp.tile(x, found)


def reshaped(tensor: Any, shape: Any) -> Any:
    wanted, given = dims(shape), jnp.shape(tensor)
    known, whole = (math.prod(dim for dim in of if isinstance(dim, int)) for of in (given, wanted))
    if all(isinstance(dim, int) for dim in wanted) and known and whole > 0 and whole % known:
        raise ValueError(f"Dimension size must be evenly divisible by {known} but is {whole}")
    return jnp.reshape(tensor, wanted)


def filled(value: Any) -> Any:
    return lambda shape, dtype: jnp.full(dims(shape), value, dtype)


def like(value: Any) -> Any:
    def fill(tensor: Any, dtype: Any) -> Any:
        return jnp.full_like(jnp.asarray(tensor), value, dtype=dtype)

    return fill


def transposed(a: Any, perm: Any, conjugate: Any) -> Any:
    found = jnp.transpose(a, None if perm is None else tuple(perm))
    return jnp.conj(found) if conjugate else found


def squeezed(x: Any, axis: Any) -> Any:
    return jnp.squeeze(x, tuple(axis) if isinstance(axis, list) else axis)


def listed(values: Any) -> Any:
    return list(values) if isinstance(values, list | tuple) else list(jnp.asarray(values))


def stacked(values: Any, axis: Any) -> Any:
    return jnp.stack([jnp.asarray(value) for value in listed(values)], axis=axis)


def stacked_dims(values: Any, axis: Any) -> Any:
    return np.stack([np.asarray(value) for value in values], axis=axis)


def one_hot(indices: Any, depth: Any, on: Any, off: Any, axis: Any, dtype: Any) -> Any:
    if dtype is None:
        given = on if on is not None else off
        dtype = np.float32 if given is None else jnp.asarray(given).dtype
    on, off = (1 if on is None else on), (0 if off is None else off)
    hot = jax.nn.one_hot(indices, depth, dtype=bool, axis=-1 if axis is None else axis)
    return jnp.where(hot, on, off).astype(dtype)


def gathered(params: Any, indices: Any, axis: Any, batch_dims: Any) -> Any:
    params, axis = jnp.asarray(params), 0 if axis is None else axis
    if batch_dims:
        return jax.vmap(lambda p, i: gathered(p, i, axis - 1 if axis else 0, batch_dims - 1))(params, indices)
    return jnp.take(params, indices, axis=axis, mode="clip")


def gathered_dims(params: Any, indices: Any, axis: Any, batch_dims: Any) -> Any:
    if batch_dims:
        pairs = zip(params, indices, strict=True)
        return np.stack([gathered_dims(p, i, axis - 1 if axis else 0, batch_dims - 1) for p, i in pairs])
    if np.any(np.asarray(indices) < 0):
        raise IndexError(f"an index is below 0: {indices}.")
    return np.take(params, indices, axis=axis or 0)


def gather_nd(params: Any, indices: Any, batch_dims: Any) -> Any:
    if batch_dims:
        return jax.vmap(lambda p, i: gather_nd(p, i, batch_dims - 1))(params, indices)
    indices = jnp.asarray(indices)
    return jnp.asarray(params)[tuple(jnp.moveaxis(indices, -1, 0))]


def scatter_nd(indices: Any, updates: Any, shape: Any) -> Any:
    indices, updates = jnp.asarray(indices), jnp.asarray(updates)
    whole = jnp.zeros(dims(shape), updates.dtype)
    return whole.at[tuple(jnp.moveaxis(indices, -1, 0))].add(updates, wrap_negative_indices=False)


def split(value: Any, parts: Any, axis: Any) -> Any:
    value = jnp.asarray(value)
    if not isinstance(parts, list):
        return jnp.split(value, parts, axis=axis)
    whole = value.shape[axis]
    parts = [whole - sum(p for p in parts if p >= 0) if part < 0 else part for part in parts]
    return jnp.split(value, np.cumsum(parts)[:-1].tolist(), axis=axis)


def unstacked(value: Any, num: Any, axis: Any) -> Any:
    value = jnp.asarray(value)
    return [jax.lax.index_in_dim(value, i, axis, keepdims=False) for i in range(value.shape[axis])]


def where(condition: Any, x: Any, y: Any) -> Any:
    condition = jnp.asarray(condition)
    if x is None:
        raise TypeError(
            "tf.where(condition) has as many rows as there are true elements, but XLA must know shapes. Use "
            "tf.where(condition, x, y), multiply by the condition, or index fed values with numpy.argwhere."
        )
    if condition.ndim == 1 and jnp.ndim(x) > 1:
        condition = condition.reshape(-1, *(1,) * (jnp.ndim(x) - 1))
    return jnp.where(condition, x, y)


def padded(tensor: Any, paddings: Any, mode: Any, constant_values: Any) -> Any:
    if len(paddings) != jnp.ndim(tensor):
        raise ValueError(f"tf.pad: a pair for each dimension is required, got {paddings} for {jnp.ndim(tensor)}.")
    how = {"constant_values": constant_values} if mode.upper() == "CONSTANT" else {}
    modes = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}
    return jnp.pad(jnp.asarray(tensor), [tuple(pair) for pair in paddings], mode=modes[mode.upper()], **how)


def sliced(x: Any, begin: Any, size: Any) -> Any:
    x = jnp.asarray(x)
    size, begin = list(size) if isinstance(size, list | tuple) else [size], starts(begin)
    if any(wanted == -1 and isinstance(start, Tracer) for wanted, start in zip(size, begin, strict=True)):
        raise TypeError(
            "tf.slice: size is -1 and begin is computed in the run, but XLA has to know the size of the slice. "
            "Give it as a number."
        )
    _check_part(x.shape, begin, size)
    parts = zip(size, begin, x.shape, strict=True)
    return jax.lax.dynamic_slice(
        x, begin, [whole - start if wanted == -1 else wanted for wanted, start, whole in parts]
    )


def _check_part(shape: Any, begin: Any, size: Any) -> None:
    """Raises `InvalidArgumentError` for a slice out of bounds, which XLA would shift."""
    for axis, (whole, start, wanted) in enumerate(zip(shape, begin, size, strict=True)):
        if inference_by_example.is_example() or not all(isinstance(number, int) for number in (whole, start, wanted)):
            continue
        if not 0 <= start <= whole or not -1 <= wanted <= whole - start:
            asked = f"begin[{axis}] = {start} and size[{axis}] = {wanted}"
            why = "are no part of" if start < 0 or wanted < -1 else "end past"
            raise InvalidArgumentError.from_message(f"{asked} {why} dimension {axis}, which has {whole}.")


def last_starts(input_: Any, begin: Any, size: Any) -> Any:
    """Returns for each dimension the exclusive bound of the begin of a slice."""
    given = list(size) if isinstance(size, list | tuple) else [size]
    pairs = zip(input_.shape, given, strict=True)
    return np.asarray([whole - max(wanted, 0) + 1 for whole, wanted in pairs], np.int32)


def starts(begin: Any) -> list[Any]:
    if isinstance(begin, list | tuple):
        return list(begin)
    return [begin[i] for i in range(begin.shape[0])] if getattr(begin, "ndim", 0) else [begin]


def strided(x: Any, begin: Any, end: Any, strides: Any, b: Any, e: Any, ellipsis: Any, new: Any, shrink: Any) -> Any:
    index: list[Any] = []
    for i, (first, last) in enumerate(zip(begin, end, strict=True)):
        step = strides[i] if strides else 1
        bit = 1 << i
        if ellipsis & bit:
            index.append(...)
        elif new & bit:
            index.append(None)
        elif shrink & bit:
            index.append(first)
        else:
            index.append(slice(None if b & bit else first, None if e & bit else last, step))
    return x[tuple(index)]


def flipped(x: Any, axis: Any) -> Any:
    axis = axis if isinstance(axis, list) else [axis]
    if axis and all(isinstance(item, bool) for item in axis):
        axis = [i for i, item in enumerate(axis) if item]
    return jnp.flip(x, tuple(axis))


def reverse_sequence(x: Any, lengths: Any, axis: Any, batch_axis: Any, seq_dim: Any, batch_dim: Any) -> Any:
    axis = seq_dim if axis is None else axis
    batch_axis = batch_dim if batch_axis is None else batch_axis
    batch_axis = 0 if batch_axis is None else batch_axis

    def one(row: Any, length: Any) -> Any:
        row_axis = axis - (axis > batch_axis)
        steps = jnp.arange(row.shape[row_axis])
        return jnp.take(row, jnp.where(steps < length, length - 1 - steps, steps), axis=row_axis)

    return jax.vmap(one, (batch_axis, 0), batch_axis)(jnp.asarray(x), jnp.asarray(lengths))


def sequence_mask(lengths: Any, maxlen: Any, dtype: Any) -> Any:
    if maxlen is None:
        raise TypeError("tf.sequence_mask requires maxlen: XLA must know the length of the mask.")
    return (jnp.arange(maxlen) < jnp.asarray(lengths)[..., None]).astype(dtype)


def top_k(x: Any, k: Any, sorted: Any) -> Any:
    return jax.lax.top_k(x, k)


def diag(x: Any) -> Any:
    x = jnp.asarray(x)
    return jnp.diag(x.ravel()).reshape(*x.shape, *x.shape)


def band(x: Any, lower: Any, upper: Any) -> Any:
    rows, columns = (jnp.arange(n) for n in x.shape[-2:])
    offset = rows[:, None] - columns[None, :]
    return jnp.where(((lower < 0) | (offset <= lower)) & ((upper < 0) | (-offset <= upper)), x, 0)


def matrix_diag(x: Any) -> Any:
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def eye(rows: Any, columns: Any, batch: Any, dtype: Any) -> Any:
    return jnp.broadcast_to(
        jnp.eye(rows, columns, dtype=dtype), (*(batch or ()), rows, rows if columns is None else columns)
    )


def meshed(values: Any, indexing: Any) -> Any:
    return jnp.meshgrid(*values, indexing=indexing)


def to_batch(x: Any, paddings: Any, block: Any) -> Any:
    x = jnp.pad(x, [(0, 0), *map(tuple, paddings), (0, 0)])
    n, height, width, depth = x.shape
    x = x.reshape(n, height // block, block, width // block, block, depth)
    return x.transpose(2, 4, 0, 1, 3, 5).reshape(-1, height // block, width // block, depth)


def _channels_last(fn: Any) -> Any:
    """Wraps a function of images with channels last to take both data formats."""

    def both(x: Any, block: Any, data_format: Any) -> Any:
        if data_format not in ("NHWC", "NCHW"):
            raise ValueError(f"data_format is 'NHWC' or 'NCHW', got {data_format!r}.")
        found = fn(jnp.moveaxis(x, 1, -1) if data_format == "NCHW" else x, block)
        return jnp.moveaxis(found, -1, 1) if data_format == "NCHW" else found

    return both


@_channels_last
def to_depth(x: Any, block: Any) -> Any:
    n, height, width, depth = x.shape
    x = x.reshape(n, height // block, block, width // block, block, depth)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(n, height // block, width // block, depth * block**2)


@_channels_last
def to_space(x: Any, block: Any) -> Any:
    n, height, width, depth = x.shape
    x = x.reshape(n, height, width, block, block, depth // block**2)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(n, height * block, width * block, depth // block**2)


def sliced_dims(x: Any, begin: Any, size: Any) -> Any:
    x, begin, size = np.asarray(x), np.ravel(begin).tolist(), np.ravel(size).tolist()
    _check_part(x.shape, begin, size)
    pairs = zip(begin, size, strict=True)
    return x[tuple(slice(start, None if count == -1 else start + count) for start, count in pairs)]


def norm(x: Any, ord: Any, axis: Any, keepdims: Any) -> Any:
    """Computes the norm of an array, of its vectors or of its matrices."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    if ord == "euclidean":
        return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), axis=axis, keepdims=bool(keepdims)))
    if not isinstance(axis, tuple) and ord in (1, np.inf):
        # The derivative at 0 is 0, as in TensorFlow.
        fold, sizes = (jnp.sum if ord == 1 else jnp.max), subgradients.absolute(x)
        return fold(sizes, axis=axis, keepdims=bool(keepdims))
    return jnp.linalg.norm(x.ravel() if axis is None else x, ord=ord, axis=axis, keepdims=bool(keepdims))
