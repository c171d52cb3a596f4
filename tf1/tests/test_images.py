"""Which pixels a resized image takes: those of TensorFlow 2.21 on CPU, as literals."""

from __future__ import annotations

import numpy as np
import pytest

import hookline_tf1 as tf


def resized(given, wanted, resize):
    """Returns which pixels of a row a wider or narrower row takes."""
    with tf.Graph().as_default(), tf.Session() as session:
        row = tf.constant(np.arange(given, dtype="float32").reshape(1, 1, given, 1))
        return session.run(resize(row, [1, wanted])).ravel().tolist()


def long(*values):
    return pytest.param(*values, marks=pytest.mark.campaign)


@pytest.mark.parametrize(
    ("given", "wanted", "corners", "centers", "neither"),
    [
        (3, 5, [0, 1, 1, 2, 2], [0, 0, 1, 2, 2], [0, 0, 1, 1, 2]),
        long(4, 7, [0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3]),
        long(2, 4, [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]),
        (5, 9, [0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 0, 1, 1, 2, 3, 3, 4, 4], [0, 0, 1, 1, 2, 2, 3, 3, 4]),
        (6, 3, [0, 3, 5], [1, 3, 5], [0, 2, 4]),
        long(6, 7, [0, 1, 2, 3, 3, 4, 5], [0, 1, 2, 3, 3, 4, 5], [0, 0, 1, 2, 3, 4, 5]),
        long(5, 2, [0, 4], [1, 3], [0, 2]),
        (4, 1, [0], [2], [0]),
    ],
)
def test_nearest_pixel_equals_tensorflows(given, wanted, corners, centers, neither):
    nearest = tf.image.resize_nearest_neighbor
    assert resized(given, wanted, lambda x, size: nearest(x, size, align_corners=True)) == corners
    assert resized(given, wanted, lambda x, size: nearest(x, size, half_pixel_centers=True)) == centers
    assert resized(given, wanted, nearest) == neither
    method = tf.image.ResizeMethod.NEAREST_NEIGHBOR
    assert resized(given, wanted, lambda x, size: tf.image.resize_images(x, size, method, True)) == corners


def test_bilinear_uint8_images_are_floats_with_the_aspect_ratio_kept(sess):
    image = tf.constant(np.zeros((1, 4, 4, 1), "uint8"))
    kept = sess.run(tf.image.resize_images(image, [4, 4], preserve_aspect_ratio=True))
    assert kept.dtype == np.float32
    assert sess.run(tf.image.resize_images(image, [4, 4])).dtype == np.uint8


@pytest.mark.parametrize(
    ("pixels", "given", "wanted", "saturated", "wrapped"),
    [
        ([-(2**30), -1, 2**30], "int32", "uint8", [0, 0, 128], [128, 255, 128]),
        ([-32768, -1, 32767], "int16", "uint8", [0, 0, 255], [0, 255, 255]),
        ([-128, -1, 127], "int8", "uint16", [0, 0, 65024], [0, 65024, 65024]),
    ],
)
def test_integer_images_are_saturated(pixels, given, wanted, saturated, wrapped, sess):
    image = tf.constant(pixels, given)
    assert sess.run(tf.image.convert_image_dtype(image, wanted, saturate=True)).tolist() == saturated
    assert sess.run(tf.image.convert_image_dtype(image, wanted)).tolist() == wrapped
