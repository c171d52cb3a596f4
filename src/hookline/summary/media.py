"""Images and sound as the serialized messages that TensorBoard reads: PNG and WAV files inside summaries."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hookline import errors

_CHANNELS = (1, 3, 4)
_NOT_FINITE = np.array([255, 0, 0, 255], np.uint8)
_BLACK_BELOW = 1e-6


def check_images(name: str, shape: Sequence[Any], dtype: Any) -> None:
    """Raises `InvalidArgumentError` unless arrays of this shape and dtype are images."""
    sizes = [size for size in shape[1:3] if isinstance(size, int)]
    channels = shape[3] if len(shape) == 4 and isinstance(shape[3], int) else 1
    if len(shape) != 4 or channels not in _CHANNELS or 0 in sizes:
        raise _refusal(
            f"Image summary {name!r} requires shape [batch, height, width, channels] with 1 (grey), 3 (RGB) or 4 "
            f"(RGBA) channels and at least one pixel, got {list(shape)}."
        )
    if dtype != jnp.uint8 and not jnp.issubdtype(dtype, jnp.floating):
        raise _refusal(
            f"Image summary {name!r} requires uint8 (0 to 255) or floating point values, which are rescaled, got "
            f"{dtype}: convert them first."
        )


def image(tag: str, images: Any, max_outputs: int) -> bytes:
    """Returns the serialized `Summary` of checked and selected images, each as a PNG."""
    from hookline.summary.protos import Summary

    summary = Summary()
    for place, pixels in enumerate(np.asarray(images)):
        message = summary.value.add(tag=_tag(tag, "image", place, max_outputs)).image
        message.height, message.width, message.colorspace = pixels.shape
        message.encoded_image_string = _png(pixels if pixels.dtype == np.uint8 else _rescaled(pixels))
    return summary.SerializeToString()


def _rescaled(pixels: np.ndarray) -> np.ndarray:
    """Returns floating point pixels as bytes: 0.0 is black, or in the middle if some are negative."""
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


def check_clips(name: str, shape: Sequence[Any], dtype: Any) -> None:
    """Raises `InvalidArgumentError` unless arrays of this shape and dtype are sound."""
    if len(shape) not in (2, 3) or 0 in [size for size in shape[2:] if isinstance(size, int)]:
        raise _refusal(
            f"Audio summary {name!r} requires shape [batch, frames] or [batch, frames, channels] with at least one "
            f"channel, got {list(shape)}."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise _refusal(
            f"Audio summary {name!r} requires floating point values between -1 and 1, got {dtype}: divide by the "
            f"largest value that the integers can have."
        )


def audio(tag: str, clips_and_rate: tuple[Any, Any], max_outputs: int) -> bytes:
    """Returns the serialized `Summary` of checked and selected clips with their sample rate, as 16-bit WAVs."""
    from hookline.summary.protos import Summary

    clips, rate = np.asarray(clips_and_rate[0]), _sample_rate(tag, clips_and_rate[1])
    summary = Summary()
    for place, clip in enumerate(clips):
        frames = clip[:, None] if clip.ndim == 1 else clip
        message = summary.value.add(tag=_tag(tag, "audio", place, max_outputs)).audio
        message.length_frames, message.num_channels = frames.shape
        message.sample_rate, message.content_type = rate, "audio/wav"
        message.encoded_audio_string = _wav(frames, rate)
    return summary.SerializeToString()


def _sample_rate(tag: str, given: Any) -> float:
    rate = np.asarray(given)
    if rate.size != 1 or rate.dtype.kind not in "iuf" or not 0.5 < rate.item() < 2**32:
        raise _refusal(f"Audio summary {tag!r} requires a positive number of frames a second, got {given!r}.")
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


def _tag(tag: str, kind: str, place: int, max_outputs: int) -> str:
    # The number of items does not matter, so that a smaller batch does not change the tag.
    return f"{tag}/{kind}/{place}" if max_outputs > 1 else f"{tag}/{kind}"


def _refusal(text: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, text)
