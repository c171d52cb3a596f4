"""Encodes scalars, histograms, text, images, sound and graphs as the serialized messages that TensorBoard reads."""

from __future__ import annotations

import functools
import io
import math
import struct
import wave
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hookline import errors
from hookline.graph import Graph, placement
from hookline.summary import records

_FLOAT = struct.Struct("<f")

_CHANNELS = (1, 3, 4)
_NOT_FINITE = np.array([255, 0, 0, 255], np.uint8)
_BLACK_BELOW = 1e-6
# A bucket is one value of a 32-bit float's exponent and first three fraction bits, for each sign. So there are eight
# buckets in an octave, found by a shift. Magnitudes below 2**-40 count as zero; those from 2**66 on share the last
# bucket.
_SHIFT = 20
_FIRST = (127 - 40) << 3
_LAST = ((127 + 66) << 3) - 1
_PER_SIGN = _LAST - _FIRST + 1
_MOST_VALUES = 2**32 - 1


def scalar(tag: str, value: Any) -> bytes:
    """Encodes one number, of any real dtype, as a serialized `Summary`.

    NaN and infinities are written unchanged, numbers beyond 32-bit floats as infinities.

    Raises:
        InvalidArgumentError: `value` is not one real number.
    """
    try:
        number = float(value) if isinstance(value, int | float) else _real_number(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidArgumentError.from_message(
            f"Summary {tag!r} requires one number, got {_describe(value)}; reduce it first (a mean, a norm) or write "
            f"a histogram.",
        ) from error
    try:
        return _scalar_prefix(tag) + _FLOAT.pack(number)
    except OverflowError:
        return _scalar_prefix(tag) + _FLOAT.pack(math.copysign(math.inf, number))


@functools.lru_cache(maxsize=4096)
def _scalar_prefix(tag: str) -> bytes:
    """Returns the bytes of a scalar's `Summary` before the number, its last four; they are the same at every step."""
    head = records.length_delimited(1, tag.encode()) + records.key(2, 5)
    return records.key(1, 2) + records.varint(len(head) + _FLOAT.size) + head


def _real_number(value: Any) -> float:
    array = np.asarray(value)
    if array.shape or array.dtype.kind in "cOSUMm":
        raise TypeError(array.dtype)
    return float(array)


def _describe(value: Any) -> str:
    try:
        array = np.asarray(value)
    except Exception:
        return f"a value of type {type(value).__name__}"
    return repr(value) if array.dtype == object else f"a {array.dtype} array of shape {array.shape}"


def text(tag: str, value: Any) -> bytes:
    """Encodes text, which TensorBoard shows as Markdown, as a serialized `Summary`.

    Raises:
        InvalidArgumentError: `value` is not a string, bytes in UTF-8, or an array or nested list of them (a table).
    """
    from hookline.summary.protos import Summary

    strings = np.asarray(value, dtype=object)
    if not all(isinstance(item, str | bytes) for item in strings.flat):
        raise errors.InvalidArgumentError.from_message(f"Summary {tag!r} requires strings, got {value!r}.")
    summary = Summary()
    message = summary.value.add(tag=tag)
    message.metadata.plugin_data.plugin_name = "text"
    message.tensor.dtype = 7  # DT_STRING
    for length in strings.shape:
        message.tensor.tensor_shape.dim.add(size=length)
    message.tensor.string_val.extend(item.encode() if isinstance(item, str) else item for item in strings.flat)
    return summary.SerializeToString()


def graph(described: Graph) -> bytes:
    """Encodes a graph as a serialized `GraphDef`: names, types, inputs and control inputs of its operations."""
    from hookline.summary.protos import GraphDef

    message = GraphDef()
    message.versions.producer = 22
    for operation in described.get_operations():
        node = message.node.add(name=operation.name, op=operation.type)
        node.input.extend(dict.fromkeys(tensor.op.name for tensor in operation.inputs))
        node.input.extend(f"^{control.name}" for control in operation.control_inputs)
    return message.SerializeToString()


def check_images(name: str, shape: Sequence[Any], dtype: Any) -> None:
    """Raises `InvalidArgumentError` unless arrays of this shape and dtype are images."""
    sizes = [size for size in shape[1:3] if isinstance(size, int)]
    channels = shape[3] if len(shape) == 4 and isinstance(shape[3], int) else 1
    if len(shape) != 4 or channels not in _CHANNELS or 0 in sizes:
        raise _invalid(
            f"Image summary {name!r} requires shape [batch, height, width, channels] with 1 (grey), 3 (RGB) or 4 "
            f"(RGBA) channels and at least one pixel, got {list(shape)}."
        )
    if dtype != jnp.uint8 and not jnp.issubdtype(dtype, jnp.floating):
        raise _invalid(
            f"Image summary {name!r} requires uint8 (0 to 255) or floating point values, which are rescaled, got "
            f"{dtype}. Convert them first."
        )


def image(tag: str, images: Any, max_outputs: int) -> bytes:
    """Encodes checked and selected images as a serialized `Summary`, each as a PNG."""
    from hookline.summary.protos import Summary

    summary = Summary()
    for index, pixels in enumerate(np.asarray(images)):
        message = summary.value.add(tag=_tag(tag, "image", index, max_outputs)).image
        message.height, message.width, message.colorspace = pixels.shape
        message.encoded_image_string = _png(pixels if pixels.dtype == np.uint8 else _rescale(pixels))
    return summary.SerializeToString()


def _rescale(pixels: np.ndarray) -> np.ndarray:
    """Converts floating point pixels to uint8: 0.0 becomes black, or 128 if some values are negative."""
    values = pixels.astype(np.promote_types(pixels.dtype, np.float32))
    finite = np.asarray(np.isfinite(values).all(axis=-1))
    least, most = (values[finite].min(), values[finite].max()) if finite.any() else (np.float32(0),) * 2
    top, zero = (np.float32(127), np.float32(128)) if least < 0 else (np.float32(255), np.float32(0))
    largest = max(abs(least), abs(most))
    scale = np.float32(0) if largest < _BLACK_BELOW else top / largest
    shown = np.where(finite[..., None], values, 0) * scale + zero
    return np.where(finite[..., None], shown.astype(np.uint8), _NOT_FINITE[: values.shape[-1]])


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "png")
    return file.getvalue()


