"""`tf.image`: image transformations for training."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hookline_tf1 import random
from hookline_tf1._machinery import casts
from hookline_tf1._machinery.namespaces import offered
from hookline_tf1._machinery.nodes import argument, node
from hookline_tf1._machinery.op_definitions import Plain, Static, computed_by, ops_in


class ResizeMethod:
    """`tf.image.ResizeMethod`."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def _whitened(image: Any) -> Any:
    image = jnp.asarray(image, jnp.float32)
    axes = (-1, -2, -3)
    count = int(np.prod(image.shape[-3:]))
    mean = jnp.mean(image, axes, keepdims=True)
    spread = jnp.maximum(jnp.std(image, axes, keepdims=True), 1 / np.sqrt(count))
    return (image - mean) / spread


def _as_floats(fn: Any) -> Any:
    """Wraps a function of float images from 0 to 1 to take and return other dtypes, like TensorFlow."""

    def apply(image: Any, *args: Any) -> Any:
        dtype = jnp.asarray(image).dtype
        return _converted(fn(_converted(image, jnp.float32, False), *args), dtype, True)

    return apply


def _converted(image: Any, dtype: Any, saturate: Any) -> Any:
    image = jnp.asarray(image)
    if image.dtype == dtype:
        return image
    cast = casts.saturated if saturate else casts.cast
    given_whole, wants_whole = (jnp.issubdtype(d, jnp.integer) for d in (image.dtype, dtype))
    if given_whole and wants_whole:
        given, wanted = int(jnp.iinfo(image.dtype).max), int(jnp.iinfo(dtype).max)
        if given > wanted:
            return cast(image // ((given + 1) // (wanted + 1)), dtype)
        return cast(image, dtype) * ((wanted + 1) // (given + 1))
    if given_whole:
        return image.astype(dtype) * (1.0 / int(jnp.iinfo(image.dtype).max))
    if wants_whole:
        return cast(image * (int(jnp.iinfo(dtype).max) + 0.5), dtype)
    return image.astype(dtype)


def _contrast(image: Any, factor: Any) -> Any:
    mean = jnp.mean(image, axis=(-3, -2), keepdims=True)
    return (image - mean) * factor + mean


def _grey(image: Any) -> Any:
    return jnp.tensordot(image, jnp.asarray([0.2989, 0.5870, 0.1140]), axes=1)[..., None]


def _cut(image: Any, top: Any, left: Any, height: Any, width: Any) -> Any:
    return image[..., top : top + height, left : left + width, :]


def _framed(image: Any, top: Any, left: Any, height: Any, width: Any) -> Any:
    bottom, right = height - top - image.shape[-3], width - left - image.shape[-2]
    return jnp.pad(image, [*[(0, 0)] * (image.ndim - 3), (top, bottom), (left, right), (0, 0)])


def _cut_or_framed(image: Any, height: Any, width: Any) -> Any:
    image = jnp.asarray(image)
    more = [(have - want) // 2 for have, want in zip(image.shape[-3:-1], (height, width), strict=True)]
    image = _cut(image, max(0, more[0]), max(0, more[1]), min(height, image.shape[-3]), min(width, image.shape[-2]))
    less = [(want - have) // 2 for have, want in zip(image.shape[-3:-1], (height, width), strict=True)]
    return _framed(image, less[0], less[1], height, width)


def _central(image: Any, fraction: Any) -> Any:
    starts = [int((size - size * fraction) / 2) for size in image.shape[-3:-1]]
    height, width = (size - 2 * start for size, start in zip(image.shape[-3:-1], starts, strict=True))
    return _cut(image, starts[0], starts[1], height, width)


def _positions(wanted: int, given: int, corners: bool, centers: bool) -> np.ndarray:
    """Computes the positions of the result's pixels in the image, in float32 for TensorFlow's rounding."""
    scale = np.float32(given - 1) / np.float32(wanted - 1) if corners and wanted > 1 else np.float32(given) / wanted
    return (np.arange(wanted, dtype=np.float32) + np.float32(0.5 if centers else 0)) * np.float32(scale)


def _bilinear(images: Any, size: Any, corners: Any = False, centers: Any = False) -> Any:
    images = jnp.asarray(images, jnp.float32)
    for axis, wanted in zip((-3, -2), size, strict=True):
        given = images.shape[axis]
        positions = _positions(int(wanted), given, corners, centers) - np.float32(0.5 if centers else 0)
        low = np.clip(np.floor(positions), 0, given - 1).astype(int)
        high = np.clip(np.floor(positions) + 1, 0, given - 1).astype(int)
        share = np.clip(positions - np.floor(positions), 0, 1).astype(np.float32)
        share = share.reshape(-1, *(1,) * (-axis - 1))
        images = jnp.take(images, low, axis) * (1 - share) + jnp.take(images, high, axis) * share
    return images


def _nearest(images: Any, size: Any, corners: Any = False, centers: Any = False) -> Any:
    for axis, wanted in zip((-3, -2), size, strict=True):
        given = images.shape[axis]
        positions = _positions(int(wanted), given, corners, centers)
        # Rounds halves up.
        found = np.floor(positions + np.float32(0.5)) if corners else np.floor(positions)
        images = jnp.take(images, np.clip(found, 0, given - 1).astype(int), axis)
    return images


def _resized(images: Any, size: Any, method: Any, corners: Any, keeps_ratio: Any) -> Any:
    images = jnp.asarray(images)
    if keeps_ratio:
        given = images.shape[-3:-1]
        scale = min(wanted / whole for wanted, whole in zip(size, given, strict=True))
        size = [round(scale * whole) for whole in given]
    elif tuple(size) == images.shape[-3:-1]:
        return images
    if method not in (ResizeMethod.BILINEAR, ResizeMethod.NEAREST_NEIGHBOR):
        raise NotImplementedError(
            f"tf.image.resize_images: method {method} is not available; use bilinear (0) or nearest (1)."
        )
    return (_bilinear if method == ResizeMethod.BILINEAR else _nearest)(images, size, corners)


@computed_by(_whitened)
def per_image_standardization(image: Any) -> Any: ...


@computed_by(_whitened)
def per_image_whitening(image: Any) -> Any: ...


@computed_by(_as_floats(lambda image, delta: image + delta))
def adjust_brightness(image: Any, delta: Any) -> Any: ...


@computed_by(_as_floats(_contrast))
def adjust_contrast(images: Any, contrast_factor: Any) -> Any: ...


@computed_by(lambda image: jnp.flip(image, -2))
def flip_left_right(image: Any) -> Any: ...


@computed_by(lambda image: jnp.flip(image, -3))
def flip_up_down(image: Any) -> Any: ...


@computed_by(lambda image: jnp.swapaxes(image, -3, -2))
def transpose_image(image: Any) -> Any: ...


@computed_by(lambda image, k: jnp.rot90(image, k, (-3, -2)))
def rot90(image: Any, k: Static = 1, name: str | None = None) -> Any: ...


@computed_by(_as_floats(_grey))
def rgb_to_grayscale(images: Any, name: str | None = None) -> Any: ...


@computed_by(lambda image: jnp.repeat(image, 3, -1))
def grayscale_to_rgb(images: Any, name: str | None = None) -> Any: ...


@computed_by(_converted)
def convert_image_dtype(image: Any, dtype: Plain, saturate: Plain = False, name: str | None = None) -> Any: ...


@computed_by(_central)
def central_crop(image: Any, central_fraction: Static) -> Any: ...


@computed_by(_cut)
def crop_to_bounding_box(
    image: Any, offset_height: Static, offset_width: Static, target_height: Static, target_width: Static
) -> Any: ...


@computed_by(_framed)
def pad_to_bounding_box(
    image: Any, offset_height: Static, offset_width: Static, target_height: Static, target_width: Static
) -> Any: ...


@computed_by(_cut_or_framed)
def resize_image_with_crop_or_pad(image: Any, target_height: Static, target_width: Static) -> Any: ...


@computed_by(_cut_or_framed)
def resize_with_crop_or_pad(image: Any, target_height: Static, target_width: Static) -> Any: ...


@computed_by(_resized, "resize")
def resize_images(
    images: Any,
    size: Static,
    method: Plain = 0,
    align_corners: Plain = False,
    preserve_aspect_ratio: Plain = False,
    name: str | None = None,
) -> Any: ...


@computed_by(_bilinear)
def resize_bilinear(
    images: Any, size: Static, align_corners: Plain = False, name: str | None = None, half_pixel_centers: Plain = False
) -> Any: ...


@computed_by(lambda images, *how: _nearest(jnp.asarray(images), *how))
def resize_nearest_neighbor(
    images: Any, size: Static, align_corners: Plain = False, name: str | None = None, half_pixel_centers: Plain = False
) -> Any: ...


def _perhaps(image: Any, seed: Any, flip: Any) -> Any:
    lot = random.random_uniform([], 0, 1.0, seed=seed)
    flipped = flip(image)
    return node(
        lambda image, flipped, lot: jnp.where(lot < 0.5, flipped, image),
        f"random_{flip.__name__}",
        {"image": argument(image), "flipped": flipped, "lot": lot},
    )


def random_flip_left_right(image: Any, seed: Any = None) -> Any:
    """`tf.image.random_flip_left_right`."""
    return _perhaps(image, seed, flip_left_right)


def random_flip_up_down(image: Any, seed: Any = None) -> Any:
    """`tf.image.random_flip_up_down`."""
    return _perhaps(image, seed, flip_up_down)


def random_brightness(image: Any, max_delta: float, seed: Any = None) -> Any:
    """`tf.image.random_brightness`."""
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_brightness(image, random.random_uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: Any = None) -> Any:
    """`tf.image.random_contrast`."""
    if not 0 <= lower < upper:
        raise ValueError("random_contrast requires 0 <= lower < upper.")
    return adjust_contrast(image, random.random_uniform([], lower, upper, seed=seed))


random_crop = random.random_crop

PUBLIC = [
    *ops_in(globals()),
    "ResizeMethod",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
]
__getattr__, __dir__ = offered("tf.image", lambda: PUBLIC)
