"""The points of a serialized summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookline.sinks.sink import Histogram, Point

_HPARAMS = "_hparams_/"


class Written:
    """A serialized summary for several sinks; the first one to read it parses it, on its own thread."""

    __slots__ = ("_points", "payload", "prefix", "step", "time")

    def __init__(self, prefix: str, time: float, step: int | None, payload: bytes) -> None:
        self.prefix, self.time, self.step, self.payload = prefix, time, step, payload
        self._points: list[Point] | None = None

    def points(self) -> list[Point]:
        """Returns the points; the kind of an unknown one is the name of its TensorBoard plugin."""
        if self._points is None:
            from hookline.summary import protos

            try:
                values = protos.Summary.FromString(self.payload).value
            except protos.DecodeError:
                self._points = [Point("bytes that are no summary", self.prefix, self.step, self.time, self.payload)]
                return self._points
            found = [(value.tag, _read(value)) for value in values]
            self._points = [
                Point(kind, self.prefix + tag, self.step, self.time, value)
                for tag, (kind, value) in found
                if not tag.startswith(_HPARAMS)  # They come with the start.
            ]
        return self._points


def _read(value: Any) -> tuple[str, Any]:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return "scalar", _shortest(value.simple_value)
    if kind == "image":
        return "image", value.image.encoded_image_string
    if kind == "audio":
        return "audio", value.audio.encoded_audio_string
    if kind == "histo":
        histogram = value.histo
        return "histogram", Histogram(histogram.min, list(histogram.bucket_limit), list(histogram.bucket))
    plugin = value.metadata.plugin_data.plugin_name
    if plugin == "text":
        return "text", _text(value.tensor)
    if plugin == "scalars":
        from tensorboard.util import tensor_util

        return "scalar", _shortest(float(tensor_util.make_ndarray(value.tensor)))
    return plugin or str(kind), None


def _shortest(number: float) -> float:
    """Returns the number with the fewest digits that is the same 32-bit float."""
    return float(str(np.float32(number)))


def _text(tensor: Any) -> str:
    """Returns the text of a tensor of strings; in a table bars separate the cells and newlines the rows."""
    texts = [item.decode(errors="replace") for item in tensor.string_val]
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    width = max(sizes[-1], 1) if len(sizes) > 1 else 1
    return "\n".join(" | ".join(texts[place : place + width]) for place in range(0, len(texts), width))