def check_audio(name: str, shape: Sequence[Any], dtype: Any) -> None:
    """Raises `InvalidArgumentError` unless arrays of this shape and dtype are sound."""
    if len(shape) not in (2, 3) or 0 in [size for size in shape[2:] if isinstance(size, int)]:
        raise _invalid(
            f"Audio summary {name!r} requires shape [batch, frames] or [batch, frames, channels] with at least one "
            f"channel, got {list(shape)}."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise _invalid(
            f"Audio summary {name!r} requires floating point values between -1 and 1, got {dtype}. Divide by the "
            f"largest integer of the dtype."
        )


def audio(tag: str, clips_and_rate: tuple[Any, Any], max_outputs: int) -> bytes:
    """Encodes checked and selected clips, with their sample rate, as a serialized `Summary` of 16-bit WAVs."""
    from hookline.summary.protos import Summary

    clips, rate = np.asarray(clips_and_rate[0]), _sample_rate(tag, clips_and_rate[1])
    summary = Summary()
    for index, clip in enumerate(clips):
        frames = clip[:, None] if clip.ndim == 1 else clip
        message = summary.value.add(tag=_tag(tag, "audio", index, max_outputs)).audio
        message.length_frames, message.num_channels = frames.shape
        message.sample_rate, message.content_type = rate, "audio/wav"
        message.encoded_audio_string = _wav(frames, rate)
    return summary.SerializeToString()


def _sample_rate(tag: str, given: Any) -> float:
    rate = np.asarray(given)
    if rate.size != 1 or rate.dtype.kind not in "iuf" or not 0.5 < rate.item() < 2**32:
        raise _invalid(f"Audio summary {tag!r} requires a positive number of frames a second, got {given!r}.")
    return float(rate.item())


def _wav(frames: np.ndarray, rate: float) -> bytes:
    scaled = np.where(np.isnan(frames), 0, frames).astype(np.float64) * 2**15
    rounded = np.trunc(scaled + np.copysign(0.5, scaled))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(frames.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(np.clip(rounded, -(2**15), 2**15 - 1).astype("<i2").tobytes())
    return file.getvalue()


def _tag(tag: str, kind: str, index: int, max_outputs: int) -> str:
    # The number of items does not matter, so that a smaller batch does not change the tag.
    return f"{tag}/{kind}/{index}" if max_outputs > 1 else f"{tag}/{kind}"


def _invalid(text: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError.from_message(text)


class BucketCounts(NamedTuple):
    """The device's results for a histogram.

    Attributes:
        counts: Shape `(1697,)`; the number of finite values in each bucket, from the most negative to the most
            positive.
        non_finite: Shape `()`; the number of values that are NaN or infinite. The other fields leave them out.
        total: Shape `()`; the sum.
        squares: Shape `()`; the sum of squares.
        least: Shape `()`; the smallest value, infinity without values.
        most: Shape `()`; the largest value, minus infinity without values.
    """

    counts: Any
    non_finite: Any
    total: Any
    squares: Any
    least: Any
    most: Any


def count_buckets(values: Any) -> BucketCounts:
    """Counts the values of a pytree into buckets. Meant for use inside `jax.jit`.

    Args:
        values: Pytree of arrays of real dtypes and any shapes, counted together as 32-bit floats.

    Raises:
        InvalidArgumentError: A leaf is complex or not a number, or there are 2**32 values or more.
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(values)]
    for leaf in leaves:
        if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
            raise errors.InvalidArgumentError.from_message(
                f"A histogram requires arrays of real numbers, got one of dtype {leaf.dtype}."
            )
    sizes = [leaf.size for leaf in leaves]
    if all(isinstance(size, int) for size in sizes) and sum(sizes) > _MOST_VALUES:
        raise errors.InvalidArgumentError.from_message(
            f"A histogram holds at most {_MOST_VALUES} values, got {sum(sizes)}. Make several histograms."
        )
    parts = [placement.apply_replicated(_count_leaf, leaf) for leaf in leaves] or [_count_leaf(jnp.zeros(0))]
    counts, non_finite, total, squares, least, most = (list(column) for column in zip(*parts, strict=True))
    return BucketCounts(
        sum(counts), sum(non_finite), sum(total), sum(squares), jnp.stack(least).min(), jnp.stack(most).max()
    )


def _count_leaf(leaf: jax.Array) -> BucketCounts:
    values = leaf.astype(jnp.float32)
    finite = jnp.isfinite(values)
    weights = finite.astype(jnp.uint32)
    known = jnp.where(finite, values, 0)
    bits = lax.bitcast_convert_type(known, jnp.int32)
    magnitude = jnp.clip((bits & 0x7FFFFFFF) >> _SHIFT, _FIRST - 1, _LAST) - (_FIRST - 1)
    bucket = jnp.where(bits < 0, -magnitude, magnitude) + _PER_SIGN
    counts = jnp.zeros(2 * _PER_SIGN + 1, jnp.uint32).at[bucket].add(weights, mode="promise_in_bounds")
    return BucketCounts(
        counts,
        jnp.sum(~finite, dtype=jnp.uint32),
        known.sum(),
        jnp.sum(known * known),
        jnp.min(values, where=finite, initial=jnp.inf),
        jnp.max(values, where=finite, initial=-jnp.inf),
    )


def _limits() -> np.ndarray:
    """Returns the upper limit of each bucket."""
    edges = (np.arange(_FIRST, _LAST + 1, dtype=np.int32) << _SHIFT).view(np.float32).astype(np.float64)
    return np.concatenate([-edges[::-1], edges, [np.finfo(np.float64).max]])


def histogram(tag: str, counted: BucketCounts) -> bytes:
    """Encodes the result of `count_buckets`, on the host, as a serialized `Summary`."""
    from hookline.summary.protos import Summary

    counts = np.asarray(counted.counts)
    used = np.flatnonzero(counts)
    # The limit of the bucket before a used one is its lower limit; other empty buckets are left out.
    kept = np.union1d(used, np.maximum(used - 1, 0))
    summary = Summary()
    histogram = summary.value.add(tag=tag).histo
    histogram.num = float(counts.sum(dtype=np.uint64))
    if histogram.num:
        histogram.min = float(counted.least)
        histogram.max = float(counted.most)
        histogram.sum = float(counted.total)
        histogram.sum_squares = float(counted.squares)
        histogram.bucket_limit.extend(_limits()[kept].tolist())
        histogram.bucket.extend(counts[kept].tolist())
    return summary.SerializeToString()
