"""Images and sound. Where numbers are spelled out, TensorFlow 2.21 makes the same of these values."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import hookline as hl
from hookline import errors, summary

NAN, INF = np.nan, np.inf


def run(tensor: Any, feeds: Any = None) -> dict[str, Any]:
    with hl.Session() as sess:
        value = sess.run(tensor, feeds)
    return {value.tag: value for value in summary.Summary.FromString(value).value}


def pixels(message: Any) -> list[int]:
    return np.array(Image.open(io.BytesIO(message.encoded_image_string))).ravel().tolist()


def one_row(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    """One image, one pixel high; a value is a grey pixel, a tuple one of several channels."""
    return np.array([value if isinstance(value, tuple) else (value,) for value in values], dtype)[None, None]


def samples(message: Any) -> list[int]:
    with wave.open(io.BytesIO(message.encoded_audio_string)) as reader:
        assert reader.getparams()[:3] == (message.num_channels, 2, round(message.sample_rate))
        return np.frombuffer(reader.readframes(reader.getnframes()), "<i2").tolist()


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (one_row(0, 7, 255, dtype=np.uint8), [0, 7, 255]),
        (one_row(0.0, 0.25, 0.5), [0, 127, 255]),
        (one_row(0.0, 10.0, 1e30), [0, 0, 254]),
        (one_row(-1.0, -0.5, 0.25), [1, 64, 159]),
        (one_row(-1.0, 0.0, 4.0), [96, 128, 255]),
        (one_row(0.0, 0.0), [0, 0]),
        (one_row(1e-7, 1e-7), [0, 0]),
        (one_row(1.0, NAN, INF, 0.5), [255, 255, 255, 127]),
        (one_row(NAN, NAN), [255, 255]),
        (one_row((1.0, 0.0, 0.0), (NAN, 1.0, 1.0), (0.0, -2.0, 0.5)), [191, 128, 128, 255, 0, 0, 128, 1, 159]),
        (one_row((0.0, 0.5, 1.0, 1.0), (0.0, 0.0, 0.0, INF)), [0, 127, 255, 255, 255, 0, 0, 255]),
    ],
)
def test_pixels_equal_those_of_tensorflow(image: np.ndarray, shown: list[int]):
    (value,) = run(summary.image("picture", image, max_outputs=1)).values()
    assert pixels(value.image) == shown
    assert (value.image.height, value.image.width, value.image.colorspace) == image.shape[1:]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_images_are_rescaled(dtype: str):
    (value,) = run(summary.image("picture", jnp.array([[[[0.0], [0.5]]]], dtype))).values()
    assert pixels(value.image) == [0, 255]


@pytest.mark.parametrize(
    ("clip", "written"),
    [
        ([0, 0.5, -1, 1, 2, -3, 1e-5, 0.25003], [0, 16384, -32768, 32767, 32767, -32768, 0, 8193]),
        ([NAN, INF, -INF, 0.1], [0, 32767, -32768, 3277]),
        ([-3 / 65536, 0.0, 3 / 65536], [-2, 0, 2]),
        ([[0.5, -0.5], [0.25, -0.25]], [16384, -16384, 8192, -8192]),
        ([], []),
    ],
)
def test_samples_equal_those_of_tensorflow(clip: list[Any], written: list[int]):
    (value,) = run(summary.audio("sound", np.array([clip], np.float32), 22050.7, max_outputs=1)).values()
    assert samples(value.audio) == written
    assert (value.audio.content_type, value.audio.length_frames) == ("audio/wav", len(clip))


@pytest.mark.parametrize(
    ("max_outputs", "numbers"), [(1, [""]), (2, ["/0", "/1"]), (3, ["/0", "/1", "/2"]), (9, ["/0", "/1", "/2", "/3"])]
)
def test_tags_depend_on_max_outputs(max_outputs: int, numbers: list[str]):
    with hl.name_scope("train"):
        both = [
            summary.image("x", jnp.zeros((4, 2, 2, 3)), max_outputs),
            summary.audio("y", jnp.zeros((4, 5)), 8000, max_outputs),
        ]
    expected = [f"train/x/image{number}" for number in numbers] + [f"train/y/audio{number}" for number in numbers]
    assert list(run(summary.merge(both))) == expected


def test_smaller_batch_than_max_outputs_keeps_the_numbered_tags():
    assert list(run(summary.image("x", jnp.zeros((1, 2, 2, 1))))) == ["x/image/0"]
    assert run(summary.image("none", jnp.zeros((0, 2, 2, 1)))) == {}


def test_only_written_examples_leave_the_device():
    batch = hl.placeholder(jnp.float32, [None, 28, 28, 1], name="batch")
    sound = hl.placeholder(jnp.float32, [512, None], name="sound")
    for tensor in (summary.image("x", batch, 2), summary.audio("y", sound, 8000, 2)):
        (first, *_) = tensor.op.inputs
        with hl.Session() as sess:
            assert sess.run(first, {batch: np.zeros((64, 28, 28, 1)), sound: np.zeros((512, 10))}).shape[0] == 2


def test_sample_rate_may_be_a_tensor():
    rate = hl.placeholder(jnp.float32, [], name="rate")
    tensor = summary.audio("y", jnp.zeros((1, 4)), rate)
    (value,) = run(tensor, {rate: 44100.0}).values()
    assert value.audio.sample_rate == 44100.0
    with pytest.raises(errors.InvalidArgumentError, match=r"'y' requires a positive number of frames a second"):
        run(tensor, {rate: 0.0})


def test_images_on_the_host_are_accepted():
    drawn = hl.host_op(lambda: np.full((1, 1, 2, 3), 9, np.uint8), name="draw").node()
    (value,) = run(summary.image("picture", drawn)).values()
    assert pixels(value.image) == [9] * 6


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda x: summary.image("p", x([2, 28, 28])), r"'p' requires shape \[batch, height, width, channels\] .* got"),
        (lambda x: summary.image("p", x([2, 28, 28, 2])), r"1 \(grey\), 3 \(RGB\) or 4 \(RGBA\) channels .*28, 2\]"),
        (lambda x: summary.image("p", x([2, 0, 28, 1])), r"at least one pixel, got \[2, 0, 28, 1\]"),
        (lambda x: summary.image("p", x([2, 2, 2, 1], jnp.int32)), r"'p' requires uint8 .* got int32\. Convert"),
        (lambda x: summary.audio("s", x([5]), 8000), r"'s' requires shape \[batch, frames\] or .* got \[5\]"),
        (lambda x: summary.audio("s", x([1, 5, 0]), 8000), r"at least one channel, got \[1, 5, 0\]"),
        (
            lambda x: summary.audio("s", x([1, 5], jnp.int16), 8000),
            r"'s' requires floating point .* got int16\. Divide",
        ),
    ],
)
def test_invalid_image_or_sound_is_refused_as_early_as_possible(make: Callable[[Any], Any], complaint: str):
    with pytest.raises(errors.InvalidArgumentError, match=complaint):
        make(lambda shape, dtype=jnp.float32: hl.placeholder(dtype, shape))

    late = []

    def unknown(shape: list[int], dtype: Any = jnp.float32) -> Any:
        late.append((hl.placeholder(dtype, None), np.zeros(shape, dtype)))
        return late[0][0]

    tensor = make(unknown) if "got int" not in complaint else None
    if tensor is not None:
        with pytest.raises(errors.InvalidArgumentError, match=complaint):
            run(tensor, dict(late))


@pytest.mark.parametrize(
    ("max_outputs", "error", "got"), [(0, ValueError, "got 0"), (-1, ValueError, "got -1"), (1.5, TypeError, "got 1.5")]
)
def test_max_outputs_must_be_positive(max_outputs: Any, error: type[Exception], got: str):
    with pytest.raises(error, match=f"Summary 'x' requires .*max_outputs.* {got}"):
        summary.image("x", jnp.zeros((1, 1, 1, 1)), max_outputs)


def test_tensorboard_reads_images_and_audio(tmp_path: Path, accumulate: Callable[[Path], Any]):
    both = summary.merge(
        [summary.image("x", jnp.ones((1, 2, 3, 1))), summary.audio("y", jnp.ones((1, 4)), sample_rate=8000)]
    )
    with hl.Session() as sess, summary.FileWriter(tmp_path) as writer:
        for step in (1, 2):
            writer.add_summary(sess.run(both), step)
    seen = accumulate(tmp_path)
    (image,) = {(event.step, event.width, event.height) for event in seen.Images("x/image/0")[-1:]}
    assert image == (2, 3, 2)
    assert [(event.sample_rate, event.length_frames) for event in seen.Audio("y/audio/0")[-1:]] == [(8000.0, 4)]
